# SPDX-License-Identifier: MIT
"""The tick's throughputs: the site's table and past runs, read again only when something has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.journal.journal import Journal, Observation, open_journal
from slurm_pal.partitions import claimants, speeds
from slurm_pal.partitions.speeds import KEPT_S, Speeds

from ...doubles.partition_site import NOW_S, job, node, overview, part

HEAD = "application,gpus,type,relative_speed\n"
TABLE = HEAD + "app,1,slow,1\napp,1,fast,4\n"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "journal.db")) as found:
        yield found


def made(journal: Journal, table: Path | None) -> Speeds:
    config = Config()
    config.set("rebalance", "throughputs", str(table or ""), "test")
    return Speeds(config, journal)


def ratio(found: Speeds, now_s: float = NOW_S, nodes: int = 2) -> float:
    where = overview(nodes=[*(node(f"s{k}", "slow") for k in range(2)), *(node(f"f{k}", "fast") for k in range(nodes))])
    speed, _ = claimants.speeds(job(), 1, ["slow", "fast"], found.known(where, now_s))
    return speed["fast"] / speed["slow"]


def test_a_table_that_is_replaced_is_read_again(journal: Journal, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(TABLE)
    found = made(journal, table)
    assert ratio(found) == pytest.approx(4.0)
    changed = tmp_path / "new.csv"
    changed.write_text(TABLE.replace("fast,4", "fast,8"))
    changed.replace(table)
    assert ratio(found) == pytest.approx(8.0)
    table.unlink()
    with pytest.raises(DataError, match=r"t\.csv"):
        ratio(found)
    table.write_text(TABLE)
    os.utime(table, (1, 1))
    assert ratio(found) == pytest.approx(4.0)
    table.write_text(HEAD + "app,1\n")
    with pytest.raises(DataError, match=r"t\.csv"):
        ratio(found)


def test_past_runs_are_looked_at_now_and_then(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = speeds.heard
    monkeypatch.setattr(speeds, "heard", lambda *given: looks.append(1) or real(*given))
    found = made(journal, None)
    assert ratio(found) == pytest.approx(1.0)
    for where, step_s in (("s0", 3.0), ("f0", 1.0)):
        journal.observe(Observation("u app 1 A", ord(where[0]), 0, "A", ((where, 0),), 1.0, step_s, NOW_S))
    assert ratio(found, NOW_S + KEPT_S - 1) == pytest.approx(1.0) and len(looks) == 1
    assert ratio(found, NOW_S + KEPT_S) == pytest.approx(3.0, rel=0.2) and len(looks) == 2
    assert ratio(found, NOW_S) == pytest.approx(3.0, rel=0.2) and len(looks) == 3  # the clock was set back
    ratio(found, NOW_S, nodes=3)
    assert len(looks) == 4
    assert ratio(found, NOW_S, nodes=3) and len(looks) == 4


def test_the_type_of_a_partition_is_its_nodes_unless_the_table_knows_its_name(journal: Journal, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(TABLE + "app,1,night,2\n")
    nodes = [node("a", "slow"), node("b", "fast")]
    where = overview(nodes=nodes, parts=[part("day", "a"), part("night", "a"), part("gold", "b")])
    found = made(journal, table)
    known = found.known(where, NOW_S)
    assert known.type_of == {"day": "slow", "night": "night", "gold": "fast"}
    moved = where._replace(partitions=(*where.partitions[:2], part("gold", "a")))
    assert found.known(moved, NOW_S).type_of["gold"] == "slow"
    speed, _ = claimants.speeds(job(), 1, ["day", "night", "gold"], known)
    assert speed == pytest.approx({"day": 1.0, "night": 2.0, "gold": 4.0})


def test_what_one_users_jobs_told_stops_nobody_and_so_many_are_completed_at_once(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = overview(nodes=[node("s0", "slow"), node("f0", "fast")])
    for number in range(speeds.MOST_AT_ONCE + 1):
        for name, step_s in (("s0", 3.0), ("f0", 1.0)):
            key = f"u{number} app 1 A"
            journal.observe(Observation(key, 2 * number + (name == "f0"), 0, "A", ((name, 0),), 1.0, step_s, NOW_S))
    found = made(journal, None)

    def ratios() -> list[float]:
        known, users = found.known(where, NOW_S), [f"u{number}" for number in range(speeds.MOST_AT_ONCE + 1)]
        told = [claimants.speeds(job(user=user), 1, ["slow", "fast"], known)[0] for user in users]
        return [speed["fast"] / speed["slow"] for speed in told]

    first, then = ratios(), ratios()
    assert [round(ratio) for ratio in first] == [3] * speeds.MOST_AT_ONCE + [1]
    assert [round(ratio) for ratio in then] == [3] * (speeds.MOST_AT_ONCE + 1)

    real = speeds.throughputs.merge

    def merge(tables: list[dict[object, object]]) -> object:
        if len(tables) > 2:
            raise DataError("words that nothing can be made of")
        return real(tables)  # type: ignore[arg-type]

    monkeypatch.setattr(speeds.throughputs, "merge", merge)
    found = made(journal, None)
    assert set(ratios()) == {1.0}
