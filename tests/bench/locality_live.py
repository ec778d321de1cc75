# SPDX-License-Identifier: MIT
"""Locality penalties on a real slurmctld: what a lab's network costs in truth, and what is learnt of it.

    python tests/bench/locality_live.py --seeds 3

A lab of 8 nodes with 12 GPUs on two leaves, whose network slows work by PENALTIES. A sweep measures the GPUs and
pairs of nodes (`pal-profile run`, `pal-profile network`); jobs of three names, which feel the network more or less,
run on one node, on one leaf and on both, and report their steps; pal-rebalance looks at them. At the end of each
seed: for each name the penalties in the user's file against the truth, and the same if jobs had only been seen on one
node and on one leaf, where the all-reduces must say the rest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

from slurm_pal.base import config as settings
from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.moves.learning import corrections, work_of
from slurm_pal.placement.penalties import expected
from slurm_pal.store import localities, user_files
from slurm_pal.store.localities import LOCALITIES
from slurm_pal.store.snapshot import read

PROGRAMS = Path(sys.executable).parent
NODES, GPUS, PENALTIES = 8, 12, (4.0, 10.0)
LEAVES = "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=core Switches=a,b\n"
SHARES = {"talks-little": 0.02, "talks": 0.1, "talks-much": 0.25}
"""Job name -> share of an iteration in communication within a node."""
PLACES = {0: ("n0", "n1", "n5"), 1: ("n0,n2", "n1,n3", "n4,n6"), 2: ("n2,n5", "n3,n4", "n1,n7")}
STEPS, STEP_S, TICK_S = 4000, 0.05, 12.0
REPORTED_S = 80.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    errors: dict[str, list[float]] = {"steps": [], "all-reduces": [], "one level and all-reduces": []}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "topology.conf").write_text(LEAVES)
            with Lab.up(
                f"{folder}/lab", nodes=NODES, gpus=GPUS, seed=seed, topology=f"{folder}/topology.conf",
                locality_penalties=PENALTIES,
            ) as lab:  # fmt: skip
                one_seed(lab, seed, errors)
    for what, found in errors.items():
        print(f"{what}: {len(found)} penalties, mean error {fmean(found):.2%}, largest {max(found):.2%}")


def one_seed(lab: Lab, seed: int, errors: dict[str, list[float]]) -> None:
    run(lab, "pal-profile", "run", "--yes", "--wall-scale", "0", "--seed", str(seed))
    run(lab, "pal-profile", "network", "--yes", "--wall-scale", "0", "--seed", str(seed))
    config = settings.load(lab.environ())
    scores = read(config.snapshot_path)
    print(f"seed {seed}: all-reduces {scores.network} (true: {PENALTIES})", flush=True)
    errors["all-reduces"] += [abs(scores.network[k + 1] / true - 1.0) for k, true in enumerate(PENALTIES)]
    jobs = 0
    for name, share in SHARES.items():
        for level, places in PLACES.items():
            for nodes in places:
                jobs += 1
                penalty = 1.0 if not level else 1.0 + share * (PENALTIES[level - 1] - 1.0)
                count = 1 + nodes.count(",")
                submit(lab, name, nodes, count, f"--locality-penalty={penalty:g} --steps={STEPS}")
    while jobs_left(lab, "PD") > 0:
        time.sleep(1.0)
        run(lab, "pal-rebalance", "--once", "--act")
        time.sleep(TICK_S)
    deadline_s = time.monotonic() + REPORTED_S
    while time.monotonic() < deadline_s:
        run(lab, "pal-rebalance", "--once", "--act")
        time.sleep(TICK_S)
    path = LOCALITIES.path_of(user_files.site_folder(config.snapshot_path), os.geteuid())
    told = localities.read(path)
    with open_journal(os.path.join(config.state_dir, "rebalance.db"), write=False) as journal:
        seen = journal.observations(0.0)
    near = corrections(
        [one for one in seen if one.level < 2], scores, expected=expected(1.7, scores.network), ratios=scores.network
    )
    guessed = {work_of(key)[1]: penalties for key, penalties in near.penalties.items()}
    for name, share in SHARES.items():
        true = [1.0 + share * (penalty - 1.0) for penalty in PENALTIES]
        found, other = told[localities.key_of(name, 2)].penalties, guessed[name]
        errors["steps"] += [abs(x / y - 1.0) for x, y in zip(found, true, strict=True)]
        errors["one level and all-reduces"] += [abs(other[1] / true[1] - 1.0)]
        print(f"  {name}: {text(found)} of {text(true)}; level 2 not seen: {text(other)}", flush=True)
    subprocess.run(["scancel", "--me"], env=lab.environ(), check=True)


def text(penalties: object) -> str:
    return ", ".join(f"{factor:.3f}" for factor in penalties)  # type: ignore[attr-defined]


def submit(lab: Lab, name: str, nodes: str, count: int, words: str) -> None:
    work = f"{PROGRAMS}/pal lab work --class A --seconds {STEPS * STEP_S:g} {words}"
    shape = ["--gres=gpu:2"] if count == 1 else ["-N2", "--gres=gpu:1"]
    argv = [
        "palsub", "--pal-class=A", "--parsable", "-J", name, "-w", nodes, *shape, "-t", "60",
        "-o", "/dev/null", "--wrap", work,
    ]  # fmt: skip
    run(lab, *argv)


def run(lab: Lab, program: str, *words: str) -> str:
    done = subprocess.run(
        [PROGRAMS / program, *words], env=lab.environ(), capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{program} {' '.join(words)}: {done.stderr}")
    return done.stdout


def jobs_left(lab: Lab, state: str) -> int:
    done = subprocess.run(
        ["squeue", "-h", "--me", "-t", state], env=lab.environ(), capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines())


if __name__ == "__main__":
    main()
