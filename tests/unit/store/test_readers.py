# SPDX-License-Identifier: MIT
"""What stands at a path that somebody else may write: no reader waits, or reads it all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base import config as settings
from slurm_pal.base import files, state
from slurm_pal.base.errors import DataError, PalError, one_line
from slurm_pal.journal.journal import open_journal
from slurm_pal.partitions import throughput_table as throughputs
from slurm_pal.profiling.sweep import lock as sweep_lock
from slurm_pal.profiling.sweep import results, sweep, sweep_state
from slurm_pal.store import gpus_text, heartbeat, kernels, labels, localities, lua_table, snapshot
from slurm_pal.store.database import open_database
from slurm_pal.submit import decision, known, lease_file, script
from slurm_pal.submit.argv import CommandLine


def raises(read: Callable[[str], object]) -> Callable[[str], object]:
    """A reader that has to say in one line what is wrong."""

    def refused(path: str) -> object:
        with pytest.raises(PalError) as error:
            read(path)
        assert "\n" not in one_line(error.value) and len(one_line(error.value)) < 500
        return None

    return refused


def journal_of_a_sweep(path: str) -> object:
    return list(sweep_state._journal(path))


def leases(path: str) -> object:
    return lease_file.read_all(os.path.dirname(path))


def decision_of(path: str) -> object:
    os.environ["XDG_STATE_HOME"] = str(Path(path).parents[3])
    return decision.load("", 7)


def program(path: str) -> object:
    return known._program(path, CommandLine((), (), (), (), None, False, "")).strip("\0")


def user_config(path: str) -> object:
    return settings.load({"XDG_CONFIG_HOME": up(path, 2)})


def beating(path: str) -> object:
    return heartbeat.fresh(path.removesuffix(".heartbeat"), 1.0, 1e12)


READERS: dict[str, tuple[str, Callable[[str], object], object]] = {
    "user config": (
        "slurm-pal/config.toml",
        raises(user_config),
        None,
    ),
    "site config": ("pal.toml", raises(lambda path: settings.load({"SLURM_PAL_CONFIG": path})), None),
    "slurm.conf, ClusterName": ("slurm.conf", lambda path: state.cluster_key(path)[:8], "cluster-"),
    "slurm.conf, SlurmUser": ("slurm.conf", lambda path: files.slurm_user_uid(), 0),
    "snapshot": ("snapshot", raises(snapshot.read), None),
    "heartbeat": ("snapshot.heartbeat", beating, False),
    "labels": ("5.jsonl", raises(labels.read), None),
    "a look into labels": ("5.jsonl", raises(lambda path: labels.lookup(path, ["n1"])), None),
    "locality penalties": ("5.locality.jsonl", raises(localities.read), None),
    "table": ("pal_table.lua", raises(lua_table.read_table), None),
    "gpus.txt": ("gpus.txt", lambda path: gpus_text._current(path), None),
    "kernels": ("gpus.txt.kernels", raises(kernels.read), None),
    "throughputs": ("t.csv", raises(lambda path: throughputs.read(path, 0.0)), None),
    "database": ("pal.db", raises(lambda path: open_database(os.path.dirname(path))), None),
    "journal": ("rebalance.db", raises(lambda path: open_journal(path, write=False)), None),
    "lease": ("7.json", leases, {}),
    "decision": ("slurm-pal/decisions/cluster/7.json", raises(decision_of), None),
    "script": ("job.sh", lambda path: script.from_file(path, None).body[:1], b""),
    "program": ("train.py", program, ""),
    "result": ("s.n.jsonl", lambda path: results.read([os.path.dirname(path)], "s", "n", 1), None),
    "plan of a sweep": ("sweeps/20260101-000000-0ab12/plan.json", raises(lambda path: plan(path)), None),
    "journal of a sweep": ("journal.jsonl", journal_of_a_sweep, []),
    "holder of a sweep": ("sweep.running", lambda path: sweep_lock._holder(os.path.dirname(path)), None),
    "output of a sweep's job": ("out", lambda path: sweep.last_line(path).strip("\\x0"), ""),
}


def up(path: str, levels: int) -> str:
    return str(Path(path).parents[levels - 1])


def plan(path: str) -> object:
    return sweep_state.load(up(path, 3), os.path.basename(os.path.dirname(path)))


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o644)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # endless


def link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.parent / "pipe", 0o644)
    path.symlink_to("pipe")


def giant(path: Path) -> None:
    """A hole of 64 GiB, which no reader may take into memory."""
    path.touch(0o644)
    os.truncate(path, 64 << 30)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, and a limit on memory and time: a reader that waits or reads on does not get away with it."""
    import resource

    for name in [name for name in os.environ if name.startswith(("SLURM", "XDG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # put back by monkeypatch
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + (600 << 20), limits[1]))
    signal.alarm(60)
    yield tmp_path
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("make", [fifo, folder, device, link_to_a_fifo, giant])
@pytest.mark.parametrize("what", READERS)
def test_no_reader_waits_or_takes_all_memory(what: str, make: Callable[[Path], None], place: Path) -> None:
    name, read, expected = READERS[what]
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    found = read(str(path))
    if not (what == "script" and make is giant):  # read up to its limit, and never wrapped
        assert found == expected


def test_what_is_too_large_is_told_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert files.read_trusted(str(tmp_path / "x"), 5) == b"12345" == files.read_plain(str(tmp_path / "x"), 5)
    for read in (files.read_trusted, files.read_plain):
        with pytest.raises(DataError, match="x has 5 bytes, more than 4 allowed"):
            read(str(tmp_path / "x"), 4)
