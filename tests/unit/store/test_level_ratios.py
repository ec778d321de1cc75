# SPDX-License-Identifier: MIT
"""Times of pairs of nodes: what is believed of them, and what they say of each level of the network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.slurm.topology import TREE, Switch, Topology
from slurm_pal.store import level_ratios, snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.level_ratios import file_name, take_in
from slurm_pal.store.publish import publish
from slurm_pal.store.snapshot import LevelRatio
from slurm_pal.variability.pair_times import PairTimes, from_json

from ...doubles import records_factory

NOW_S = 1.8e9
DAY_S = 86400.0
TREE_OF_TWO = Topology(
    TREE,
    (
        Switch("leaf0", 0, ("n0", "n1")),
        Switch("leaf1", 0, ("n2", "n3")),
        Switch("core", 1, ("n0", "n1", "n2", "n3")),
    ),
)


def times(node: str, other: str, between: float = 3.0, **changes: object) -> PairTimes:
    """Of a node with four GPUs, within which a large message takes 1.5 s and a small one 10 us."""
    links = (2 * 7 / 8) / (2 * 3 / 4)
    a, b = sorted((node, other))
    made = PairTimes("s", 7, node, (a, b), 4, "emu", NOW_S, 1.5, 1.5 * between * links, 1e-5, 2e-5)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def both(a: str, b: str, between: float, job: int, **changes: object) -> list[PairTimes]:
    pair = ((a, b), (b, a))
    return [times(one, other, between, slurm_job_id=job, **changes) for one, other in pair]


def ratios(rows: list[PairTimes], network: Topology = TREE_OF_TWO, days: float = 90.0) -> dict[int, LevelRatio]:
    return level_ratios.level_ratios(rows, network.level, NOW_S, NOW_S - days * DAY_S)


def test_the_median_of_the_pairs_of_each_level() -> None:
    rows = [*both("n0", "n1", 2.0, 1), *both("n2", "n3", 2.4, 2), *both("n0", "n2", 3.0, 3), *both("n1", "n3", 9.0, 4)]
    rows += both("n0", "n3", 3.2, 5)
    assert ratios(rows) == {1: LevelRatio(2.2, 2.0, 2, NOW_S), 2: LevelRatio(3.2, 2.0, 3, NOW_S)}
    assert ratios(rows, Topology())[1].pairs == 5 and not ratios([])


def test_what_does_not_count() -> None:
    old = both("n0", "n1", 5.0, 1, ts=NOW_S - 100 * DAY_S)
    ahead = both("n0", "n1", 5.0, 2, ts=NOW_S + 3 * DAY_S)
    half = [times("n0", "n1", 5.0, slurm_job_id=3)]
    nowhere = both("n0", "n9", 5.0, 4)
    unlike = [times("n2", "n3", slurm_job_id=6), times("n3", "n2", slurm_job_id=6, gpus=8)]
    assert ratios([*old, *ahead, *half, *nowhere, *unlike]) == {}
    before, again = both("n1", "n0", 5.0, 5, ts=NOW_S - DAY_S), both("n0", "n1", 2.0, 6)
    assert ratios([*again, *before])[1] == LevelRatio(2.0, 2.0, 1, NOW_S), "the newest of a pair counts"
    emulated = both("n2", "n3", 9.0, 7, ts=NOW_S - 1, backend="torch")
    assert ratios([*emulated, *again])[1].ratio == 2.0


def test_the_slower_half_of_a_pair_counts() -> None:
    one, other = both("n0", "n1", 2.0, 1)
    assert ratios([one, dataclasses.replace(other, large_between_s=2 * other.large_between_s)])[1].ratio == 4.0


def drop(spool: Path, row: PairTimes, **changes: object) -> Path:
    incoming = spool / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    path = incoming / file_name(row.sweep_id, row.node, row.slurm_job_id)
    path.write_text(json.dumps(json.loads(row.to_json()) | changes) + "\n")
    return path


def test_what_nodes_drop_is_taken_in(tmp_path: Path) -> None:
    spool, state = tmp_path / "spool", tmp_path
    rows = both("n0", "n1", 2.0, 1)
    for row in rows:
        drop(spool, row)
    assert level_ratios.present(str(spool), str(state)) and take_in(str(spool), str(state)) == []
    assert level_ratios.read(str(state)) == rows and not list((spool / "incoming").iterdir())
    drop(spool, rows[0])
    assert take_in(str(spool), str(state)) == [] and level_ratios.read(str(state)) == rows, "twice is once"
    assert oct((state / "network.jsonl").stat().st_mode & 0o777) == "0o644"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"large_between_s": float("nan")}, "large_between_s"),
        ({"large_between_s": 0.0}, "must be from 1e-09"),
        ({"small_within_s": -1.0}, "must be from 1e-09"),
        ({"small_within_s": 1e6}, "must be from 1e-09 to 10000"),
        ({"large_within_s": "fast"}, "large_within_s = 'fast' must be a finite number"),
        ({"gpus": 1}, "gpus = 1 must be from 2"),
        ({"gpus": 1e999}, "gpus = 'inf' must be a whole number"),
        ({"nodes": ["n0", "n0"]}, "must be two"),
        ({"nodes": ["n1", "n2"]}, "must be two, 'n0' one of them"),
        ({"nodes": 5}, "not the times of a pair"),
        ({"nodes": [["n0"], "n1"]}, "nodes"),
        ({"schema": "pal.pair/2"}, "newer"),
        ({"more": 1}, "not the times of a pair"),
        ({"node": "n1"}, "has the times of 's.n1.7.pair.json'"),
        ({"sweep_id": "../x"}, "has the times of"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    spool = tmp_path / "spool"
    path = drop(spool, times("n0", "n1"), **changes)
    (found,) = take_in(str(spool), str(tmp_path))
    assert said in found.reason and found.file == path.name
    assert (spool / "rejected" / path.name).exists() and level_ratios.read(str(tmp_path)) == []


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"{}" * 100_000])
def test_garbage_is_refused(tmp_path: Path, text: bytes) -> None:
    path = drop(tmp_path, times("n0", "n1"))
    path.write_bytes(text)
    assert len(take_in(str(tmp_path), str(tmp_path))) == 1 and not list((tmp_path / "incoming").iterdir())


def test_links_and_files_that_everyone_may_write(tmp_path: Path) -> None:
    path = drop(tmp_path, times("n0", "n1"))
    path.chmod(0o666)
    drop(tmp_path / "other", times("n1", "n0")).rename(tmp_path / "real")
    path.with_name(file_name("s", "n1", 7)).symlink_to(tmp_path / "real")
    assert len(take_in(str(tmp_path), str(tmp_path))) == 2 and level_ratios.read(str(tmp_path)) == []


def test_a_damaged_file_says_where(tmp_path: Path) -> None:
    (tmp_path / "network.jsonl").write_text(times("n0", "n1").to_json() + "\nx\n")
    with pytest.raises(DataError, match=r"network.jsonl:2: not the times"):
        level_ratios.read(str(tmp_path))


def test_a_line_is_what_it_was() -> None:
    assert from_json(times("n0", "n1").to_json()) == times("n0", "n1")


def test_publishing_keeps_what_it_does_not_know_anew(tmp_path: Path) -> None:
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    levels = {1: LevelRatio(2.0, 1.5, 3, NOW_S)}
    with open_database(str(tmp_path), write=True) as database:
        database.insert(records_factory.sweep(records_factory.truth(8)), records_factory.NOW_S)
        assert publish(config, records_factory.NOW_S, database, network=levels).levels == levels
        assert not publish(config, records_factory.NOW_S, database).changed
        assert snapshot.read(config.snapshot_path).levels == levels
        assert publish(config, records_factory.NOW_S, database, network={}).changed
    assert snapshot.read(config.snapshot_path).network == {}
