# SPDX-License-Identifier: MIT
"""The journal: what it keeps through kills and full disks, who may write it, and what it says when it cannot."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import BusyError, DataError, one_line
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal import journal as module
from slurm_pal.journal.journal import Journal, Move, Observation, Sample, open_journal
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.store import database

from ...doubles.privileges import unprivileged
from ...doubles.trials import trials

NOW_S = 1_763_712_345.0
DAY_S = 86400.0
SCHEMA = len(module.MIGRATIONS)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def move(job_id: int = 7, made_s: float = NOW_S, step: MoveStep = MoveStep.PLANNED) -> Move:
    return Move(
        0, job_id, "ann", made_s, 0, "n3:0,1", ("n5",), "n5:0,1", "", 1.3, 1.0, 900.0, 60.0, True, "0.1", step, made_s
    )


def plain(made: Move) -> tuple[object, ...]:
    """Its fields, such that their repr is Python."""
    return tuple(str(part) if isinstance(part, StrEnum) else part for part in made)


def lease(job_id: int = 7, kind: str = "nodelist") -> TickLease:
    return TickLease(job_id, LeaseKind(kind), "n[1-2]", "", NOW_S, NOW_S + 30.0, 0, "idle there")


def seen(job_id: int = 7, restarts: int = 0, at_s: float = NOW_S) -> Observation:
    return Observation("ann train 2 A", job_id, restarts, "A", (("n3", 0), ("n4", 1)), 1.3, 0.25, at_s)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "rebalance.db")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 2**40)
floats = st.floats(allow_nan=False)
STEPS = st.sampled_from(MoveStep)
MOVES = st.tuples(
    st.just(0), numbers, texts, floats, numbers, texts, st.lists(texts, max_size=3).map(tuple), texts, texts,
    floats, floats, floats, floats, st.booleans(), texts, STEPS, floats,
).map(lambda row: Move(*row))  # fmt: skip
LEASES = st.builds(TickLease, numbers, st.sampled_from([*LeaseKind][:3]), texts, texts, floats, floats, numbers, texts)
OBSERVATIONS = st.builds(
    Observation, texts, numbers, numbers, texts, st.lists(st.tuples(texts, numbers), max_size=3).map(tuple),
    floats, floats, floats, st.integers(0, 9), floats,
)  # fmt: skip


@trials(40)
@given(MOVES, LEASES, OBSERVATIONS, STEPS, st.sampled_from(MoveOutcome), texts, st.none() | floats)
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, made: Move, held: TickLease, watched: Observation, step: MoveStep,
    outcome: MoveOutcome, text: str, observed: float | None,
) -> None:  # fmt: skip
    place = str(tmp_path_factory.mktemp("journal") / "j.db")
    with open_journal(place) as journal:
        begun = journal.begin(made)
        assert begun == made._replace(move_id=begun.move_id)
        done = journal.finish(journal.enter(begun, step, made.step_s), outcome, text, made.step_s)
        if observed is not None:
            journal.set_observed(done.move_id, observed)
        journal.lease(held)
        journal.observe(watched)
    with open_journal(place, write=False) as journal:
        assert journal.moves(-math.inf) == [done._replace(observed=observed)]
        assert journal.steps_of(done.move_id) == [(made.step, made.step_s), (step, made.step_s)]
        assert journal.leases() == {held.job_id: held}
        assert journal.observations(-math.inf) == [watched]
        (back,) = journal.moves(-math.inf)
        assert type(back.checkpoint) is bool and type(back.made_s) is float


def test_a_move_from_begin_to_end(path: str) -> None:
    with open_journal(path) as journal:
        first, other = journal.begin(move(7)), journal.begin(move(8))
        assert first.move_id != other.move_id
        first = journal.enter(first, MoveStep.TARGETING, NOW_S + 1)
        assert (first.step, first.step_s) == ("targeting", NOW_S + 1)
        assert journal.open_moves() == [first, other]
        first = journal.finish(first, "moved", "as planned", NOW_S + 2)
        assert (first.outcome, first.detail, first.ended_s, first.observed) == ("moved", "as planned", NOW_S + 2, None)
        journal.set_observed(first.move_id, 1.25)
        assert journal.open_moves() == [other]
        assert journal.moves() == [first._replace(observed=1.25), other]
        assert journal.steps_of(first.move_id) == [("planned", NOW_S), ("targeting", NOW_S + 1)]


def test_moves_are_chosen_by_job_and_time(path: str) -> None:
    with open_journal(path) as journal:
        for job_id, at_s in ((7, 10.0), (8, 20.0), (7, 30.0)):
            journal.finish(journal.begin(move(job_id, at_s)), "moved", "", at_s)
        assert [m.made_s for m in journal.moves(job_id=7)] == [10.0, 30.0]
        assert [m.made_s for m in journal.moves(20.0)] == [20.0, 30.0]
        assert [m.made_s for m in journal.moves(20.0, 7)] == [30.0]
        assert journal.moves(job_id=9) == []


def test_a_job_has_one_open_move(path: str) -> None:
    with open_journal(path) as journal:
        first = journal.begin(move())
        with pytest.raises(DataError, match="job 7 has an open move"):
            journal.begin(move())
        assert journal.moves() == [first]
        journal.finish(first, "abandoned", "", NOW_S)
        journal.begin(move())


def test_a_finished_move_takes_no_step(path: str) -> None:
    with open_journal(path) as journal:
        done = journal.finish(journal.begin(move()), "ended", "", NOW_S)
        for again in (
            lambda: journal.enter(done, MoveStep.TARGETING, NOW_S),
            lambda: journal.finish(done, MoveOutcome.MOVED, "", NOW_S),
        ):
            with pytest.raises(DataError, match="is not open"):
                again()
        assert journal.moves() == [done] and len(journal.steps_of(done.move_id)) == 1


def test_words_of_a_later_release_are_unknown_ones(path: str) -> None:
    with open_journal(path) as journal:
        first, second = journal.begin(move(7)), journal.begin(move(8))
        with journal._connection as connection:
            connection.execute("UPDATE moves SET step = 'parked' WHERE move_id = ?", (first.move_id,))
            connection.execute("UPDATE moves SET outcome = 'swapped' WHERE move_id = ?", (second.move_id,))
        assert journal.open_moves() == [first._replace(step=MoveStep.UNKNOWN)]
        assert journal.moves()[1].outcome is MoveOutcome.UNKNOWN


def test_a_clock_that_jumps_back_changes_no_order(path: str) -> None:
    with open_journal(path) as journal:
        first = journal.begin(move(7, NOW_S))
        steps = (MoveStep.SIGNALLING, MoveStep.REQUEUEING, MoveStep.TARGETING)
        for step, at_s in zip(steps, (NOW_S - 1e6, 0.0, NOW_S), strict=True):
            first = journal.enter(first, step, at_s)
        second = journal.begin(move(8, 5.0))
        journal.lease(lease())
        journal.end_lease(7, "first", NOW_S)
        journal.lease(lease())
        journal.end_lease(7, "second", 5.0)
        journal.add_sample(Sample(7, 0, 10, NOW_S))
        journal.add_sample(Sample(7, 0, 20, 5.0))
        journal.observe(seen(1, at_s=NOW_S))
        journal.observe(seen(2, at_s=5.0))
        journal.ticked(NOW_S)
        journal.ticked(5.0)
        journal.forget(frozenset({7}), 5.0)
        assert [step for step, _ in journal.steps_of(first.move_id)] == ["planned", *steps]
        assert journal.moves() == [first, second]
        assert [why for _, why, _ in journal.ended_leases()] == ["first", "second"]
        assert journal.samples()[7].iteration == 20
        assert [o.job_id for o in journal.observations(0.0)] == [1, 2]
        assert journal.last_tick_s() == 5.0


def test_leases_are_replaced_and_ended(path: str) -> None:
    with open_journal(path) as journal:
        journal.lease(lease(7))
        journal.lease(lease(7, LeaseKind.EXCLUDE))
        journal.lease(lease(8))
        assert journal.leases() == {7: lease(7, LeaseKind.EXCLUDE), 8: lease(8)}
        assert journal.ended_leases() == []
        journal.end_lease(7, "it did not start", NOW_S)
        journal.end_lease(7, "again", NOW_S + 1)
        journal.end_lease(99, "never had one", NOW_S)
        assert journal.leases() == {8: lease(8)}
        assert journal.ended_leases() == [(lease(7, LeaseKind.EXCLUDE), "it did not start", NOW_S)]
        assert journal.ended_leases(8) == [] and journal.ended_leases(7, NOW_S + 1) == []


def test_the_small_things(path: str) -> None:
    with open_journal(path) as journal:
        assert (journal.last_tick_s(), journal.left_alone(), journal.weights()) == (0.0, frozenset(), {})
        journal.hands_off(7, "its owner changed our list", NOW_S)
        journal.hands_off(7, "again", NOW_S)
        journal.add_waited(7, 15.0)
        journal.add_waited(7, 0.5)
        journal.set_weight("n1", 10)
        journal.set_weight("n2", 1)
        journal.set_weight("n1", None)
        journal.set_weight("n1", None)
        journal.add_sample(Sample(7, 0, 5, NOW_S))
        journal.observe(seen(7, 0))
        journal.observe(seen(7, 1))
        journal.observe(seen(7, 0, NOW_S + 9))
        journal.ticked(NOW_S)
    with open_journal(path, write=False) as journal:
        assert journal.left_alone() == {7}
        assert journal.waited() == {7: 15.5}
        assert journal.weights() == {"n2": 1}
        assert journal.samples() == {7: Sample(7, 0, 5, NOW_S)}
        assert journal.observations(0.0) == [seen(7, 1), seen(7, 0, NOW_S + 9)]
        assert journal.observations(NOW_S + 1) == [seen(7, 0, NOW_S + 9)]
        assert journal.last_tick_s() == NOW_S


@trials(30)
@given(st.lists(st.tuples(st.sampled_from(["lease", "end", "wait", "off", "forget"]), st.integers(1, 4)), max_size=25))
def test_any_order_of_calls(tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int]]) -> None:
    place = str(tmp_path_factory.mktemp("journal") / "j.db")
    leases: set[int] = set()
    ended: list[int] = []
    waited: dict[int, float] = {}
    off: set[int] = set()
    with open_journal(place) as journal:
        for name, job_id in calls:
            if name == "lease":
                journal.lease(lease(job_id))
                leases.add(job_id)
            elif name == "end":
                journal.end_lease(job_id, "over", NOW_S)
                ended += [job_id] if job_id in leases else []
                leases.discard(job_id)
            elif name == "wait":
                journal.add_waited(job_id, 15.0)
                waited[job_id] = waited.get(job_id, 0.0) + 15.0
            elif name == "off":
                journal.hands_off(job_id, "", NOW_S)
                off.add(job_id)
            else:
                journal.forget(frozenset({job_id}), NOW_S)
                waited = {key: value for key, value in waited.items() if key == job_id}
                off &= {job_id}
    with open_journal(place, write=False) as journal:
        assert set(journal.leases()) == leases
        assert [done.job_id for done, _, _ in journal.ended_leases()] == ended
        assert journal.waited() == waited and journal.left_alone() == off


def test_forget_keeps_what_is_open_and_what_is_young(path: str) -> None:
    old_s, young_s = NOW_S - 91 * DAY_S, NOW_S - 89 * DAY_S
    with open_journal(path) as journal:
        closed_old = journal.finish(journal.begin(move(1, old_s)), "moved", "", old_s)
        closed_late = journal.finish(journal.begin(move(2, old_s)), "moved", "", young_s)
        still_open = journal.begin(move(3, old_s))
        for job_id, at_s in ((1, old_s), (2, young_s)):
            journal.lease(lease(job_id))
            journal.end_lease(job_id, "", at_s)
            journal.observe(seen(job_id, at_s=at_s))
        journal.lease(lease(3)._replace(made_s=old_s, until_s=old_s))
        for job_id in (1, 2):
            journal.add_waited(job_id, 1.0)
            journal.add_sample(Sample(job_id, 0, 1, NOW_S))
            journal.hands_off(job_id, "", NOW_S)
        journal.forget(frozenset({2, 5}), NOW_S)
        assert journal.moves() == [closed_late, still_open]
        assert journal.steps_of(closed_old.move_id) == [] and len(journal.steps_of(closed_late.move_id)) == 1
        assert set(journal.leases()) == {3}
        assert [held.job_id for held, _, _ in journal.ended_leases()] == [2]
        assert [o.job_id for o in journal.observations(0.0)] == [2]
        assert set(journal.waited()) == set(journal.samples()) == journal.left_alone() == {2}
        journal.finish(still_open, "ended", "", old_s)
        journal.forget(frozenset(), NOW_S + 1e9)
        assert journal.moves() == []
        assert journal.begin(move()).move_id == still_open.move_id + 1  # a number is never given twice


def test_ended_leases_are_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENDED", 3)
    with open_journal(path) as journal:
        for job_id in range(8):
            journal.lease(lease(job_id))
            journal.end_lease(job_id, "", NOW_S)
        journal.forget(frozenset(), NOW_S)
        assert [held.job_id for held, _, _ in journal.ended_leases()] == [5, 6, 7]


def test_together_is_all_or_none(path: str) -> None:
    with open_journal(path) as journal:
        with pytest.raises(KeyboardInterrupt), journal.together():
            journal.lease(lease(1))
            journal.add_waited(1, 5.0)
            raise KeyboardInterrupt
        assert journal.leases() == {} and journal.waited() == {}
        with journal.together():
            journal.lease(lease(1))
            journal.forget(frozenset(), NOW_S)
            journal.ticked(NOW_S)
            with open_journal(path, write=False) as reader:
                assert reader.leases() == {}
        assert set(journal.leases()) == {1} and journal.last_tick_s() == NOW_S


def test_a_step_is_never_put_off(path: str) -> None:
    with open_journal(path) as journal:
        begun = journal.begin(move())
        steps: list[Callable[[], Move]] = [
            lambda: journal.begin(move(8)),
            lambda: journal.enter(begun, "held", NOW_S),
            lambda: journal.finish(begun, "moved", "", NOW_S),
        ]
        for step in steps:
            with pytest.raises(RuntimeError, match="on disk at once"), journal.together():
                step()
        assert journal.moves() == [begun]


# Kills and full disks, with a child process for the writer.

WRITER = f"""
import sys, time
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.journal.move_states import MoveStep
journal = open_journal(sys.argv[1])
move = journal.begin(Move(*{plain(move(made_s=0.0))!r}))
print(0, flush=True)
for number in range(1, 100_000):
    if number >= int(sys.argv[2]):
        sys.stdin.read()
    time.sleep(float(sys.argv[3]))
    move = journal.enter(move, [*MoveStep][number % 7], number)
    print(number, flush=True)
