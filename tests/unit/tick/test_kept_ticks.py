# SPDX-License-Identifier: MIT
"""Kept ticks: each is decided again from its file alone, and what a decision depends on cannot be left out of it."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base import marks
from slurm_pal.base.config import KEYS, Config
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import COST, Goal
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark
from slurm_pal.partitions import speeds
from slurm_pal.pending.retarget import WishAction
from slurm_pal.slurm.client import Overview
from slurm_pal.tick import kept
from slurm_pal.tick.again import Again, again
from slurm_pal.tick.coding import decoded, encode
from slurm_pal.tick.deciding import Decider
from slurm_pal.tick.keeping import Keeper
from slurm_pal.tick.kept import kept_settings, settings_again
from slurm_pal.tick.tick import Tick, TickResult

from . import test_tick, test_tick_partitions

OPENS = ("open", "sqlite3.connect", "subprocess.Popen", "os.listdir", "os.scandir", "socket.connect", "os.system")


class Kept:
    """A site whose ticks are kept."""

    def __init__(self, site: test_tick.Site, folder: Path, most_mib: float = 256) -> None:
        self.site, self.folder = site, str(folder)
        self.keeper = Keeper(self.folder, most_mib, site.now_s)
        self.tick = self.new_tick()

    def new_tick(self) -> Tick:
        site = self.site
        return Tick(
            site.config, site.client, site.counted, site.journal, site.role, None, site.log, act=site.act,
            keeper=self.keeper,
        )  # fmt: skip

    def run(self, after_s: float = test_tick.INTERVAL_S) -> TickResult:
        self.site.now_s += after_s
        return self.tick.run(self.site.now_s)

    def see_through(self) -> None:
        for _ in range(200):
            self.site.now_s += 0.2
            if not self.tick.advance(self.site.now_s):
                return

    def every(self) -> list[Again]:
        return [again(one) for one in kept.ticks(self.folder, kept.numbers(self.folder))]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Kept]:
    """Jobs that report their pace, jobs that wait, jobs that are moved, jobs of others."""
    (tmp_path / "busy").mkdir()
    site = test_tick.Site(tmp_path / "busy", fast=3)
    found = Kept(site, tmp_path / "busy" / "kept")
    yield found
    found.keeper.close()
    site.journal.close()
    site.log.close()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Kept]:
    """Partitions are shared out, by a table and by what jobs reported."""
    (tmp_path / "shared").mkdir()
    site = test_tick_partitions.Site(tmp_path / "shared")
    found = Kept(site, tmp_path / "shared" / "kept")
    yield found
    found.keeper.close()
    site.journal.close()
    site.log.close()


def work(busy: Kept, ticks: int = 6) -> list[TickResult]:
    """Ticks while jobs come, run, are moved and wait."""
    site, seen = busy.site, []
    for k in range(ticks):
        pace = f"pal:it={100 * k + 1};of=9000;at={site.now_s:.0f};r=0"
        site.submit("--gres=gpu:1", "-t60", f"--comment={test_tick.MOVABLE} {pace}")
        site.submit("--gres=gpu:2", "-t60", "--comment=pal:job=A")
        if k > 2:
            for job in site.slurm.jobs.values():
                if job.state == "RUNNING" and "pal:it" in job.comment:
                    job.comment = (
                        f"{test_tick.MOVABLE} pal:it={100 * k + 7};of=9000;at={site.now_s:.0f};r={job.restarts}"
                    )
        seen.append(busy.run())
        busy.see_through()
    return seen


def head_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    head, body = gzip.decompress(path.read_bytes()).decode().splitlines()
    return json.loads(head), json.loads(body)


def rewritten(path: Path, head: dict[str, Any], body: dict[str, Any]) -> None:
    path.write_bytes(gzip.compress(f"{json.dumps(head)}\n{json.dumps(body)}\n".encode()))


def first(busy: Kept) -> Path:
    return Path(busy.folder) / kept.tick_name(kept.numbers(busy.folder)[0])


# -- the same again --------------------------------------------------------------------------


def test_every_tick_is_decided_again_from_its_file(busy: Kept) -> None:
    seen = work(busy)
    assert all(one.trouble == () for one in seen), seen
    assert sum(len(one.decided.plan.moves) for one in seen if one.decided.plan) > 0
    assert {wish.action for one in seen for wish in one.decided.wishes} >= {"exclude"}
    found = busy.every()
    assert [one.differences for one in found] == [()] * len(seen)
    assert [one.decided.wishes for one in found if one.decided] == [one.decided.wishes for one in seen]
    assert [one.decided.plan for one in found if one.decided] == [one.decided.plan for one in seen]
    assert [one.kept.tick["orders"] for one in found] == [one.orders for one in seen]


def test_shared_partitions_are_decided_again_whatever_the_process_remembers(shared: Kept) -> None:
    """The throughputs of past runs count for ten minutes as they were: no tick's file may lack them."""
    site = shared.site
    for k in range(6):
        site.submit("-p", test_tick_partitions.OWN, "--gres=gpu:1", "--comment=pal:job=A")
        if k == 3:
            site.slurm.finish(site.full["n0"])  # type: ignore[attr-defined]
        shared.run(speeds.KEPT_S / 2 - 1)
    found = shared.every()
    assert [one.differences for one in found] == [()] * 6
    assert [one.kept.past is not None for one in found] == [False, True, True, False, True, True]
    assert any("Partition" in wish.fields for one in found if one.decided for wish in one.decided.wishes)


