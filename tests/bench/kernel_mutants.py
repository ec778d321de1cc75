# SPDX-License-Identifier: MIT
"""Which errors in gemm_bf16_tcgen05 the double of the driver finds: one put into its source at a time, on the host.

    python -P tests/bench/kernel_mutants.py [--json]

Needs gcc; about three minutes. Each error is compiled with the double and run at three sizes, with asynchronous copies
and products as late and as early as they may be. "wrong": another product than the reference; "fault": the
launch failed. Exit code 1 if an error is not found, or if the kernel as it is is not right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from slurm_pal.profiling.driver import check  # noqa: E402
from slurm_pal.profiling.node.benchmarks import by_id  # noqa: E402
from slurm_pal.profiling.node.devices import DeviceError  # noqa: E402
from tests.unit.driver_double.machine import Machine  # noqa: E402

NAME, CAPABILITY, SOURCE = "gemm_bf16_tcgen05", 100, "gemm_blackwell.h"
SHAPES = ("512x256x32", "256x128x160", "256x128x512")
WAIT, LAST = "products_wait(&done[(step - 1) % 2], (step - 1) / 2 % 2)", "(steps - 1) / 2 % 2);\n    sync_warp"
ERRORS = {
    "no wait before a stage is filled": ("if (step) /*", "if (0) /*"),
    "waits for the other flag": (WAIT, "products_wait(&done[step % 2], (step - 1) / 2 % 2)"),
    "waits for the other parity": (WAIT, "products_wait(&done[(step - 1) % 2], (step + 1) / 2 % 2)"),
    "waits for the last product's other parity": (LAST, LAST.replace("- 1", "+ 1")),
    "copies waited for one group too late": ("copies_wait(SUM_STAGES - 2)", "copies_wait(SUM_STAGES - 1)"),
    "copies not handed over": ("copies_to_products();", ";"),
    "no barrier before the products": ("sync_block(); /* this stage", "; /* this stage"),
    "fills the stage in use": ("mine + next % SUM_STAGES", "mine + step % SUM_STAGES"),
    "stride of 8 lines": ("(512 >> 4)", "(1024 >> 4)"),
    "another swizzle": ("4ull << 61", "2ull << 61"),
    "no swizzle": ("4ull << 61", "0ull << 61"),
    "no constant in the descriptor": ("1ull << 46", "0ull << 46"),
    "a factor in fp16": ("1u << 10 |", "0u << 10 |"),
    "rows in other units": ("(128u >> 4) << 24", "(128u >> 3) << 24"),
    "columns in other units": ("(128u >> 3) << 17", "(128u >> 4) << 17"),
    "second half of k": ("half * TILE_BYTES + 32 * k", "half * TILE_BYTES + 16 * k"),
    "adds to what was there": ("step || k)", "1)"),
    "never adds": ("step || k)", "0)"),
    "sums where none are reserved": ("sums + 128 * half, product_tile", "sums + 256 * half, product_tile"),
    "address of the sums not used": ("sums = *where", "sums = 0"),
    "lanes of another warp": ("(32 * warp)", "(32 * (3 - warp))"),
    "columns mixed up": ("+ 32 * part)", "+ 32 * (3 - part))"),
    "halves mixed up": ("now + half * TILE_BYTES", "now + (1 - half) * TILE_BYTES"),
    "sums not given back": ("sums_release(sums);", ";"),
}


def library(folder: Path, old: str, new: str) -> Path:
    """The double with the kernels' source in which `old` is `new`."""
    folder.mkdir()
    for file in (ROOT / "profiling" / "driver").glob("*.[hc]*"):
        shutil.copy(file, folder)
    text = (folder / SOURCE).read_text(encoding="ascii")
    if old and text.count(old) != 1:
        raise SystemExit(f"{SOURCE} has {old!r} {text.count(old)} times: mend the table of errors")
    (folder / SOURCE).write_text(text.replace(old, new) if old else text, encoding="ascii")
    double = ROOT / "tests" / "unit" / "driver_double"
    sources = [str(double / name) for name in ("fake_cuda.c", "fibers.c")]
    words = ["gcc", "-std=gnu11", "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", f"-I{double}", f"-I{folder}"]
    subprocess.run([*words, *sources, "-o", str(folder / "double.so"), "-lm"], check=True)
    return folder / "double.so"


def tried(path: Path) -> list[str]:
    """How each size and order of events ended: right, wrong or fault."""
    machine, found = Machine(path), []
    for early_copies, early_products, shape in itertools.product((0, 1), (0, 1), SHAPES):
        machine.reset(capability=CAPABILITY)
        machine.double.double_eager(early_copies)
        machine.double.double_hasty(early_products)
        try:
            seen = check.check(machine.backend(), machine.devices[0], by_id(NAME)._replace(shape=shape))
        except DeviceError:
            found.append("fault")
            continue
        found.append("right" if all(one.good for one in seen if one.what == "product") else "wrong")
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=f"Errors in {NAME} that the double finds.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ended: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, change) in enumerate([("as it is", ("", "")), *ERRORS.items()]):
            ended[name] = tried(library(Path(folder) / str(number), *change))
            if not options.json:
                counts = ", ".join(f"{word} {ended[name].count(word)}" for word in ("right", "wrong", "fault"))
                print(f"{name:42} {counts}", flush=True)
    found = [name for name in ERRORS if set(ended[name]) != {"right"}]
    sound = set(ended["as it is"]) == {"right"}
    if options.json:
        print(json.dumps({"sound": sound, "errors": len(ERRORS), "found": len(found), "runs": ended}))
    else:
        print(f"{len(found)} of {len(ERRORS)} errors found; the kernel as it is is {'right' if sound else 'WRONG'}")
    return 0 if sound and len(found) == len(ERRORS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
