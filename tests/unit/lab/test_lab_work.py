# SPDX-License-Identifier: MIT
"""The payload `pal lab work`: which GPUs it counts, how long it takes, how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError, SlurmError, UsageError
from slurm_pal.emulation import gpus
from slurm_pal.emulation.gpus import EmuGpu, Registry
from slurm_pal.lab import payload
from slurm_pal.slurm.client import Completed

LINE = (
    "JobId={job} ArrayJobId=12 JobState=RUNNING NodeList=n[0-1] Nodes=n0 CPU_IDs=0 Mem=500 GRES=gpu:2(IDX:0,2) "
    "Nodes=n1 CPU_IDs=0 Mem=500 GRES={gres} MinCPUsNode=1 Comment=(null)"
)


def no_slurm(argv: Sequence[str], stdin: str) -> Completed:
    raise AssertionError("a job on one node needs no Slurm command")


@pytest.fixture
def inside(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on node n0 of a lab of two nodes with three GPUs each."""
    truth = {("n0", 2): 1.2, ("n1", 1): 1.5}
    registry = Registry(
        EmuGpu(n, i, f"{n}.{i}", "M", {"A": truth.get((n, i), 1.0), "B": 1.1, "C": 1.0}, {})
        for n in ("n0", "n1")
        for i in range(3)
    )
    gpus.write_registry(str(tmp_path / gpus.FILE_NAME), registry)
    return {"SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n0"}


@pytest.mark.parametrize(
    ("variables", "held", "slowdown"),
    [
        ({"SLURM_JOB_GPUS": "0,1"}, (0, 1), 1.0),
        ({"SLURM_JOB_GPUS": "1-2"}, (1, 2), 1.2),
        ({"SLURM_JOB_GPUS": "0,1,2", "SLURM_STEP_GPUS": "1"}, (1,), 1.0),
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_NUM_NODES": "1"}, (2,), 1.2),
    ],
)
def test_on_one_node_the_environment_tells(
    inside: dict[str, str], variables: dict[str, str], held: tuple[int, ...], slowdown: float
) -> None:
    planned = payload.plan(inside | variables, "A", 10.0, 1.7, no_slurm)
    assert planned == payload.PayloadPlan(12, "A", {"n0": held}, slowdown, 1.0, 10.0 * slowdown)


def test_a_class_feels_its_own_slowdown_and_the_drift(inside: dict[str, str]) -> None:
    alone = inside | {"SLURM_JOB_GPUS": "2"}
    assert payload.plan(alone, "B", 10.0, 1.7, no_slurm).slowdown == 1.1
    gpus.set_fault(str(gpus.find_registry(inside)), "n0", 2, "drift", 2.0)
    assert payload.plan(alone, "A", 10.0, 1.7, no_slurm).slowdown == pytest.approx(2.4)


def test_on_several_nodes_slurm_tells(inside: dict[str, str]) -> None:
    asked: list[list[str]] = []

    def runner(argv: Sequence[str], stdin: str) -> Completed:
        asked.append(list(argv))
        lines = [LINE.format(job=11, gres="gpu:1(IDX:0)"), LINE.format(job=12, gres="gpu:2(IDX:0-1)")]
        return Completed(0, "\n".join(lines) + "\n", "")

    wide = inside | {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "0"}
    planned = payload.plan(wide, "A", 10.0, 2.0, runner)
    assert planned == payload.PayloadPlan(12, "A", {"n0": (0, 2), "n1": (0, 1)}, 1.5, 2.0, 30.0)
    assert asked == [["scontrol", "show", "job", "-d", "-o", "12"]]


def test_a_job_on_several_nodes_feels_the_labs_network(inside: dict[str, str]) -> None:
    wide = inside | {"SLURM_JOB_NUM_NODES": "2"}
    answer = Completed(0, LINE.format(job=12, gres="gpu:1(IDX:0)"), "")
    assert payload.plan(wide, "A", 10.0, None, lambda *_: answer).locality == gpus.LOCALITY_PENALTY
    path = str(gpus.find_registry(inside))
    registry = gpus.load_registry(path)
    registry.network = (gpus.EmuSwitch(3.0, ("n0", "n1")), gpus.EmuSwitch(2.5, ("n0",)))
    gpus.write_registry(path, registry)
    gpus.set_fault(path, "n0", 0, "noisy")
    assert payload.plan(wide, "A", 10.0, None, lambda *_: answer).locality == 3.0, "a change of a GPU keeps it"
    assert gpus.load_registry(path).across(("n0",)) == 1.0 and gpus.load_registry(path).across(("n0", "n9")) == 3.0


