# SPDX-License-Identifier: MIT
"""One training on one node, and forked over five unequal ones, on a real Slurm: time by the steps done, and the loss.

Usage: fork_live.py [--steps 60000] [--round 30] [--speeds 1,1,.42,.42,.18] [--copies 0,5]. docs/examples/fork, in a lab
of five nodes with one emulated GPU each. A step takes 10 ms on the fastest node, by a pause: all share this machine's
processors. With 0 copies it is the same training in one process without rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "fork"
STEP_S = 0.01
JOB = """#!/bin/bash
#SBATCH --gres=gpu:1 --time=60
declare -A pause=({pauses})
date +%s.%N > began-$SLURM_JOB_ID
if [ "$COPIES" = 0 ]; then
  mkdir result
  {python} {example}/train.py --save result --steps {steps} --pause "${{pause[$SLURMD_NODENAME]}}"
else
  while part=$({pal} fork next --steps {steps} --round {round} --merge '{python} {example}/merge.py'); do
    eval "$part"
    {python} {example}/train.py --load "$PAL_FORK_FROM" --save "$PAL_FORK_TO" --steps "$PAL_FORK_STEPS" \\
      --pause "${{pause[$SLURMD_NODENAME]}}" | sed "s/^/$SLURMD_NODENAME /" >> parts || exit
  done
  [ "$SLURM_PAL_ROLE" = base ] || exit 0
  cp -r "$({pal} fork result)" result
fi
date +%s.%N > ended
{python} -c "import sys, numpy as np; sys.path.insert(0, '{example}'); import train; \\
print(train.tested(dict(np.load('result/model.npz'))))" > loss
"""


def ran(lab: Lab, root: Path, copies: int, script: str) -> dict[str, object]:
    home = root / f"copies-{copies}"
    home.mkdir()
    (home / "job.sh").write_text(script)
    env = lab.environ() | {"COPIES": str(copies), "XDG_STATE_HOME": str(home / "xdg")}
    words = [f"--pal-fork={copies}"] if copies else []
    done = subprocess.run(
        [program("palsub"), "--parsable", *words, "job.sh"],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    job = done.stdout.strip()
    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(1.0)
    seconds = float((home / "ended").read_text()) - float((home / f"began-{job}").read_text())
    steps: dict[str, int] = {}
    for line in (home / "parts").read_text().splitlines() if copies else []:
        found = re.match(r"(\w+) (\d+) steps", line)
        if found:
            steps[found[1]] = steps.get(found[1], 0) + int(found[2])
    said = "".join(path.read_text() for path in home.glob("slurm-*")).count("pal fork:")
    loss = float((home / "loss").read_text())
    return {"copies": copies, "seconds": round(seconds, 1), "loss": round(loss, 4), "steps": steps, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60000)
    parser.add_argument("--round", type=float, default=30.0)
    parser.add_argument("--speeds", default="1,1,.42,.42,.18")
    parser.add_argument("--copies", default="0,5")
    given = parser.parse_args()
    speeds = [float(word) for word in given.speeds.split(",")]
    pauses = " ".join(f"[n{k}]={STEP_S / speed:.4f}" for k, speed in enumerate(speeds))
    script = JOB.format(
        pauses=pauses, example=EXAMPLE, steps=given.steps, round=given.round, pal=program("pal"),
        python=os.path.join(os.path.dirname(program("pal")), "python"),
    )  # fmt: skip
    root = Path(tempfile.mkdtemp(prefix="pal"))
    try:
        with Lab.up(str(root / "lab"), nodes=len(speeds), gpus=1, seed=1) as lab:
            for copies in map(int, given.copies.split(",")):
                print(json.dumps(ran(lab, root, copies, script)), flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