"""


def writer(tmp_path: Path, path: str, pause_at: int, rest_s: float = 0.0) -> subprocess.Popen[str]:
    """A child that journals one step after the other, each after a rest, and waits for ever before step `pause_at`."""
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    argv = [sys.executable, str(script), path, str(pause_at), str(rest_s)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)


def told(child: subprocess.Popen[str], lines: int) -> None:
    """Wait until the child has said that so many steps are in the journal."""
    assert child.stdout is not None
    for number in range(lines):
        assert child.stdout.readline() == f"{number}\n"


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_killed_between_two_steps(tmp_path: Path, path: str, steps: int) -> None:
    with writer(tmp_path, path, pause_at=steps) as child:
        told(child, steps)
        child.kill()
    for write in (False, True):
        with open_journal(path, write) as journal:
            (found,) = journal.open_moves()
            entered = journal.steps_of(found.move_id)
            assert [at_s for _, at_s in entered] == [*range(steps)]
            assert (found.step, found.step_s) == entered[-1]


@pytest.mark.parametrize("steps", [1, 5, 20, 60])
def test_killed_anywhere(tmp_path: Path, path: str, steps: int) -> None:
    with writer(tmp_path, path, pause_at=100_000) as child:
        told(child, steps)
        child.kill()
        assert child.stdout is not None
        said = steps + len(child.stdout.read().split("\n")) - 1
    for write in (False, True):
        with open_journal(path, write) as journal:
            (found,) = journal.open_moves()
            entered = journal.steps_of(found.move_id)
            assert [at_s for _, at_s in entered] == [*range(len(entered))]
            assert len(entered) - said in (0, 1)  # the last one may be on disk and not yet reported
            assert (found.step, found.step_s) == entered[-1]


def test_a_reader_undoes_what_a_killed_writer_had_half_written(tmp_path: Path, path: str) -> None:
    with open_journal(path) as journal:
        begun = journal.begin(move())
    torn = str(tmp_path / "torn.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that pages go to the file before the commit
        rows = [(begun.move_id, "x" * 500, 0.0) for _ in range(500)]
        connection.executemany("INSERT INTO steps (move_id, step, at_s) VALUES (?, ?, ?)", rows)
        for end in ("", "-journal"):
            shutil.copyfile(path + end, torn + end)
        connection.rollback()
    assert os.path.getsize(torn) > os.path.getsize(path)
    with open_journal(torn, write=False) as reader:
        assert reader.steps_of(begun.move_id) == [("planned", NOW_S)]
    assert not os.path.exists(torn + "-journal")


def test_reading_while_a_writer_writes(tmp_path: Path, path: str) -> None:
    # A writer without rests holds SQLite's lock nearly always on a slow disk, which no tick does.
    with writer(tmp_path, path, pause_at=300, rest_s=0.02) as child:
        told(child, 1)
        with open_journal(path, write=False) as journal:
            lengths = [len(journal.steps_of(1)) for _ in range(200)]
            assert journal.open_moves()[0].job_id == 7
        assert lengths == sorted(lengths) and lengths[0] >= 1
        with pytest.raises(BusyError, match=rf"another pal-rebalance is already at work \(pid {child.pid}\)"):
            open_journal(path)
        child.kill()


NO_ROOM = f"""
import os, resource, sys
from slurm_pal.base.errors import DataError
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.journal.move_states import MoveStep
with open_journal(sys.argv[1]) as journal:
    move = journal.begin(Move(*{plain(move())!r}))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(sys.argv[1]), hard))
    entered = 1
    try:
        while entered < 100_000:
            move = journal.enter(move, MoveStep.TARGETING, 0.0)
            entered += 1
    except DataError as error:
        print(error)
    assert journal.open_moves() == [move], "half a step"
    assert len(journal.steps_of(move.move_id)) == entered, "half a step"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    journal.enter(move, MoveStep.FREEING, 0.0)
