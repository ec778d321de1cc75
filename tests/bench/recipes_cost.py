# SPDX-License-Identifier: MIT
"""What `--pal-checkpoint auto` costs a submission: the means found in a fresh process, imports included, in ms.

    python tests/bench/recipes_cost.py --runs 40

Each process imports what palsub has imported anyway, then finds the means for a script; the least and the median.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import median

SCRIPTS = {
    "no program of a recipe": "#!/bin/bash\nmodule load x\nsrun python3 train.py --steps 1000\n",
    "transparent": "#!/bin/bash\nmodule load x\npython3 train.py --steps 1000\n",
    "gromacs": "#!/bin/bash\nmodule load gromacs\nsrun gmx mdrun -s topol.tpr -deffnm run -cpi\n",
}
ONE = """
import sys, time
from slurm_pal.base.config import Config
from slurm_pal.submit import asked as _, checkpoint, known, options, planner, run_sbatch, submission
from slurm_pal.submit.argv import no_site_options, parse
from slurm_pal.submit.choice import choice, moving
from slurm_pal.submit.script import scan
body = sys.argv[1].encode()
line, config = parse(["--pal-checkpoint=auto", "job.sh"], no_site_options), Config()
if sys.argv[2] == "transparent":
    config.set("submit", "checkpoint_images", "/tmp", "bench")
    config.set("submit", "criu", "/bin/true", "bench")
script = scan(body)._replace(body=body)
asked = moving(choice(line), {}, (), [])
start = time.perf_counter()
from slurm_pal.submit import auto_checkpoint
among = auto_checkpoint.wanted(asked, line, {}, script, config)
found = auto_checkpoint.found(asked, line, {}, script, config, False, among, [])
print(time.perf_counter() - start, found.name)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    for name, text in SCRIPTS.items():
        argv = [sys.executable, "-I", "-c", ONE, text, name]
        rows = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() for _ in range(runs)]
        times = [float(row[0]) * 1e3 for row in rows]
        print(f"{name}: {min(times):.2f} ms at least, median {median(times):.2f} ms ({' '.join(rows[0][1:])})")


if __name__ == "__main__":
    main()