def test_moves_for_money_are_decided_again_with_the_prices_of_then(shared: Kept, tmp_path: Path) -> None:
    site, live = shared.site, tmp_path / "prices"
    site.config.prices |= {"slow": {"gres/gpu": 4.0}}
    live.write_text(f"fast,1,{site.now_s:.0f}\n")
    site.config.set("submit", "prices", str(live), "test")
    site.set("rebalance", allocation="", moves=True, egress=1.0)
    shared.tick = shared.new_tick()
    for number in site.full.values():  # type: ignore[attr-defined]
        site.slurm.finish(number)
    places = tuple(MarkedPlace(name, name, "gpu:1", 0, "", 3 * 86400) for name in ("slow", "fast"))
    mark = marks.word(place_mark.pairs_of(PlaceMark("slow", Goal(COST), site.now_s, 1, places)))
    site.submit("-p", "slow", "--gres=gpu:1", "-t8640", f"--comment={test_tick.MOVABLE} {mark}")
    seen = shared.run(900.0)
    (move,) = seen.decided.plan.moves if seen.decided.plan else ()
    assert move.partition == "fast" and move.saving == pytest.approx(3 * (72 - 900 / 3600), rel=0.01)
    live.unlink()
    shared.see_through()
    found = shared.every()
    assert [one.differences for one in found] == [()] and found[0].kept.made["config"].prices == site.config.prices
    (done,) = site.journal.moves()
    assert (done.outcome, done.partition, done.own_partitions) == ("moved", "fast", "slow")
    assert done.saving == move.saving


def test_another_process_with_another_order_of_sets_decides_the_same(busy: Kept, shared: Kept) -> None:
    work(busy, 4)
    for _ in range(3):
        shared.site.submit("-p", test_tick_partitions.OWN, "--gres=gpu:1", "--comment=pal:job=A")
        shared.run()
    script = (
        "import sys\nfrom slurm_pal.tick import kept\nfrom slurm_pal.tick.again import again\n"
        "for f in sys.argv[1:]:\n    for t in kept.ticks(f, kept.numbers(f)):\n        print(again(t).differences)\n"
    )
    for seed in ("1", "2"):
        argv = [sys.executable, "-c", script, busy.folder, shared.folder]
        done = subprocess.run(argv, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True)
        assert done.stdout.splitlines() == ["()"] * 7, done.stderr


def test_a_tick_that_could_not_decide_is_kept_too(busy: Kept) -> None:
    os.unlink(busy.site.config.snapshot_path)
    assert any("no snapshot" in line for line in busy.run().trouble)
    (one,) = busy.every()
    assert one.kept.failed[0] == "DataError" and one.decided is None and one.identical