"""


def test_no_room_for_the_file_to_grow(tmp_path: Path, path: str) -> None:
    script = tmp_path / "no_room.py"
    script.write_text(NO_ROOM)
    done = subprocess.run([sys.executable, str(script), path], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{path} cannot be used" in done.stdout and done.stdout.count("\n") == 1
    with open_journal(path, write=False) as journal:
        assert journal.open_moves()[0].step == "freeing"


def test_disk_full(path: str) -> None:
    """SQLite's own limit on pages gives the same error as a full disk."""
    with open_journal(path) as journal:
        begun = journal.begin(move())
        pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match=r"no space left .* nothing was stored"):
            journal.enter(begun, "x" * 10_000, NOW_S)
        with pytest.raises(DataError, match=r"no space left .* nothing was stored"), journal.together():
            journal.ticked(NOW_S)
            journal.lease(lease()._replace(reason="x" * 10_000))
        assert journal.open_moves() == [begun] and journal.steps_of(begun.move_id) == [("planned", NOW_S)]
        assert journal.last_tick_s() == 0.0
        assert journal.finish(begun, "abandoned", "disk full", NOW_S).outcome == "abandoned"


def fails(path: str, match: str, write: bool = True, kind: type[Exception] = DataError) -> None:
    with pytest.raises(kind, match=match) as error:
        open_journal(path, write)
    assert "\n" not in one_line(error.value)


