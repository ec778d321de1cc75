# SPDX-License-Identifier: MIT
"""The examples of docs/frameworks.md, moved by the real tick, by a Python with the frameworks: make test-frameworks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base import marks

from .test_rebalance import Site, site, started

__all__ = ["site", "started"]

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("PAL_FRAMEWORKS_PYTHON", str(ROOT / ".venv" / "frameworks" / "bin" / "python"))
EXAMPLES = ROOT / "docs" / "examples" / "frameworks"

pytestmark = [
    pytest.mark.real_slurm,
    pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"no frameworks at {PYTHON}: make test-frameworks"),
]


def needs(*modules: str) -> None:
    """Skip where one of these is not installed."""
    code = f"import importlib.util, sys; sys.exit(sum(importlib.util.find_spec(m) is None for m in {modules}))"
    if subprocess.run([PYTHON, "-c", code], check=False).returncode:
        pytest.skip(f"{PYTHON} lacks one of {', '.join(modules)}")


def rows(site: Site) -> list[str]:
    path = site.home / "steps.csv"
    return path.read_text().splitlines() if path.exists() else []


def said_by(site: Site, number: int) -> str:
    return (site.home / f"out-{number}").read_text()


def moved(site: Site, number: int, full: dict[str, int]) -> None:
    """Wait until it trains, free better GPUs, and wait until it trains there."""
    with site.daemon():
        site.client.cancel([full["n2"]])
        job = site.until(number, lambda job: job.state == "RUNNING" and job.restarts == 1)
        move = site.ended()
        assert (job.nodes, move.outcome, move.checkpoint) == (("n2",), "moved", True), move


def trained(site: Site, signal_name: str, script: str, *words: str) -> int:
    """A job of this script on slow GPUs, moved, and its end."""
    full = site.fill("n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "--pal-checkpoint", signal_name, *words, script=script)
    site.running(number)
    site.wait(lambda: len(rows(site)) > 5)
    moved(site, number, full)
    job = site.until(number, lambda job: job.state not in ("RUNNING", "COMPLETING"))
    assert job.state == "COMPLETED", said_by(site, number)
    assert int(marks.read(job.comment, marks.PROGRESS)["it"]) > 0
    return number


def check_steps(site: Site, total: int, *, same: bool = True) -> None:
    """Every step is there; those that were done again gave the same, where their samples were."""
    found: dict[int, set[str]] = {}
    for row in rows(site):
        step, _, loss = row.partition(",")
        found.setdefault(int(step), set()).add(loss)
    assert sorted(found) == list(range(total))
    assert not same or all(len(losses) == 1 for losses in found.values())
    assert len(rows(site)) < 1.5 * total  # not from the start


TORCHRUN = "-m torch.distributed.run --nnodes=1 --nproc-per-node=2 --master-port=29519"


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "srun torchrun"])
def test_ranks_of_torch_save_in_one_step(launcher: str, site: Site) -> None:
    needs("torch")
    program = f"{EXAMPLES}/torch_loop.py --steps 300 --pause 0.05"
    line = {
        "srun": f"srun -n2 {PYTHON} {program}",
        "torchrun": f"{PYTHON} {TORCHRUN} {program}",
        "srun torchrun": f"srun -n1 -c2 env --ignore-signal=USR1 {PYTHON} {TORCHRUN} {program}",
    }[launcher]
    number = trained(site, "USR1", f"#!/bin/bash\n{line}\n", "-n2")
    check_steps(site, 300)
    lines = [line for line in said_by(site, number).splitlines() if line.startswith(("from", "saved"))]
    assert lines[0] == "from step 0" and len(lines) == 3 and lines[1].replace("saved", "from") == lines[2]


@pytest.mark.parametrize("launcher", ["srun", "srun torchrun"])
def test_ranks_on_two_nodes_save_in_one_step(launcher: str, site: Site) -> None:
    """One of the two is slow: the job goes to another pair of nodes, and all ranks go on from one step."""
    needs("torch")
    program = f"{EXAMPLES}/torch_loop.py --steps 300 --pause 0.05"
    found = "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29521 --rdzv-id=$SLURM_JOB_ID.$SLURM_RESTART_COUNT"
    torchrun = f"-m torch.distributed.run --nnodes=2 --nproc-per-node=1 {found}"
    line = {
        "srun": f"srun -N2 -n2 {PYTHON} {program}",
        "srun torchrun": f"srun -N2 -n2 env --ignore-signal=USR1 {PYTHON} {torchrun} {program}",
    }[launcher]
    full = site.fill("n2", "n3")
    number = site.palsub(
        "-N2", "--ntasks-per-node=1", "--gres=gpu:1", "--pal-checkpoint", "USR1", script=f"#!/bin/bash\n{line}\n"
    )
    assert site.running(number).nodes == ("n0", "n1")
    site.wait(lambda: len(rows(site)) > 5)
    with site.daemon():
        site.client.cancel([full["n2"]])
        job = site.until(number, lambda job: job.state == "RUNNING" and job.restarts == 1)
        move = site.ended()
        assert (job.nodes, move.outcome, move.checkpoint) == (("n1", "n2"), "moved", True), move
    job = site.until(number, lambda job: job.state not in ("RUNNING", "COMPLETING"))
    assert job.state == "COMPLETED", said_by(site, number)
    check_steps(site, 300)
    lines = [line for line in said_by(site, number).splitlines() if line.startswith(("from", "saved"))]
    assert lines[0] == "from step 0" and len(lines) == 3 and lines[1].replace("saved", "from") == lines[2]


@pytest.mark.parametrize("tasks", [1, 2])
def test_lightning_saves_and_does_not_requeue_itself(tasks: int, site: Site) -> None:
    """Its own signal connector is at work, with a requeue on SIGUSR1."""
    needs("pytorch_lightning")
    line = f"MASTER_ADDR=127.0.0.1 srun {PYTHON} {EXAMPLES}/lightning_fit.py 200 0.05"
    number = trained(site, "USR2", f"#!/bin/bash\n{line}\n", f"--ntasks-per-node={tasks}", "--job-name=train")
    check_steps(site, 200, same=False)  # Lightning begins a loader anew in the middle of an epoch
    said = said_by(site, number)
    assert said.count("resume None") == 1 and said.count("resume last.ckpt") == 1 and "ended at 200" in said


def test_the_trainer_of_hugging_face_saves_whatever_its_strategy_is(site: Site) -> None:
    needs("transformers", "accelerate")
    number = trained(site, "USR1", f"#!/bin/bash\n{PYTHON} {EXAMPLES}/hf_trainer.py 200 0.05\n")
    said = said_by(site, number)
    (resumed,) = [line for line in said.splitlines() if line.startswith("resume run/checkpoint-")]
    assert said.count("resume None") == 1 and "ended at 200" in said
    assert len(rows(site)) - 200 < 100 and 0 < int(resumed.rpartition("-")[2]) < 200


def submitted(site: Site, steps: int) -> int:
    folder = site.home / "bin"
    folder.mkdir()
    (folder / "palsub").symlink_to(Path(sys.executable).parent / "palsub")
    env = site.user | {"PATH": f"{folder}:{site.user['PATH']}", "SLURM_PAL_CLASS": "A"}
    argv = [PYTHON, str(EXAMPLES / "submitit_jobs.py"), str(steps), "0.05"]
    done = subprocess.run(argv, env=env, cwd=site.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number = int(done.stdout)
    site.running(number)
    site.wait(lambda: len(rows(site)) > 5)
    return number


def check_count(site: Site, steps: int) -> None:
    """Each step once and in order, from where the second run began."""
    told = rows(site)
    second = next(k for k, row in enumerate(told) if row.startswith("run 1"))
    assert told[0] == "run 0 0" and int(told[second].split()[2]) > 0
    assert [row for row in told if row.startswith("step")] == [f"step {k}" for k in range(steps)]


def test_submitit_saves_and_leaves_the_requeue_to_the_mover(site: Site) -> None:
    needs("submitit")
    full = site.fill("n1", "n2", "n3")
    number = submitted(site, 300)
    moved(site, number, full)
    job = site.until(number, lambda job: job.state not in ("RUNNING", "COMPLETING"))
    assert (job.state, job.restarts) == ("COMPLETED", 1)
    check_count(site, 300)


def test_the_signal_of_a_time_limit_is_still_submitits_own(site: Site) -> None:
    needs("submitit")
    number = submitted(site, 200)
    subprocess.run(["scancel", "--signal=USR2", str(number)], check=True)
    job = site.until(number, lambda job: job.state == "COMPLETED")
    assert job.restarts == 1 and not site.moves()
    check_count(site, 200)


def test_submitits_function_goes_on_where_no_requeue_comes(site: Site) -> None:
    needs("submitit")
    number = submitted(site, 100)
    subprocess.run(["scancel", "--batch", "--signal=USR1", str(number)], check=True)
    job = site.until(number, lambda job: job.state not in ("RUNNING", "COMPLETING"))
    assert (job.state, job.restarts) == ("COMPLETED", 0)
    assert marks.read(job.comment, marks.ACK) == {marks.ACK: "0.1"}
    assert rows(site) == ["run 0 0", *(f"step {k}" for k in range(100))]