def test_a_job_that_breaks_us_is_kept_as_the_decision_saw_it(busy: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_pal.tick import deciding

    bad, real = busy.site.submit("--gres=gpu:1", f"--comment={test_tick.MOVABLE}"), deciding.steered

    def breaks(overview: Overview, *rest: object) -> object:
        for job in overview.jobs:
            assert job.job_id != bad or not job.comment, "this one"
        return real(overview, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(deciding, "steered", breaks)
    assert any("left alone" in line for line in busy.run().trouble)
    monkeypatch.undo()
    (one,) = busy.every()
    assert one.identical and one.decided is not None


def test_a_journal_that_can_only_be_read(busy: Kept, tmp_path: Path) -> None:
    """Advice beside a daemon: nothing is remembered, then and again."""
    from slurm_pal.journal.journal import open_journal

    work(busy, 4)
    with open_journal(busy.site.journal.path, write=False) as journal:
        busy.site.journal, mine, busy.site.act = journal, busy.site.journal, False
        busy.tick = busy.new_tick()
        busy.run()
    busy.site.journal = mine
    last = busy.every()[-1]
    assert last.identical and any(one.trouble for one in last.kept.heard)


# -- nothing is left out ---------------------------------------------------------------------


def test_whatever_a_decider_is_made_with_and_given_is_kept(busy: Kept) -> None:
    work(busy, 1)
    (one,) = busy.every()
    made = set(inspect.signature(Decider.__init__).parameters) - {"self", "journal", "reader"}
    given = set(inspect.signature(Decider.decide).parameters) - {"self"}
    assert (set(one.kept.made), set(one.kept.given)) == (made, given)


def test_the_nouns_come_back_with_all_their_fields(busy: Kept) -> None:
    """Also those that nobody has thought of here: field by field, of the same kinds."""
    work(busy, 2)
    journal = busy.site.journal
    for value in (
        busy.site.client.overview(marked=True), journal.moves(), journal.leases(), journal.observations(0.0),
        [*WishAction], {1.5: float("inf"), ("a", 1): -0.0, None: ()}, frozenset({("x", 1), ("y", 2)}), "\udc80\x1b",
    ):  # fmt: skip
        found = decoded(json.loads(encode(value)))
        assert found == value and type(found) is type(value) and repr(found) == repr(value)
    with pytest.raises(TypeError, match="no form"):
        encode(object())


def test_every_setting_is_kept_with_its_origin() -> None:
    config = Config()
    config.apps["mine"] = "B"
    for section, names in KEYS.items():
        for name, key in names.items():
            value = {bool: not key.default, int: 7, float: 7.5, str: "x"}[type(key.default)]
            value = key.choices[-1] if key.choices else value
            value = max(value, key.minimum) if key.minimum is not None else value
            value = min(value, key.maximum) if key.maximum is not None else value
            config.set(section, name, value, f"origin of {name}")
    again_ = settings_again(kept_settings(config))
    assert all(again_[s, n] == config[s, n] for s, names in KEYS.items() for n in names)
    assert again_.origin("rebalance", "margin") == "origin of margin" and again_.apps == {"mine": "B"}


_watched: list[str] = []
_on: list[bool] = []


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _on and event in OPENS and not str(given[0]).endswith((".py", ".pyc", ".so")):
        _watched.append(f"{event} {given[0]}")


def test_a_decision_sees_nothing_but_what_is_kept(busy: Kept, shared: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, database, program, clock or random number: whoever gives the Decider another source must keep it."""
    work(busy, 3)
    shared.site.submit("-p", test_tick_partitions.OWN, "--gres=gpu:1", "--comment=pal:job=A")
    shared.run()
    stored = [one for kept_ in (busy, shared) for one in kept.ticks(kept_.folder, kept.numbers(kept_.folder))]
    assert all(again(one).identical for one in stored)  # all that is imported is imported now
    for name in ("time", "time_ns", "monotonic", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, lambda *_: pytest.fail("the clock was read"))
    monkeypatch.setattr(os, "urandom", lambda *_: pytest.fail("a random number was drawn"))
    monkeypatch.setattr(os, "environ", None)
    sys.addaudithook(_hook)
    _watched.clear()
    _on.append(True)
    try:
        found = [again(one).differences for one in stored]
    finally:
        _on.clear()
        monkeypatch.undo()
    assert not _watched and found == [()] * len(stored)


@pytest.mark.parametrize("name", ["now_s", "interval_s", "overview"])
def test_what_was_given_matters(busy: Kept, name: str) -> None:
    """Each input that is kept is really used: with another one the tick differs."""
    busy.site.waiting()
    busy.run()
    other = {"now_s": 1e10, "interval_s": 1e6, "overview": None}
    found = []
    for one in kept.ticks(busy.folder, kept.numbers(busy.folder)):
        value = other[name] if other[name] is not None else one.given["overview"]._replace(jobs=())
        found.append(again(one._replace(given=one.given | {name: value})).identical)
    assert not all(found)


def test_an_answer_of_the_journal_that_is_missing_is_a_difference(busy: Kept) -> None:
    work(busy, 2)
    (*_, last) = kept.ticks(busy.folder, kept.numbers(busy.folder))
    for name in {one.name for one in last.heard}:
        less = tuple(one for one in last.heard if one.name != name)
        assert not again(last._replace(heard=less)).identical, name
    assert not again(last._replace(reads=())).identical


# -- files -----------------------------------------------------------------------------------


def test_only_the_owner_may_read_them(busy: Kept) -> None:
    work(busy, 2)
    modes = {path.name.partition("-")[0]: path.stat().st_mode & 0o777 for path in Path(busy.folder).iterdir()}
    assert modes == {"tick": 0o600, "part": 0o600, "lock": 0o600}
    assert os.stat(busy.folder).st_mode & 0o777 == 0o700


def test_what_does_not_change_is_kept_once(busy: Kept) -> None:
    work(busy, 4)
    heads = [kept.read_head(busy.folder, number) for number in kept.numbers(busy.folder)]
    assert set.intersection(*(set(head.parts) for head in heads)), "the settings at least"
    raw = Path(busy.site.config.snapshot_path).read_bytes()
    assert all(kept.hash_of(raw) in head.parts for head in heads)


def test_a_changed_file_says_which_tick_differs_and_where(busy: Kept) -> None:
    work(busy, 5)
    number = next(n for n in kept.numbers(busy.folder) if again(kept.read_tick(busy.folder, n)).decided.plan.moves)  # type: ignore[union-attr]
    path = Path(busy.folder) / kept.tick_name(number)
    head, body = head_of(path)
    text = json.dumps(body["decided"]["plan"])
    assert '"n1"' in text
    body["decided"]["plan"] = json.loads(text.replace('"n1"', '"n3"', 1))
    rewritten(path, head, body)
    differing = [one for one in busy.every() if not one.identical]
    assert [one.kept.head.number for one in differing] == [number]
    assert "plan, moves, job" in differing[0].differences[0] and '"n3"' in differing[0].differences[0]


@pytest.mark.parametrize(
    ("schema", "word"), [("pal.tick/0", "older"), ("pal.tick/2", "newer"), ("pal.snapshot/1", "not a kept tick")]
)
def test_another_schema_is_refused(busy: Kept, schema: str, word: str) -> None:
    work(busy, 1)
    head, body = head_of(first(busy))
    rewritten(first(busy), head | {"schema": schema}, body)
    with pytest.raises(DataError, match=word) as raised:
        busy.every()
    assert schema in str(raised.value) and "\n" not in str(raised.value)


def test_damage_is_one_line(busy: Kept) -> None:
    work(busy, 1)
    path, raw = first(busy), first(busy).read_bytes()
    part = next(Path(busy.folder).glob("part-*"))
    head, body = head_of(path)
    for content in (
        b"",
        raw[:-20],
        raw[:40],
        b"x" + raw[1:],
        gzip.compress(b"{}"),
        gzip.compress(b"[]\n[]\n"),
        b"\x1f\x8b" * 9,
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match="damaged") as raised:
            busy.every()
        assert "\n" not in str(raised.value) and path.name in str(raised.value)
    for name, value in (
        ("made", []),
        ("given", {"overview": {"own": {"kinds": [["os:system"]], "value": 1}}}),
        ("heard", 7),
    ):
        rewritten(path, head, body | {name: value})
        with pytest.raises(DataError) as raised:
            busy.every()
        assert "\n" not in str(raised.value)
    path.write_bytes(raw)
    whole = part.read_bytes()
    part.write_bytes(gzip.compress(b"other"))
    with pytest.raises(DataError, match="damaged"):
        busy.every()
    part.unlink()
    with pytest.raises(DataError, match="missing"):
        busy.every()
    part.write_bytes(whole)
    assert all(one.identical for one in busy.every())


def test_a_field_that_this_release_does_not_know_is_refused(busy: Kept) -> None:
    work(busy, 1)
    head, body = head_of(first(busy))
    text = json.dumps(body).replace('"interval_s"', '"interval_s"').replace('"n_gpus"', '"n_gpus"')
    body = json.loads(text.replace('"priority"', '"precedence"', 1))
    rewritten(first(busy), head, body)
    with pytest.raises(DataError, match="'precedence' that this release does not know"):
        busy.every()


def test_the_oldest_go_and_what_only_they_needed(tmp_path: Path) -> None:
    site = test_tick.Site(tmp_path, fast=3)
    small = Kept(site, tmp_path / "kept", most_mib=0.012)
    for k in range(12):
        site.write_scores({f"n{n}": 1.0 + 0.01 * k for n in range(4)})
        os.utime(site.config.snapshot_path, (k, k))
        small.run()
    left = kept.numbers(small.folder)
    files = [path for path in Path(small.folder).iterdir() if path.name != "lock"]
    assert 1 < len(left) < 12 and left[-1] == 12 and sum(path.stat().st_size for path in files) <= 0.012 * 2**20
    assert [one.differences for one in small.every()] == [()] * len(left)
    needed = {part for number in left for part in kept.read_head(small.folder, number).parts}
    assert {path.name for path in files if path.name.startswith("part")} == set(map(kept.part_name, needed))
    small.keeper.close()
    (tmp_path / "kept" / kept.part_name("0" * 32)).write_bytes(b"left by a writer that was killed")
    go_on = Keeper(small.folder, 256, site.now_s)
    assert not (tmp_path / "kept" / kept.part_name("0" * 32)).exists()
    small.keeper, small.tick = go_on, small.new_tick()
    small.tick = Tick(
        site.config, site.client, site.counted, site.journal, site.role, None, site.log, act=True, keeper=go_on
    )
    small.run()
    assert kept.numbers(small.folder)[-1] == 13
    go_on.close()
    site.journal.close()


def test_one_writer_at_a_time(busy: Kept, tmp_path: Path) -> None:
    with pytest.raises(BusyError, match="keeps its ticks here"):
        Keeper(busy.folder, 1, 0.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="name another folder"):
        Keeper(str(tmp_path / "file"), 1, 0.0)


def test_a_tick_that_cannot_be_kept_still_works(busy: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slurm_pal.tick.keeping.write_atomic", full)
    number = busy.site.submit("--gres=gpu:1", f"--comment={test_tick.MOVABLE}")
    seen = busy.run()
    assert any("not kept (No space left" in line for line in seen.trouble)
    assert [move.job_id for move in busy.site.journal.open_moves()] == [number]


def test_at_a_time(busy: Kept) -> None:
    with pytest.raises(DataError, match="no kept tick"):
        kept.at(busy.folder, 0.0)
    times = [busy.run().at_s for _ in range(3)]
    assert [kept.at(busy.folder, at_s + 1) for at_s in times] == [1, 2, 3] and kept.at(busy.folder, 5.0) == 1


def test_hostile_words_of_users_stay_data(busy: Kept) -> None:
    words = 'x"}],"e":[0,"y"]\x1b[2J\udc80 {"t": [0]} ; rm -rf /'
    busy.site.submit("--gres=gpu:1", f"--comment=pal:job=A {words}")
    busy.run()
    (one,) = busy.every()
    assert one.identical