def begun_journal(path: str) -> str:
    with open_journal(path) as journal:
        for job_id in range(50):
            journal.begin(move(job_id))
    return path


def test_one_writer_and_any_number_of_readers(path: str) -> None:
    with open_journal(path) as journal:
        fails(path, "another pal-rebalance is already at work", kind=BusyError)
        journal.begin(move())
        with open_journal(path, write=False) as reader, open_journal(path, write=False) as other:
            assert len(reader.moves()) == len(other.moves()) == 1
        journal.begin(move(8))  # closing a reader takes nothing from the writer
    open_journal(path).close()


def test_a_reader_cannot_write(path: str) -> None:
    with open_journal(begun_journal(path), write=False) as journal:
        with pytest.raises(DataError, match="cannot be opened or written"):
            journal.ticked(NOW_S)
        with pytest.raises(DataError, match="cannot be opened or written"):
            journal.enter(journal.open_moves()[0], "held", NOW_S)
        assert journal.last_tick_s() == 0.0


def test_a_reader_makes_nothing(tmp_path: Path) -> None:
    fails(str(tmp_path / "j.db"), "no journal at .*: pal-rebalance has not acted yet", write=False)
    fails(str(tmp_path / "absent" / "j.db"), "no journal", write=False)
    assert os.listdir(tmp_path) == []


