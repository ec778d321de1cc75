# SPDX-License-Identifier: MIT
"""What the sampler of a GPU costs: CPU time per second at 10 Hz, of a look at NVML with and without its performance
monitoring (GPM), and of an empty look.

    python tests/bench/sampler_cost.py [--seconds 20]

Needs gcc: nvidia-ml-py calls the tests' C library (tests/doubles/nvml_library.c), so the real driver's time for a look
comes on top. Each kind is run for a second and for --seconds longer: the difference leaves out start and end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"


def child_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(kind: str, seconds: float) -> tuple[float, int]:
    """CPU s of the sampler's process, and how often it looked."""
    from slurm_pal.profiling.node.devices import SensorSample
    from slurm_pal.profiling.node.nvml import Nvml
    from slurm_pal.profiling.node.sampler import Eyes, Sampler

    before_s = child_s()
    if kind == "gpm":
        os.environ["FAKE_NVML_GPM"] = "works"
    else:
        os.environ.pop("FAKE_NVML_GPM", None)
    if kind != "empty":
        nvml = Nvml()
        watch = nvml.watch(nvml.devices("n0", (0,))[0])
    else:
        watch = Sampler(lambda: Eyes(lambda: SensorSample(time.monotonic()), tuple))
    time.sleep(seconds)
    looks = watch.take()
    watch.close()
    told = sum(look.dram is not None for look in looks)
    assert bool(told) == (kind == "gpm"), f"{told} looks of kind {kind} tell how busy the memory was"
    return child_s() - before_s, len(looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    if LIBRARY not in os.environ.get("SAMPLER_COST", ""):
        with tempfile.TemporaryDirectory() as place:
            target = os.path.join(place, LIBRARY)
            source = str(HERE.parent / "doubles" / "nvml_library.c")
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source], check=True)
            environ = os.environ | {"SAMPLER_COST": target, "LD_LIBRARY_PATH": place}
            sys.exit(
                subprocess.run([sys.executable, "-P", __file__, *sys.argv[1:]], env=environ, check=False).returncode
            )
    run("gpm", 1.0)  # what is loaded once
    for kind in ("gpm", "nvml", "empty"):
        (long_s, many), (short_s, few) = run(kind, args.seconds + 1.0), run(kind, 1.0)
        each_ms = 1000 * (long_s - short_s) / max(1, many - few)
        print(json.dumps({"look": kind, "cpu_ms_per_s": round(1000 * (long_s - short_s) / args.seconds, 2),
                          "cpu_ms_per_look": round(each_ms, 3), "looks": many - few}))  # fmt: skip


if __name__ == "__main__":
    main()