def test_nodes_without_gpus_do_not_count_as_spread(inside: dict[str, str]) -> None:
    wide = inside | {"SLURM_JOB_NUM_NODES": "2"}
    planned = payload.plan(wide, "A", 10.0, 2.0, lambda *_: Completed(0, LINE.format(job=12, gres=""), ""))
    assert (planned.gpus, planned.locality) == ({"n0": (0, 2)}, 1.0)


def test_slurm_that_does_not_answer(inside: dict[str, str]) -> None:
    wide = inside | {"SLURM_JOB_NUM_NODES": "2"}
    with pytest.raises(SlurmError, match="scontrol show job 12 failed: Unable to contact"):
        payload.plan(wide, "A", 1.0, 1.7, lambda *_: Completed(1, "", "Unable to contact slurm controller\n"))


@pytest.mark.parametrize(
    ("change", "arguments", "complaint"),
    [
        ({"SLURM_JOB_ID": ""}, ("A", 1.0, 1.7), "not inside a Slurm job: submit it"),
        ({"SLURM_CONF": "/nonexistent/slurm.conf"}, ("A", 1.0, 1.7), "does not run in a lab"),
        ({}, ("A", 1.0, 1.7), "job 12 holds no GPUs: ask for some, like --gres=gpu:1"),
        ({"SLURM_JOB_GPUS": "N/A"}, ("A", 1.0, 1.7), "holds no GPUs"),
        ({"SLURM_JOB_GPUS": "7"}, ("A", 1.0, 1.7), "no GPU n0:7"),
        ({"SLURM_JOB_GPUS": "0"}, ("Z", 1.0, 1.7), "--class 'Z' is not one of A, B, C"),
        ({"SLURM_JOB_GPUS": "0"}, ("A", -1.0, 1.7), "--seconds -1 must be at least 0"),
        ({"SLURM_JOB_GPUS": "0"}, ("A", float("nan"), 1.7), "--seconds nan"),
        ({"SLURM_JOB_GPUS": "0"}, ("A", 1.0, 0.5), "--locality-penalty 0.5 must be at least 1"),
    ],
)
def test_what_cannot_be_done_is_said(
    inside: dict[str, str], change: dict[str, str], arguments: tuple[str, float, float], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        payload.plan(inside | change, *arguments, no_slurm)


PLAN = payload.PayloadPlan(12, "A", {"n0": (0, 2), "n1": (1,)}, 1.5, 1.7, 25.5)


def test_the_record_and_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "time", lambda: clock[0] + 1000.0)
    # A sleep that ends early: the work still takes its time.
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + max(seconds / 2, 1e-3)))
    before = signal.getsignal(signal.SIGTERM)
    record = payload.work(PLAN)
    assert signal.getsignal(signal.SIGTERM) is before
    assert record["started_s"] == 1100.0
    assert 25.5 <= clock[0] - 100.0 < 25.6
    assert record["ended_s"] == pytest.approx(clock[0] + 1000.0, abs=1e-3)
    assert {key: record[key] for key in ("schema", "job_id", "class", "gpus", "slowdown", "locality", "seconds")} == {
        "schema": "pal.work/1",
        "job_id": 12,
        "class": "A",
        "gpus": {"n0": [0, 2], "n1": [1]},
        "slowdown": 1.5,
        "locality": 1.7,
        "seconds": 25.5,
    }
    assert payload.describe(record) == "job 12 class A on n0:0,2 n1:1: slowdown 1.5 x locality 1.7 = 25.5 s"


def test_sigterm_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(time, "sleep", terminated)
    with pytest.raises(SystemExit) as ended:
        payload.work(PLAN)
    assert ended.value.code == 143


def test_a_checkpoint_is_written_at_its_signal_and_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = [0.0], list[tuple[int, int]]()
    saving = payload.Saving(
        str(tmp_path / "saved"), 100, lambda step, total: told.append((step, total)), str(tmp_path / "ack")
    )
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if 12.0 <= clock[0] < 12.0 + seconds:
            os.kill(os.getpid(), signal.SIGUSR1)
        if clock[0] >= 15.0:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(time, "sleep", sleep)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit):
        payload.work(PLAN, saving)
    assert signal.getsignal(signal.SIGUSR1) is before and os.path.exists(saving.acknowledge)
    share = float((tmp_path / "saved").read_text())
    assert share == pytest.approx(12.0 / 25.5, abs=0.01)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    clock[0] = 100.0
    record = payload.work(PLAN, saving)
    assert record["resumed"] == pytest.approx(share, abs=1e-6)
    assert clock[0] - 100.0 == pytest.approx(25.5 * (1 - share), abs=0.2)
    assert told[0] == (0, 100) and told[1][0] > 35 and told[-1][0] > told[1][0]


def test_a_checkpoint_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("half\n")
    with pytest.raises(DataError, match="cannot be read"):
        payload.work(PLAN, payload.Saving(str(tmp_path / "saved")))
