# SPDX-License-Identifier: MIT
"""Data frames: columns as documented, the values of each source, what is missing, and no pandas before a call."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from slurm_pal import frames
from slurm_pal.base import config as settings
from slurm_pal.base import state as state_of_user
from slurm_pal.base.errors import DataError, SlurmError, UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.case import Decision
from slurm_pal.decide.offer import Gpu, Offer
from slurm_pal.frames import measured, moved, replays, site, submitted
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, TRUTH, Column, frame
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Move, Observation, open_journal
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.sweep import sweep_state
from slurm_pal.profiling.sweep.lock import only_sweep
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.sweep_job import JobOptions
from slurm_pal.sensitivity.cascade import Verdict
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store.database import open_database
from slurm_pal.store.snapshot import GpuScore, publish
from slurm_pal.submit import decision

from ...doubles.fake_commands import in_process
from ...doubles.records_factory import NOW_S, record

DOCS = Path(__file__).parents[3] / "docs" / "frames.md"
NO_RUN = Replay("packed", "fifo", 1, 4, (), Timeline((), (), ()), 0.0, 0, 0.0, 0.0)
ALL: dict[str, tuple[Callable[[], pd.DataFrame], Sequence[Column]]] = {
    "gpus": (frames.gpus, site.GPUS),
    "records": (frames.records, measured.RECORDS),
    "sweeps": (frames.sweeps, measured.SWEEPS),
    "jobs": (frames.jobs, submitted.JOBS),
    "moves": (frames.moves, moved.MOVES),
    "replay": (lambda: frames.replay(NO_RUN), replays.OUTCOMES),
}
SCORES = [
    GpuScore("n1", 0, "GPU-0", "H100", {"A": 0.975, "B": 1.0, "C": 1.0}, dict.fromkeys("ABC", "v0"), NOW_S - 60.5, 1.0,
             ()),
    GpuScore("n1", 1, "GPU-1", "H100", {"A": 1.25}, {"A": "v1", "B": "?", "C": "?"}, NOW_S - 50.0, 1.0,
             ("outlier", "ecc")),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm without nodes, and state folders with nothing in them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "slurm.conf").write_text("ClusterName=lab\n")
    (tmp_path / "state").mkdir()
    write_shims(str(tmp_path / "bin"), str(tmp_path / "fake.json"))
    in_process(monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    return tmp_path


@pytest.fixture
def published(folder: Path) -> Path:
    publish(settings.load().snapshot_path, SCORES, cluster="lab", epoch=1, now_s=NOW_S)
    return folder


def slurm_is_gone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in os.listdir(folder / "bin"):
        (folder / "bin" / name).unlink()
    monkeypatch.setenv("PATH", str(folder / "bin"))


def at(seconds: float) -> pd.Timestamp:
    return pd.Timestamp(round(seconds * 1e6), unit="us", tz="UTC")


def plain(row: pd.Series[Any]) -> dict[str, Any]:
    """The values of a row that are there."""
    return {str(name): value for name, value in row.items() if not pd.isna(value)}


# -- all of them --------------------------------------------------------------------------


def test_pandas_is_imported_by_the_first_call_only() -> None:
    code = (
        "import sys; from slurm_pal import frames; assert 'pandas' not in sys.modules; "
        "from slurm_pal.simulate.result import Replay, Timeline; "
        "frames.replay(Replay('p', 'q', 1, 1, (), Timeline((), (), ()), 0, 0, 0, 0)); assert 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


@pytest.mark.parametrize("name", ALL)
def test_before_anything_is_known_columns_and_dtypes_are_there(
    published: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, declared = ALL[name]
    publish(settings.load().snapshot_path, [], cluster="lab", epoch=1, now_s=NOW_S)
    if name == "gpus":
        slurm_is_gone(monkeypatch, published)
        with pytest.warns(frames.MissingWarning, match="showing the snapshot only"):
            found = make()
    else:
        found = make()
    assert found.empty and list(found.columns) == [column.name for column in declared]
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == {c.name: c.dtype for c in declared}
    for column in declared:
        if column.dtype == CATEGORY:
            assert tuple(found[column.name].cat.categories) == column.words
            assert found[column.name].cat.ordered == column.ordered


@pytest.mark.parametrize("name", ALL)
def test_documents_say_what_the_columns_are(name: str) -> None:
    declared = ALL[name][1]
    section = DOCS.read_text().partition(f"\n### {name}(")[2].partition("\n##")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(c.name, c.dtype, c.meaning) for c in declared]
    told = getattr(frames, name).__doc__
    for column in declared:
        assert re.search(rf"^ +{column.name} +{re.escape(f'{column.dtype}: {column.meaning}')}$", told, re.MULTILINE)


@pytest.mark.parametrize("name", ALL)
def test_names_tell_times_and_units(name: str) -> None:
    units = {"_s": "(s)", "_w": "(W)", "_gib": "(GiB)", "_mhz": "(MHz)", "_gpu_h": "(GPU-hours)", "_pct": "(%)"}
    for column in ALL[name][1]:
        assert (column.dtype == TIME) == column.name.endswith("_time")
        for ending, unit in units.items():
            assert column.name.endswith(ending) <= (unit in column.meaning), column


def test_values_of_every_dtype() -> None:
    declared = [Column(dtype, dtype, "") for dtype in (TEXT, COUNT, NUMBER, TRUTH, TIME)]
    declared.append(Column("kind", CATEGORY, "", ("low", "high"), True))
    rows = [
        ("esc\x1b[31m\n", 3, 1, True, NOW_S + 0.25, "high"),
        (None, None, None, None, None, None),
        ("", 2**70, 10**400, 1, 1e300, ""),  # what a record of another's may hold
        ("x", True, float("nan"), None, 0.0, "odd"),
        (5, "3", "1.5", "yes", "soon", 7),
    ]
    found = frame(declared, rows)
    assert list(found[TEXT]) == ["esc\\x1b[31m\\x0a", pd.NA, "", "x", "5"]
    assert list(found[COUNT]) == [3, *[pd.NA] * 4] and list(found[NUMBER]) == [1.0, *[pd.NA] * 4]
    assert list(found[TRUTH]) == [True, *[pd.NA] * 4]
    assert found[TIME][0] == at(NOW_S + 0.25) and found[TIME][1:].isna().all()
    assert list(found["kind"].cat.categories) == ["low", "high", "7", "odd"]  # nothing seen is lost
    assert list(found["kind"].isna()) == [False, True, True, False, False]


# -- gpus ---------------------------------------------------------------------------------


def test_gpus(published: Path) -> None:
    nodes = [FakeNode("n1", gpus=2), FakeNode("n2", gpus=1, gpu_type="a100")]
    write_shims(str(published / "bin"), str(published / "fake.json"), nodes)
    found = frames.gpus()
    assert list(zip(found["node"], found["index"], strict=True)) == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert plain(found.iloc[1]) == {
        "node": "n1", "index": 1, "uuid": "GPU-1", "model": "H100", "slowdown_A": 1.25, "class_A": "v1",
        "measured_time": at(NOW_S - 50), "in_use": False, "node_state": "IDLE", "flags": "outlier,ecc",
        "state": "ecc",
    }  # fmt: skip
    assert plain(found.iloc[2]) == {
        "node": "n2", "index": 0, "model": "a100", "in_use": False, "node_state": "IDLE", "flags": "never_measured",
        "state": "ok",
    }  # fmt: skip
    assert (found["class_A"] > "v0").tolist() == [False, True, False]


def test_gpus_without_slurm(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_is_gone(monkeypatch, published)
    with pytest.warns(frames.MissingWarning, match="showing the snapshot only: .*scontrol") as told:
        found = frames.gpus()
    assert told[0].filename == __file__  # the caller's place: a notebook shows it below each cell that asks
    assert found["in_use"].isna().all() and found["node_state"].isna().all() and len(found) == 2
    os.unlink(settings.load().snapshot_path)
    with pytest.warns(frames.MissingWarning), pytest.raises(SlurmError):
        frames.gpus()


# -- records and sweeps -------------------------------------------------------------------


def store(*runs: Any) -> None:  # noqa: ANN401 - records
    with open_database(settings.load().state_dir, write=True) as database:
        database.insert(runs, NOW_S)


def test_records(folder: Path) -> None:
    telemetry = {"sm_clk_mhz": {"p50": 1365.0}, "power_w": {"p5": 1.0}, "temp_c": 3}
    store(
        record("GPU-0", "n1", 1, ts=NOW_S - 7200, telemetry=telemetry, flags=("xid", "noisy"), serial="1"),
        record("GPU-1", "n2", 0, ts=NOW_S - 60, sensitivity="", valid=False, unit="us", mem_bytes=0),
    )
    found = frames.records()
    first, second = plain(found.iloc[0]), plain(found.iloc[1])
    assert {name: first.get(name) for name in (
        "uuid", "node", "index", "sweep", "start_time", "end_time", "sensitivity", "memory_gib", "power_limit_w",
        "bench", "value", "unit", "blocks", "block_s", "sm_clock_mhz", "power_w", "temperature_c", "job_id", "flags",
        "valid", "steady",
    )} == {
        "uuid": "GPU-0", "node": "n1", "index": 1, "sweep": "s1", "start_time": at(NOW_S - 7260),
        "end_time": at(NOW_S - 7200), "sensitivity": "A", "memory_gib": 16.0, "power_limit_w": 300.0,
        "bench": "gemm_bf16", "value": 250.0, "unit": "TFLOP/s", "blocks": 20, "block_s": 0.75, "sm_clock_mhz": 1365.0,
        "power_w": None, "temperature_c": None, "job_id": 7, "flags": "xid,noisy", "valid": True, "steady": True,
    }  # fmt: skip
    assert not {"sensitivity", "memory_gib"} & second.keys() and not second["valid"]


@pytest.mark.parametrize(
    "since",
    [
        NOW_S - 3600,
        datetime.datetime.fromtimestamp(NOW_S - 3600, datetime.UTC),
        pd.Timestamp(NOW_S - 3600, unit="s"),
        datetime.datetime.fromtimestamp(NOW_S - 3600, datetime.UTC).isoformat(),
        "2027-01-15",  # NOW_S is 08:00 UTC of that day
    ],
)
def test_records_since(folder: Path, since: Any) -> None:  # noqa: ANN401
    store(record("GPU-0", ts=NOW_S - 86400), record("GPU-1", ts=NOW_S - 60))
    assert list(frames.records(since)["uuid"]) == ["GPU-1"]


@pytest.mark.parametrize("since", ["yesterday", "", True, float("nan"), pd.NaT, [1]])
def test_a_since_that_is_no_moment(folder: Path, since: Any) -> None:  # noqa: ANN401
    for read in (frames.records, frames.moves):
        with pytest.raises(UsageError, match="must be a datetime, an ISO 8601 text"):
            read(since)


def test_a_damaged_database_is_told(folder: Path) -> None:
    (folder / "state" / "pal.db").write_bytes(b"x" * 4096)
    for read in (frames.records, frames.sweeps):
        with pytest.raises(DataError, match=r"pal\.db is damaged"):
            read()


def planned(number: int, **terms: Any) -> sweep_state.SweepDirectory:  # noqa: ANN401
    name = f"20270115-08000{number}-00000"
    job = JobOptions(name, "lab", "/d", "/s", "python3", Setting("emu"))
    chosen = tuple(ChosenNode(f"n{i}", 4, 0.0) for i in range(3))
    made = sweep_state.SweepTerms(job, NOW_S - 500 + number, 2, 60.0, chosen, {}, 90.0, **terms)
    return sweep_state.create(settings.load().state_dir, made)


def test_sweeps(folder: Path) -> None:
    ended, stopped, going = planned(1), planned(2), planned(3, window="20:00-06:00")
    for node in ended.nodes:
        ended.set(node, sweep_state.NodeState(sweep_state.DONE, gpus=4))
    stopped.set("n0", sweep_state.NodeState(sweep_state.FAILED))
    store(
        record("GPU-0", ts=NOW_S - 90, sweep=ended.sweep_id),
        record("GPU-1", ts=NOW_S - 60, sweep=ended.sweep_id),
        record("GPU-1", ts=NOW_S - 9e5, sweep="20200101-000000-00000"),
    )
    with only_sweep(settings.load().state_dir, going.sweep_id):
        assert frames.sweeps().set_index("sweep").loc[going.sweep_id, "state"] == "running"
        going.set_pause(sweep_state.Pause("outside of its window", NOW_S))
        found = frames.sweeps().set_index("sweep")
    assert list(found["state"].astype("string").fillna("gone")) == ["gone", "ended", "stopped", "paused"]
    assert plain(found.loc[ended.sweep_id]) == {
        "state": "ended", "created_time": at(NOW_S - 499), "first_time": at(NOW_S - 90), "last_time": at(NOW_S - 60),
        "backend": "emu", "mode": "concurrent", "nodes": 3, "nodes_todo": 0, "nodes_submitted": 0, "nodes_done": 3,
        "nodes_partial": 0, "nodes_failed": 0, "nodes_skipped": 0, "records": 2, "gpus": 2,
        "planned_gpu_h": pytest.approx(0.3), "max_parallel": 2,
    }  # fmt: skip
    paused = found.loc[going.sweep_id]
    assert (paused["window"], paused["pause"], paused["nodes_todo"]) == ("20:00-06:00", "outside of its window", 3)
    assert found.loc["20200101-000000-00000", "records"] == 1


def test_a_damaged_plan_is_told_and_the_other_sweeps_are_there(folder: Path) -> None:
    bad, good = planned(1), planned(2)
    Path(bad.path, "plan.json").write_text("{")
    with pytest.warns(frames.MissingWarning, match="plan.json"):
        found = frames.sweeps()
    assert list(found["sweep"]) == [bad.sweep_id, good.sweep_id] and list(found["state"].isna()) == [True, False]


# -- jobs ---------------------------------------------------------------------------------


def job(number: int, state_: str = "RUNNING", **changes: Any) -> SlurmJob:  # noqa: ANN401
    made = SlurmJob(
        job_id=number, state=state_, reason="None", user="anna", name="train", partition="gpu", gpus={}, nodes=(),
        req_nodes=(), exc_nodes=(), submit_s=NOW_S - 1000, start_s=NOW_S - 900, end_s=NOW_S + 900, time_limit_s=1800,
        restarts=0, comment="", gpus_per_node=2,
    )  # fmt: skip
    return made._replace(**changes)


def decided(number: int, made_s: float = NOW_S - 1001) -> None:
    offer = Offer((Gpu("n1", 0, 0.98, "v0", NOW_S - 7200, ()),), 0.98, 1.0)
    decision.save(
        decision.record(
            Decision("nodelist", "faster GPUs are free", ("--nodelist=n1",), chosen=offer, lease_s=60.0),
            cluster=state_of_user.cluster_key(), now_s=made_s, known=Verdict("A", "word", 1.0, "--pal-class"),
            policy="class-fit", argv=["sbatch"], snapshot=None, warnings=[],
        ) | {"job_id": number}
    )  # fmt: skip


def slurm_shows(monkeypatch: pytest.MonkeyPatch, *jobs: SlurmJob) -> None:
    monkeypatch.setattr(submitted, "connect", lambda config, timeout_s: SimpleNamespace(jobs=lambda: jobs))


def test_jobs_placed_by_palsub_by_the_filter_and_by_nobody(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(1)
    mark = "pal:class=C;from=history;act=exclude;set=n2;why=slow;slow=1.031;lease=90;epoch=3"
    slurm_shows(
        monkeypatch,
        job(1, gpus={"n1": (0, 1)}, nodes=("n1",), comment="pal:obs=B;c=0.90;s=60;at=1799999000"),
        job(2, gpus={"n1": (0,), "n9": (3,)}, nodes=("n1", "n9"), admin_comment=mark),
        job(3, "PENDING", reason="Resources", name="=1\x1b", time_limit_s=None),
        job(4, "COMPLETED", end_s=NOW_S - 10, nodes=("n1",), gpus_given=3),
    )
    by_palsub, by_filter, waiting, ended = (plain(row) for _, row in frames.jobs().iterrows())
    assert by_palsub == {
        "job_id": 1, "user": "anna", "name": "train", "partition": "gpu", "state": "RUNNING", "sensitivity": "A",
        "sensitivity_source": "word", "sensitivity_confidence": 1.0, "measured_sensitivity": "B",
        "decided_by": "palsub", "action": "nodelist", "why": "faster GPUs are free", "policy": "class-fit",
        "expected_factor": 0.98, "lease_s": 60.0, "nodes": "n1", "gpus": "n1:0,1", "n_gpus": 2,
        "gpu_slowdowns": "0.9750,1.2500", "slowdown": 1.25, "restarts": 0, "decided_time": at(NOW_S - 1001),
        "submit_time": at(NOW_S - 1000), "start_time": at(NOW_S - 900), "time_limit_s": 1800.0,
    }  # fmt: skip
    by_mark = {
        "decided_by": "slurmctld", "action": "exclude", "sensitivity": "C", "expected_factor": 1.031, "lease_s": 90.0,
    }  # fmt: skip
    assert by_mark.items() <= by_filter.items()
    assert (by_filter["gpus"], by_filter["gpu_slowdowns"], by_filter["slowdown"]) == ("n1:0 n9:3", "1.0000,?", 1.0)
    assert waiting == {
        "job_id": 3, "user": "anna", "name": "=1\\x1b", "partition": "gpu", "state": "PENDING",
        "state_reason": "Resources", "restarts": 0, "submit_time": at(NOW_S - 1000),
    }  # fmt: skip
    assert (ended["end_time"], ended["n_gpus"], ended["nodes"]) == (at(NOW_S - 10), 3, "n1")


def test_jobs_of_the_journal_and_of_a_cluster_that_began_anew(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_journal(paths.journal_path(settings.load(), False)) as journal:
        seen = Observation("otto my job 2 A", 8, 0, "A", (("n1", 0), ("n1", 1)), 1.25, 0.75, NOW_S - 300)
        journal.observe(seen)
        journal.finish(journal.begin(MOVE._replace(job_id=8, user="otto")), "moved", "", NOW_S - 400)
        journal.finish(journal.begin(MOVE._replace(job_id=9)), "abandoned", "", NOW_S - 400)
        left = MOVE._replace(job_id=10, user="emil", owners="owner")
        journal.finish(journal.begin(left), "reclaimed", "", NOW_S - 400)
        journal.finish(journal.begin(left), "abandoned", "", NOW_S - 300)
    decided(5, NOW_S - 9e6)
    slurm_shows(monkeypatch, job(5), job(9, restarts=1))
    found = frames.jobs()
    assert list(found["job_id"]) == [5, 5, 8, 9, 10]  # two jobs 5: the record's, and the one that Slurm has now
    assert list(found["decided_by"].notna()) == [True, False, False, False, False]
    assert list(found["state"].notna()) == [False, True, False, True, False]
    assert plain(found.iloc[2]) == {
        "job_id": 8, "user": "otto", "name": "my job", "sensitivity": "A", "nodes": "n1", "gpus": "n1:0,1",
        "n_gpus": 2, "gpu_slowdowns": "0.9750,1.2500", "slowdown": 1.25, "step_s": 0.75, "moves": 1,
        "reclaims": 0,
    }  # fmt: skip
    assert list(found["moves"]) == [0, 0, 1, 0, 0] and list(found["reclaims"]) == [0, 0, 0, 0, 1]


def test_jobs_without_slurm(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_is_gone(monkeypatch, published)
    with pytest.raises(SlurmError):
        frames.jobs()
    decided(1)
    with pytest.warns(frames.MissingWarning, match="without Slurm's view of the jobs"):
        found = frames.jobs()
    assert list(found["job_id"]) == [1] and found["user"][0] == paths.user_name() and found["state"].isna().all()


@pytest.mark.parametrize("text", ["{", '{"schema": "pal.decision/1"}', '{"schema": "pal.decision/9"}'])
def test_a_damaged_decision_is_told_and_left_out(published: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    decided(1)
    decided(2)
    place = Path(state_of_user.home(), "decisions", state_of_user.cluster_key())
    (place / "2.json").write_text(text)
    (place / "x.json").write_text(text)
    slurm_shows(monkeypatch)
    with pytest.warns(frames.MissingWarning, match=r"decision record .*2\.json") as told:
        assert list(frames.jobs()["job_id"]) == [1]
    assert len(told) == 1


# -- moves and replays --------------------------------------------------------------------

MOVE = Move(
    0, 7, "anna", NOW_S - 500, 0, "n3:0,1", ("n5",), "n5:0,1", "", 1.25, 1.0, 800.0, 60.0, True, "", "signalling",
    NOW_S - 500,
)  # fmt: skip


def test_moves(folder: Path) -> None:
    with open_journal(paths.journal_path(settings.load(), False)) as journal:
        done = journal.finish(journal.begin(MOVE), "moved", "", NOW_S - 400)
        journal.set_observed(done.move_id, 1.125)
        journal.begin(MOVE._replace(job_id=8, made_s=NOW_S - 100, partition="fast"))
    found = frames.moves()
    assert plain(found.iloc[0]) == {
        "made_time": at(NOW_S - 500), "job_id": 7, "user": "anna", "source": "n3:0,1", "target": "n5:0,1",
        "before": 1.25, "after": 1.0, "gain_s": 800.0, "observed_gain_s": found["observed_gain_s"][0], "cost_s": 60.0,
        "saving": 0.0, "outcome": "moved", "step": "signalling",
    }  # fmt: skip
    assert 0 < found["observed_gain_s"][0] < 800
    assert found["partition"][1] == "fast" and pd.isna(found["outcome"][1])
    assert list(frames.moves(since=NOW_S - 200)["job_id"]) == [8]


def test_replays() -> None:
    first = JobOutcome("7", 0.0, 60.0, 360.0, 2, 200.0, "?", 1.25, 1.0, 1, 0, ("n1", "n2"))
    second = first._replace(job_id="8", sensitivity="B", end="TIMEOUT", user="anna")
    one = NO_RUN._replace(outcomes=(first, second))
    found = frames.replay([one, one._replace(policy="pal-fit", seed=2)])
    assert list(found["policy"]) == ["packed", "packed", "pal-fit", "pal-fit"] and list(found["seed"]) == [1, 1, 2, 2]
    assert plain(found.iloc[0]) == {
        "policy": "packed", "queue": "fifo", "seed": 1, "job_id": "7", "gpus": 2, "nodes": "n1,n2", "submit_s": 0.0,
        "start_s": 60.0, "finish_s": 360.0, "wait_s": 60.0, "jct_s": 360.0, "ideal_s": 200.0, "slowdown": 1.25,
        "locality": 1.0, "moves": 1, "restarts": 0, "end": "COMPLETED",
    }  # fmt: skip
    assert (found["sensitivity"][1], found["end"][1], found["user"][1]) == ("B", "TIMEOUT", "anna")
    pd.testing.assert_frame_equal(frames.replay(one), found[:2].assign(policy=pd.Categorical(["packed"] * 2)))


def test_the_columns_have_the_keys_of_our_json(published: Path) -> None:
    """One word for one thing: what is in both answers bears one name."""
    from slurm_pal.report.inventory import GPU_COLUMNS
    from slurm_pal.report.move_rows import MoveRow

    assert {*GPU_COLUMNS} - {c.name for c in site.GPUS} == {"age_s"}
    assert {*MoveRow._fields} - {c.name for c in moved.MOVES} == {"made_s"}
    assert {*JobOutcome._fields} <= {c.name for c in replays.OUTCOMES}