def test_a_newer_schema_is_refused_and_left_alone(path: str) -> None:
    with closing(sqlite3.connect(begun_journal(path))) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = Path(path).read_bytes()
    for write in (False, True):
        fails(path, f"schema 99, newer than {SCHEMA} known here: update slurm-pal", write)
    assert Path(path).read_bytes() == before


def test_an_older_schema_is_migrated_by_the_writer_only(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_journal(path)
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, ("ALTER TABLE moves ADD COLUMN note TEXT",)))
    fails(path, f"older than {SCHEMA + 1}: run pal-rebalance --once to migrate it", write=False)
    for write in (True, False):
        with open_journal(path, write) as journal:
            assert len(journal.moves()) == 50


def test_the_leases_of_many_jobs_that_ended_last(path: str) -> None:
    with open_journal(path) as journal:
        for number, (job_id, kind, ours) in enumerate(
            [
                (7, LeaseKind.PARTITION, "a"),
                (8, LeaseKind.PARTITION, "a"),
                (7, LeaseKind.PARTITION, "b"),
                (7, LeaseKind.NODELIST, "n1"),
                (9, LeaseKind.EXCLUDE, "n2"),
            ]
        ):
            journal.lease(TickLease(job_id, kind, ours, "a,b", NOW_S, NOW_S, 0, "why"))
            journal.end_lease(job_id, "over", NOW_S + number, kind.sort)
        journal.lease(TickLease(8, LeaseKind.PARTITION, "b", "a,b", NOW_S, NOW_S, 0, "in force"))
        found = journal.last_ended([7, 8, 9, 10], LeaseKind.PARTITION)
        assert {job_id: lease.ours for job_id, lease in found.items()} == {7: "b", 8: "a"}
        assert journal.last_ended([9, 10], LeaseKind.PARTITION) == journal.last_ended([], LeaseKind.PARTITION) == {}
        assert journal.last_ended(range(1, 5000), LeaseKind.PARTITION) == found


def test_moves_of_the_first_schema_stay_in_their_partitions(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as first:
        first.setattr(module, "MIGRATIONS", module.MIGRATIONS[:1])
        open_journal(path).close()
    old = move(7)[1:-6]
    row = [json.dumps(value) if isinstance(value, tuple) else value for value in old]
    with closing(sqlite3.connect(path)) as connection, connection:
        names = ", ".join(Move._fields[1:-6])
        connection.execute(f"INSERT INTO moves ({names}) VALUES ({', '.join('?' * len(row))})", row)
    with open_journal(path) as journal:
        (found,) = journal.moves()
        assert found[1:] == (*old, "", "", "", "", 0.0, 0.0)
        other = journal.begin(move(99)._replace(partition="fast", own_partitions="slow,fast"))
        assert journal.moves(job_id=99) == [other] and other.partition == "fast"


def test_leases_of_the_second_schema_come_together(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as second:
        second.setattr(module, "MIGRATIONS", module.MIGRATIONS[:2])
        open_journal(path).close()
    nodes = [lease(7), lease(8, "exclude"), lease(9, "move")]
    partitions = [lease(7, "partition")._replace(ours="fast", own="slow,fast"), lease(10, "partition")]
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, rows in (("leases", nodes), ("partitions", partitions)):
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    fails(path, "run pal-rebalance --once to migrate it", write=False)
    with open_journal(path) as journal:
        assert [*journal.leases().values()] == nodes and [*journal.leases(Sort.PARTITIONS).values()] == partitions
        assert journal.every_lease() == [*nodes, *partitions]
        assert journal.lease_of(7, Sort.PARTITIONS) == partitions[0] and journal.lease_of(8, Sort.PARTITIONS) is None
        journal.end_lease(7, "over", NOW_S)
        assert journal.lease_of(7, Sort.NODES) is None and journal.lease_of(7, Sort.PARTITIONS) == partitions[0]


def test_observations_whose_level_of_the_network_is_not_known_are_forgotten(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(module, "MIGRATIONS", module.MIGRATIONS[:5])
        open_journal(path).close()
    names = "key, job_id, restarts, sensitivity, gpus, predicted, step_s, at_s"
    with closing(sqlite3.connect(path)) as connection, connection:
        for job_id, gpus in ((1, '[["n1", 0], ["n1", 3]]'), (2, '[["n1", 0], ["n2", 3]]'), (3, "[]")):
            row = ("ann train 2 A", job_id, 0, "A", gpus, 1.3, 0.25, NOW_S)
            connection.execute(f"INSERT INTO observations ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    with open_journal(path) as journal:
        one, none = journal.observations(0.0)
        assert one == seen(1)._replace(gpus=(("n1", 0), ("n1", 3)), level=0, locality=1.0)
        assert (none.job_id, none.gpus, one.predicted) == (3, (), 1.3)


def test_a_lease_of_a_kind_that_nobody_knows_is_said(path: str) -> None:
    with open_journal(path) as journal:
        journal.lease(lease(7))
        journal._connection.execute("UPDATE leases SET kind = 'strange'")
        with pytest.raises(DataError, match="kind 'strange' on job 7"):
            journal.leases()


@pytest.mark.parametrize("statement", ["CREATE TABLE music (title TEXT)", "PRAGMA user_version = 1"])
def test_somebody_elses_file_is_refused(path: str, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    before = Path(path).read_bytes()
    for write in (False, True):
        fails(path, "is not a journal of slurm-pal", write)
    assert Path(path).read_bytes() == before


def test_the_database_of_records_is_not_a_journal(tmp_path: Path) -> None:
    database.open_database(str(tmp_path), write=True).close()
    fails(str(tmp_path / "pal.db"), "is not a journal of slurm-pal")


def test_damage_is_told_with_the_way_out(path: str) -> None:
    raw = bytearray(Path(begun_journal(path)).read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    Path(path).write_bytes(raw)
    with pytest.raises(DataError, match=r"damaged .*mv .*damaged-\d+") as error, open_journal(path) as journal:
        journal.open_moves()
    assert "squeue -t PD" in one_line(error.value) and "SPOOL" not in one_line(error.value)


@pytest.mark.parametrize("content", [b"this is not a database" * 50, b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_failed_opening_gives_the_lock_back(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    for _ in range(2):
        fails(path, "damaged.*squeue -t PD")


def test_truncated(path: str) -> None:
    Path(path).write_bytes(Path(begun_journal(path)).read_bytes()[:9000])
    with pytest.raises(DataError, match="damaged"), open_journal(path, write=False) as journal:
        journal.moves()


@pytest.mark.parametrize("write", [True, False])
def test_an_empty_file_is_not_taken_for_a_new_journal(path: str, write: bool) -> None:
    Path(begun_journal(path)).write_bytes(b"")
    fails(path, r"has 0 bytes, .* lost: put a backup in its place, or mv .*\.empty-\d+, the next tick.*squeue", write)
    assert os.path.getsize(path) == 0


def test_a_value_that_makes_no_sense_is_told(path: str) -> None:
    with closing(sqlite3.connect(begun_journal(path))) as connection, connection:
        connection.execute("UPDATE moves SET target = '{'")
    with open_journal(path, write=False) as journal, pytest.raises(DataError, match="not a JSON list"):
        journal.moves()


def test_locked_by_another_program(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.0)
    with open_journal(begun_journal(path)) as journal, closing(sqlite3.connect(path)) as stranger:
        (first, *_), known = journal.open_moves(), len(journal.moves())
        stranger.execute("BEGIN")
        stranger.execute("SELECT * FROM moves").fetchone()  # keeps a shared lock: nothing can be committed
        with pytest.raises(BusyError, match="locked by another program"):
            journal.enter(first, "held", NOW_S)
        stranger.rollback()
        assert journal.steps_of(first.move_id) == [("planned", NOW_S)] and len(journal.moves()) == known
        journal.enter(first, "held", NOW_S)


# Whose files these are.


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_only_the_owner_reads_it(path: str, mask: int) -> None:
    old = os.umask(mask)
    try:
        with open_journal(path) as journal, journal.together():
            journal.ticked(NOW_S)
            journal.lease(lease())
            assert mode(f"{path}-journal") == 0o600
    finally:
        os.umask(old)
    # Who could open the lock's file could hold the lock, and keep the tick out.
    assert mode(path) == mode(f"{path}.lock") == 0o600


def test_a_file_that_others_could_read_is_closed_to_them(path: str) -> None:
    os.chmod(begun_journal(path), 0o644)
    open_journal(path).close()
    assert mode(path) == 0o600


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o711)
    open_journal(str(tmp_path / "j.db")).close()
    assert mode(str(tmp_path)) == 0o711


@pytest.mark.parametrize(("is_slurm_user", "wanted"), [(True, 0o755), (False, 0o700)])
def test_the_directory_is_made_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slurm_user: bool, wanted: int
) -> None:
    uid = os.getuid()
    monkeypatch.setattr(module, "slurm_user_uid", lambda: uid)
    monkeypatch.setattr(os, "geteuid", lambda: uid if is_slurm_user else uid + 1)
    open_journal(str(tmp_path / "state" / "j.db")).close()
    assert mode(str(tmp_path / "state")) == wanted


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fails(str(tmp_path / "file" / "state" / "j.db"), "cannot be made .*: set paths.state_dir")
    fails(str(tmp_path / "file" / "j.db"), "cannot be made .*: set paths.state_dir")


@pytest.mark.parametrize("name", ["", "j.db"])
def test_what_everyone_can_write_is_not_trusted(tmp_path: Path, name: str) -> None:
    begun_journal(str(tmp_path / "j.db"))
    os.chmod(tmp_path / name, 0o777)
    for write in (False, True):
        fails(str(tmp_path / "j.db"), "can be written by everyone: chmod o-w", write)
    os.chmod(tmp_path / name, 0o700)


@root_only
@pytest.mark.parametrize("name", ["", "j.db"])
def test_root_takes_no_strangers_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("SlurmUser=root\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    begun_journal(str(tmp_path / "j.db"))
    os.chown(tmp_path / name, 65534, -1)
    for write in (False, True):
        fails(str(tmp_path / "j.db"), "belongs to uid 65534, but root and SlurmUser", write)
    conf.write_text("SlurmUser=nobody\n")  # then 65534 is no stranger
    with open_journal(str(tmp_path / "j.db")) as journal:
        assert len(journal.moves()) == 50
    os.chown(tmp_path / name, 0, -1)


def opened_up(tmp_path: Path, base: Path) -> Path:
    """A directory that others can reach: pytest's own private directories get that bit, and no other directory."""
    own = [tmp_path, base, *(base.parents[:1] if base.parent.name.startswith("pytest-of-") else ())]
    for directory in own:
        directory.chmod(stat.S_IMODE(directory.stat().st_mode) | 0o011)
    return tmp_path


@root_only
def test_another_user_can_neither_read_nor_lock_it(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = begun_journal(str(opened_up(tmp_path, tmp_path_factory.getbasetemp()) / "j.db"))
    with unprivileged():
        if not os.path.exists(path):
            pytest.skip("the directory of temporary files is closed to other users")
        fails(path, "run as its owner", write=False)
        fails(path, "cannot be written .* run as the owner of")
        with pytest.raises(PermissionError):
            os.open(f"{path}.lock", os.O_RDONLY)


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_what_is_no_file_is_refused(path: str, kind: str) -> None:
    os.mkfifo(path) if kind == "fifo" else os.mkdir(path)
    for write in (False, True):
        fails(path, "is not a regular file", write)


@pytest.mark.parametrize("name", ["with space", "it's", "q?mode=memory", "100%41", "ä#b"])
def test_any_name_of_a_directory(tmp_path: Path, name: str) -> None:
    begun_journal(str(tmp_path / name / "j.db"))
    assert sorted(os.listdir(tmp_path / name)) == ["j.db", "j.db.lock"]


def test_close_is_enough(path: str) -> None:
    journal = open_journal(path)
    assert isinstance(journal, Journal)
    journal.close()
    open_journal(path).close()


def test_a_step_outlives_a_loss_of_power(path: str) -> None:
    """What can be tested of it: SQLite waits for the disk, and for the directory from which PATH-journal goes."""
    with open_journal(path) as journal:
        pragmas = [
            journal._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
        ]
    assert pragmas == [3, "delete"]
