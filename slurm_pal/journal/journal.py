# SPDX-License-Identifier: MIT
"""The journal: what the tick has begun, so that a killed tick is finished or undone by the next one.

One SQLite file with one writer, on the controller's local disk. A step of a move is on disk before
it is taken. Nothing is ordered by time: a clock may jump. Mode 0600, since it shows whose job is
moved where, and since a reader that stops halfway would block the writer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import slurm_user_uid
from slurm_pal.base.hostlist import expand
from slurm_pal.decide.place import GivenPlace
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.migrations import MIGRATIONS
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.store.database import (
    BUSY_TIMEOUT_S,
    Opened,
    Schema,
    check_not_empty,
    create,
    make_directory,
    migrate,
    said,
    writer_lock,
)

APPLICATION_ID = 0x70616C32  # "pal2"
KEPT_S = 90 * 86400.0
"""Closed moves, ended leases and observations are forgotten after this time."""
MOST_ENDED = 200_000
"""Ended leases that are kept at most: a busy queue may end several in each tick of 90 days."""

BREAKS = "it breaks us: "
"""Begins the reason why a job is left alone on which our code fails; stored, so the words stay."""
REPLACED, REFUSED = "another list takes its place", "Slurm refused: "
"""Reasons for the end of leases whose update may or may not have reached Slurm."""
DOUBT_S = 900.0
"""The longest time of a tick: what was in doubt at the last one is no older."""

REPAIR = (
    "the next tick begins a new one; jobs that the old one left held or pinned: squeue -t PD -O JobID,Reason,ReqNodes"
)


class Move(NamedTuple):
    """One move of one job."""

    move_id: int  # given by `Journal.begin`
    job_id: int
    user: str
    made_s: float  # Unix s, as are all `_s` that are points in time
    restarts: int  # of the job when the move was planned
    source: str  # GPUs it held, "n3:0,1 n4:2"
    target: tuple[str, ...]  # nodes it is sent to
    target_gpus: str  # GPUs expected there, same form as source
    own_req: str  # the user's own ReqNodeList at planning, as a hostlist ("" none)
    before: float  # believed time factor (slowdown x locality) where it was
    after: float  # and where it goes, by the same measure
    gain_s: float  # predicted, cost not deducted
    cost_s: float  # predicted
    checkpoint: bool  # signal the batch shell and wait for the acknowledgement
    ack: str  # value of the job's pal:ack word before the signal ("" none)
    step: MoveStep
    step_s: float  # when that step was entered
    outcome: MoveOutcome = MoveOutcome.OPEN
    detail: str = ""
    ended_s: float = 0.0
    observed: float | None = None  # step time before / after, from pal progress; None unknown
    partition: str = ""  # where it is sent; "" where its partitions stay
    own_partitions: str = ""  # the user's own list, where it is sent to a partition
    old_partitions: str = ""  # ours from before the move, that may stand in its place ("" none)
    owners: str = ""  # partitions that want the nodes back: no move to better GPUs, and without a target
    ran_s: float = 0.0  # of a job that leaves for owners: how long its run had lasted
    saving: float = 0.0  # money that a move to a cheaper partition saves, predicted; 0.0 of a move for time


class LoanList(NamedTuple):
    """The nodes of the guests' partition while some of them are closed."""

    guest: str  # the partition
    own: str  # as the site wrote it, a hostlist, as the next two
    ours: str
    before: str  # what was set until then, and may still be; several with a blank between where a tick was killed
    made_s: float  # Unix s
    until_s: float  # then it ends, if no tick says otherwise

    def stands(self, nodes: Iterable[str]) -> bool:
        """Whether a partition with these nodes bears a list of ours; any other is the site's own: slurmctld has read
        slurm.conf anew, or somebody has changed it."""
        return {*nodes} in [{*expand(one)} for one in (self.ours, *self.earlier)]

    @property
    def earlier(self) -> list[str]:
        """The hostlists of `before`; an empty one is one."""
        return self.before.split(" ")


class LoanOrder(NamedTuple):
    """What was decided about the nodes of owners."""

    guest: str
    at_s: float
    due: bool  # False: between two orders, since jobs of owners wait
    total: int  # usable nodes of the owners
    used: int  # by jobs of theirs
    waiting: int  # that more of their jobs wait for
    predicted: float | None  # what they will need until the next order; None: nothing is known
    allowed: int  # that may be open
    open: str  # that are from then on, a hostlist
    why: str


class Scaling(NamedTuple):
    """A change of the number of an elastic job's workers that a tick ordered."""

    job_id: int  # of the base job
    at_s: float
    workers: int  # that it is to have
    why: str


class Sample(NamedTuple):
    """One look at a job's progress."""

    job_id: int
    restarts: int
    iteration: int
    at_s: float


class Observation(NamedTuple):
    """Step time of one incarnation of a job on its GPUs."""

    key: str  # "user job-name gpus class": jobs that should take the same time per step
    job_id: int
    restarts: int
    sensitivity: str
    gpus: tuple[tuple[str, int], ...]  # (node, index)
    slowdown: float  # believed of the slowest of them
    step_s: float  # seconds per iteration
    at_s: float
    level: int = 0  # of the network that its nodes span (Topology.span)
    locality: float = 1.0  # the penalty that was believed there

    @property
    def predicted(self) -> float:
        """The time factor that was believed there."""
        return self.slowdown * self.locality


def _insert(table: str, fields: Iterable[str], verb: str = "INSERT") -> str:
    names = tuple(fields)
    return f"{verb} INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


_MOVE_COLUMNS = ", ".join(Move._fields)
_EVERY_MOVE = f"SELECT {_MOVE_COLUMNS} FROM moves ORDER BY move_id"
_NEW_MOVE = _insert("moves", Move._fields[1:])
_NEW_STEP = _insert("steps", ("move_id", "step", "at_s"))
_LEASE_COLUMNS = ", ".join(TickLease._fields)
_SET_LEASE = _insert("leases", ("sort", *TickLease._fields), "REPLACE")
_END_LEASE = (
    f"INSERT INTO ended_leases ({_LEASE_COLUMNS}, why, ended_s) "
    f"SELECT {_LEASE_COLUMNS}, ?, ? FROM leases WHERE job_id = ? AND sort = ?"
)
_SET_SAMPLE = _insert("samples", Sample._fields, "REPLACE")
_OBSERVATION_COLUMNS = ", ".join(Observation._fields)
_SET_OBSERVATION = _insert("observations", Observation._fields, "REPLACE")
_SET_PLACE = _insert("given_places", GivenPlace._fields, "REPLACE")
_SET_LOAN_LIST = _insert("loan_lists", LoanList._fields, "REPLACE")
_NEW_ORDER = _insert("loan_orders", LoanOrder._fields)
_NEW_SCALING = _insert("scalings", Scaling._fields)
_RUN_FIELDS = ("job_id", "user", "name", "gpus", "run_s", "limit_s", "ended_s")
_NEW_RUN = _insert("runs", _RUN_FIELDS)
_OF_THE_LIVING = ("waited", "samples", "hands_off", "overtaken")
_OVERFLOW = "DELETE FROM ended_leases WHERE id <= (SELECT max(id) FROM ended_leases) - ?"
_AGEING = (
    "DELETE FROM steps WHERE move_id IN (SELECT move_id FROM moves WHERE outcome != '' AND ended_s < ?)",
    "DELETE FROM moves WHERE outcome != '' AND ended_s < ?",
    "DELETE FROM ended_leases WHERE ended_s < ?",
    "DELETE FROM observations WHERE at_s < ?",
    "DELETE FROM runs WHERE ended_s < ?",
    "DELETE FROM loan_orders WHERE at_s < ?",
    "DELETE FROM scalings WHERE at_s < ?",
    "DELETE FROM rates WHERE at_s < ?",
    "DELETE FROM given_places WHERE ended_s > 0 AND ended_s < ?",
)


class Journal(Opened):
    """An open journal. Use `open_journal`.

    Each method that writes has its change on disk when it returns, whole or not at all. All
    methods raise DataError when the file is damaged, the disk is full or the journal was opened
    for reading, and BusyError when another program keeps the file locked for five seconds.
    """

    _file: tuple[int, int] = (0, 0)  # device and inode of what is open
    _known: list[Move] | None = None  # every move, as last read; None: must be read
    _steps: dict[int, list[tuple[str, float]]] = {}  # of moves that are finished
    _version = 0  # of the file, which others may change, when these were read

    def in_place(self) -> str:
        """Check that PATH still names the open file; returns what was done where it does not, else "".

        A file that was deleted or replaced is written anew, with all that the open one holds; a file in its place
        is put aside. Raises DataError where that cannot be done.
        """
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._file:
                return ""
        aside, what = "", "deleted"
        if os.path.lexists(self.path):
            aside, what = f"{self.path}.aside-{int(time.time())}", "replaced"
            try:
                os.rename(self.path, aside)
            except OSError as error:
                raise DataError(f"{self.path} was replaced, and cannot be moved aside ({error.strerror})") from None
        make_directory(os.path.dirname(self.path) or ".", 0o755)
        for left in (f"{self.path}-journal", f"{self.path}-wal"):  # of the other file: must not be replayed into ours
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
        create(self.path, _schema(), 0o600)
        with said(self.path, REPAIR):
            new = _connected(self.path)
            try:
                self._connection.backup(new)
            except BaseException:
                new.close()
                raise
        self._connection.close()
        self._connection, self._file = new, _identity(self.path)
        self._known, self._steps = None, {}
        put = f", the other one is {aside}" if aside else ""
        return f"the journal {self.path} was {what}: it is written anew{put}"

    def close(self) -> None:
        """Close the file and give the writer's lock back."""
        self._connection.close()
        super().close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All writes of the block in one transaction, which saves the disk a wait for each; an error undoes all.

        Not for `begin`, `enter` and `finish`, which would return before they are on disk: they
        raise RuntimeError in such a block.
        """
        with said(self.path, REPAIR), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with said(self.path, REPAIR):
            if self._connection.in_transaction:
                yield self._connection
            else:
                with self._connection:
                    yield self._connection

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[sqlite3.Connection]:
        if self._connection.in_transaction:
            raise RuntimeError("a step of a move must be on disk at once, not with others together")
        self._known = None
        with self._writing() as connection:
            yield connection

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with said(self.path, REPAIR):
            return self._connection.execute(query, values).fetchall()

    def _decoded(self, text: str) -> list[Any]:
        try:
            return list(json.loads(text))
        except (ValueError, TypeError):
            raise DataError(
                f"{self.path} holds {text!r:.80}, which is not a JSON list: see sqlite3 {self.path}"
            ) from None

    def begin(self, move: Move) -> Move:
        """Store a new move with its first step; returned with its `move_id`.

        Raises DataError, also when the job has an open move already.
        """
        row = move._replace(target=json.dumps(move.target), checkpoint=int(move.checkpoint))  # type: ignore[arg-type]
        with self._stepping() as connection:
            if connection.execute("SELECT 1 FROM moves WHERE job_id = ? AND outcome = ''", (move.job_id,)).fetchone():
                raise DataError(f"job {move.job_id} has an open move in {self.path}: finish that one first")
            move_id = connection.execute(_NEW_MOVE, row[1:]).lastrowid
            assert move_id is not None
            connection.execute(_NEW_STEP, (move_id, move.step, move.step_s))
        return move._replace(move_id=move_id)

    def enter(self, move: Move, step: MoveStep, now_s: float) -> Move:
        """The move is about to take `step`. Raises DataError, also when the move is not open."""
        with self._stepping() as connection:
            self._change_open(move, "step = ?, step_s = ?", step, now_s)
            connection.execute(_NEW_STEP, (move.move_id, step, now_s))
        return move._replace(step=step, step_s=now_s)

    def finish(self, move: Move, outcome: MoveOutcome, detail: str, now_s: float) -> Move:
        """The move is over. Raises DataError, also when it is not open."""
        with self._stepping():
            self._change_open(move, "outcome = ?, detail = ?, ended_s = ?", outcome, detail, now_s)
        return move._replace(outcome=outcome, detail=detail, ended_s=now_s)

    def _change_open(self, move: Move, assignments: str, *values: object) -> None:
        statement = f"UPDATE moves SET {assignments} WHERE move_id = ? AND outcome = ''"
        if not self._connection.execute(statement, (*values, move.move_id)).rowcount:
            raise DataError(f"move {move.move_id} of job {move.job_id} is not open in {self.path}")

    def open_moves(self) -> list[Move]:
        """The moves that are not finished, those for owners among them, oldest first."""
        return [move for move in self._moves() if not move.outcome]

    def moves(self, since_s: float = 0.0, job_id: int | None = None) -> list[Move]:
        """Moves made at `since_s` (Unix s) or later, of one job or of all, newest last; none for owners."""
        return [move for move in self._made(since_s, job_id) if not move.owners]

    def reclaims(self, since_s: float = 0.0, job_id: int | None = None) -> list[Move]:
        """The same of jobs that were taken off nodes since their owners wanted them back."""
        return [move for move in self._made(since_s, job_id) if move.owners]

    def _made(self, since_s: float, job_id: int | None) -> list[Move]:
        return [move for move in self._moves() if move.made_s >= since_s and job_id in (None, move.job_id)]

    def _moves(self) -> list[Move]:
        """Every move, oldest first; read anew only where some may have changed: each tick asks several times."""
        version = self._rows("PRAGMA data_version")[0][0]
        if version != self._version:
            self._known, self._steps, self._version = None, {}, version
        if self._known is not None:
            return self._known
        found = [self._move(Move(*row)) for row in self._rows(_EVERY_MOVE)]
        if not self._connection.in_transaction:  # which may be undone
            self._known = found
        return found

    def _move(self, row: Move) -> Move:
        return row._replace(
            target=tuple(self._decoded(str(row.target))),
            checkpoint=bool(row.checkpoint),
            step=MoveStep(row.step),
            outcome=MoveOutcome(row.outcome),
        )

    def steps_of(self, move_id: int) -> list[tuple[str, float]]:
        """The steps of a move in their order: (step, Unix s)."""
        return self._rows("SELECT step, at_s FROM steps WHERE move_id = ? ORDER BY id", move_id)

    def steps_of_each(self, moves: Sequence[Move]) -> list[tuple[Move, list[tuple[str, float]]]]:
        """The same for many moves, by one query."""
        query = "SELECT move_id, step, at_s FROM steps WHERE move_id IN (SELECT value FROM json_each(?)) ORDER BY id"
        found: dict[int, list[tuple[str, float]]]
        found = {move.move_id: [] for move in moves if move.move_id not in self._steps}
        for move_id, step, at_s in self._rows(query, json.dumps([*found])) if found else ():
            found[move_id].append((step, at_s))
        known = self._steps | found
        self._steps = {move.move_id: known[move.move_id] for move in moves if move.outcome}
        return [(move, known[move.move_id]) for move in moves]

    def set_observed(self, move_id: int, observed: float) -> None:
        """What a move has brought: step time before / after."""
        self._known = None
        with self._writing() as connection:
            connection.execute("UPDATE moves SET observed = ? WHERE move_id = ?", (observed, move_id))

    def lease(self, lease: TickLease) -> None:
        """Store the lease of a job; it replaces the one it had of that sort, which is not counted as ended."""
        with self._writing() as connection:
            connection.execute(_SET_LEASE, (lease.kind.sort, *lease))

    def leases(self, sort: Sort = Sort.NODES) -> dict[int, TickLease]:
        """Job -> its lease of this sort."""
        query = f"SELECT {_LEASE_COLUMNS} FROM leases WHERE sort = ? ORDER BY job_id"
        return {row[0]: _lease(row) for row in self._rows(query, sort)}

    def lease_of(self, job_id: int, sort: Sort) -> TickLease | None:
        """The lease of one job."""
        query = f"SELECT {_LEASE_COLUMNS} FROM leases WHERE job_id = ? AND sort = ?"
        return next(map(_lease, self._rows(query, job_id, sort)), None)

    def every_lease(self) -> list[TickLease]:
        """All leases, those of nodes first."""
        return [*map(_lease, self._rows(f"SELECT {_LEASE_COLUMNS} FROM leases ORDER BY sort, job_id"))]

    def end_lease(self, job_id: int, why: str, now_s: float, sort: Sort = Sort.NODES) -> None:
        """End the lease of a job, if it has one."""
        with self._writing() as connection:
            connection.execute(_END_LEASE, (why, now_s, job_id, sort))
            connection.execute("DELETE FROM leases WHERE job_id = ? AND sort = ?", (job_id, sort))

    def ended_leases(self, job_id: int | None = None, since_s: float = 0.0) -> list[tuple[TickLease, str, float]]:
        """(lease, why it ended, when) of one job or of all, ended at `since_s` or later; the last to end is last."""
        condition, values = "ended_s >= ?", [since_s]
        if job_id is not None:
            condition, values = f"{condition} AND job_id = ?", [since_s, job_id]
        query = f"SELECT {_LEASE_COLUMNS}, why, ended_s FROM ended_leases WHERE {condition} ORDER BY id"
        rows = self._rows(query, *values)
        return [(_lease(row[:-2]), row[-2], row[-1]) for row in rows]

    def last_ended(self, job_ids: Iterable[int], kind: LeaseKind) -> dict[int, TickLease]:
        """Job -> the lease of this kind that ended last; for those jobs that had one. One query for all."""
        of_these = "kind = ? AND job_id IN (SELECT value FROM json_each(?))"
        newest = f"SELECT max(id) FROM ended_leases WHERE {of_these} GROUP BY job_id"
        query = f"SELECT {_LEASE_COLUMNS} FROM ended_leases WHERE id IN ({newest})"
        return {row[0]: _lease(row) for row in self._rows(query, kind, json.dumps([*job_ids]))}

    def hands_off(self, job_id: int, why: str, now_s: float) -> None:
        """Leave this job alone for as long as it is in the queue."""
        with self._writing() as connection:
            connection.execute("REPLACE INTO hands_off VALUES (?, ?, ?)", (job_id, why, now_s))

    def mend(self, job_id: int | None = None) -> None:
        """Give a job on which our code failed another chance; None: all of them."""
        which, values = ("", ()) if job_id is None else (" AND job_id = ?", (job_id,))
        with self._writing() as connection:
            connection.execute(f"DELETE FROM hands_off WHERE why LIKE '{BREAKS}%'{which}", values)

    def broken(self) -> dict[int, str]:
        """Job -> why, of those that are left alone because our code fails on them."""
        rows = self._rows(f"SELECT job_id, why FROM hands_off WHERE why LIKE '{BREAKS}%' ORDER BY job_id")
        return {job_id: why.removeprefix(BREAKS) for job_id, why in rows}

    def left_alone(self) -> frozenset[int]:
        """The jobs that `hands_off` named."""
        return frozenset(row[0] for row in self._rows("SELECT job_id FROM hands_off"))

    def waited(self) -> dict[int, float]:
        """Job -> seconds it waited because of our lists."""
        return dict(self._rows("SELECT job_id, seconds FROM waited"))

    def add_waited(self, job_id: int, seconds: float) -> None:
        """The job waited `seconds` longer because of our lists."""
        statement = (
            "INSERT INTO waited VALUES (?, ?) ON CONFLICT (job_id) DO UPDATE SET seconds = seconds + excluded.seconds"
        )
        with self._writing() as connection:
            connection.execute(statement, (job_id, seconds))

    def weights(self) -> dict[str, int]:
        """Node -> the Weight it had before we changed it."""
        return dict(self._rows("SELECT node, base FROM weights"))

    def set_weight(self, node: str, base: int | None) -> None:
        """Remember the Weight that a node had before we changed it; None forgets it."""
        with self._writing() as connection:
            if base is None:
                connection.execute("DELETE FROM weights WHERE node = ?", (node,))
            else:
                connection.execute("REPLACE INTO weights VALUES (?, ?)", (node, base))

    def given_places(self, job_id: int | None = None) -> dict[int, GivenPlace]:
        """Job -> the place in the queue that it has from us; of one job also the last that it had."""
        condition, values = ("ended_s = 0", ()) if job_id is None else ("job_id = ?", (job_id,))
        query = f"SELECT {', '.join(GivenPlace._fields)} FROM given_places WHERE {condition} ORDER BY job_id"
        return {row[0]: GivenPlace(*row) for row in self._rows(query, *values)}

    def give_places(self, places: Iterable[GivenPlace]) -> None:
        """Remember places, before they are set."""
        with self._writing() as connection:
            connection.executemany(_SET_PLACE, list(places))

    def end_places(self, job_ids: Iterable[int], now_s: float) -> None:
        """These jobs have their own values back, or are gone."""
        with self._writing() as connection:
            connection.executemany(
                "UPDATE given_places SET ended_s = ? WHERE job_id = ?", [(now_s, job_id) for job_id in job_ids]
            )

    def overtaken(self) -> dict[int, float]:
        """Job -> GPU s that went to jobs behind it while it waited."""
        return dict(self._rows("SELECT job_id, gpu_s FROM overtaken"))

    def set_overtaken(self, gpu_s: Mapping[int, float]) -> None:
        """Remember that of all jobs."""
        with self._writing() as connection:
            connection.execute("DELETE FROM overtaken")
            connection.executemany("INSERT INTO overtaken VALUES (?, ?)", list(gpu_s.items()))

    def runs(self, since_s: float) -> list[tuple[int, str, str, int, float, float, float]]:
        """Runs that ended at `since_s` or later, in that order: job, user, name, GPUs, s, limit (0: none), end."""
        return self._rows(f"SELECT {', '.join(_RUN_FIELDS)} FROM runs WHERE ended_s >= ? ORDER BY id", since_s)

    def add_runs(self, runs: Iterable[Sequence[object]]) -> None:
        """Remember runs that have ended, in the form of `runs`."""
        with self._writing() as connection:
            connection.executemany(_NEW_RUN, [tuple(run) for run in runs])

    def loan_lists(self) -> list[LoanList]:
        """The lists of partitions that are ours."""
        return [LoanList(*row) for row in self._rows(f"SELECT {', '.join(LoanList._fields)} FROM loan_lists")]

    def set_loan_list(self, listed: LoanList) -> None:
        """Remember a list, before it is set."""
        with self._writing() as connection:
            connection.execute(_SET_LOAN_LIST, listed)

    def end_loan_list(self, guest: str) -> None:
        """The partition has its own list back."""
        with self._writing() as connection:
            connection.execute("DELETE FROM loan_lists WHERE guest = ?", (guest,))

    def loan_orders(self, since_s: float = 0.0) -> list[LoanOrder]:
        """Orders given at `since_s` (Unix s) or later, newest last."""
        query = f"SELECT {', '.join(LoanOrder._fields)} FROM loan_orders WHERE at_s >= ? ORDER BY id"
        return [LoanOrder(*row)._replace(due=bool(row[2])) for row in self._rows(query, since_s)]

    def add_loan_order(self, order: LoanOrder) -> None:
        """An order was given."""
        with self._writing() as connection:
            connection.execute(_NEW_ORDER, order)

    def demand(self, owners: str, since_hour: int) -> dict[int, float]:
        """Hour (Unix time / 3600 s) -> the most nodes that these partitions needed in it."""
        query = "SELECT hour, nodes FROM demand WHERE owners = ? AND hour >= ? ORDER BY hour"
        return dict(self._rows(query, owners, since_hour))

    def add_demand(self, owners: str, nodes: Mapping[int, float], oldest_hour: int) -> None:
        """Remember what was needed: the larger number of each hour stays, what is older than `oldest_hour` goes."""
        statement = (
            "INSERT INTO demand VALUES (?, ?, ?) "
            "ON CONFLICT (owners, hour) DO UPDATE SET nodes = max(nodes, excluded.nodes)"
        )
        with self._writing() as connection:
            connection.executemany(statement, [(owners, hour, number) for hour, number in nodes.items()])
            connection.execute("DELETE FROM demand WHERE hour < ?", (oldest_hour,))

    def scalings(self, since_s: float = 0.0, job_id: int | None = None) -> list[Scaling]:
        """Changes ordered at `since_s` or later, of one base job or of all, newest last."""
        query = f"SELECT {', '.join(Scaling._fields)} FROM scalings WHERE at_s >= ? ORDER BY id"
        return [one for row in self._rows(query, since_s) if job_id in (None, (one := Scaling(*row)).job_id)]

    def add_scalings(self, scalings: Iterable[Scaling]) -> None:
        """Remember changes, before they are ordered."""
        with self._writing() as connection:
            connection.executemany(_NEW_SCALING, list(scalings))

    def rates(self) -> dict[str, dict[int, float]]:
        """Kind of elastic job -> workers -> iterations per second with so many, as last seen."""
        found: dict[str, dict[int, float]] = {}
        for key, workers, rate in self._rows("SELECT key, workers, rate FROM rates"):
            found.setdefault(key, {})[workers] = rate
        return found

    def set_rates(self, rates: Iterable[tuple[str, int, float]], now_s: float) -> None:
        """Remember rows (kind of job, workers, iterations per second) in place of what was known."""
        with self._writing() as connection:
            connection.executemany("REPLACE INTO rates VALUES (?, ?, ?, ?)", [(*row, now_s) for row in rates])

    def samples(self) -> dict[int, Sample]:
        """Job -> the last look at its progress."""
        rows = self._rows(f"SELECT {', '.join(Sample._fields)} FROM samples")
        return {row[0]: Sample(*row) for row in rows}

    def add_sample(self, sample: Sample) -> None:
        """Keep a look at a job's progress in place of the last one."""
        with self._writing() as connection:
            connection.execute(_SET_SAMPLE, sample)

    def observe(self, seen: Observation) -> None:
        """Keep what was seen of one incarnation of a job, in place of what was seen of it before."""
        row = seen._replace(gpus=json.dumps(seen.gpus))  # type: ignore[arg-type]
        with self._writing() as connection:
            connection.execute(_SET_OBSERVATION, row)

    def observations(self, since_s: float) -> list[Observation]:
        """Observations made at `since_s` (Unix s) or later, in the order in which they came."""
        query = f"SELECT {_OBSERVATION_COLUMNS} FROM observations WHERE at_s >= ? ORDER BY id"
        found = [Observation(*row) for row in self._rows(query, since_s)]
        return [seen._replace(gpus=tuple((n, i) for n, i in self._decoded(str(seen.gpus)))) for seen in found]

    def last_tick_s(self) -> float:
        """When the last tick was (Unix s); 0 before the first."""
        rows = self._rows("SELECT at_s FROM ticks")
        return float(rows[0][0]) if rows else 0.0

    def ticked(self, now_s: float) -> None:
        """A tick was at `now_s`."""
        with self._writing() as connection:
            connection.execute("REPLACE INTO ticks VALUES (1, ?)", (now_s,))

    def forget(self, living: frozenset[int], now_s: float) -> None:
        """Drop waits, samples and hands-off of jobs that are not in the queue (`living`), and what ended 90 days ago.

        Open moves and leases in force stay, whatever their age.
        """
        with self._writing() as connection:
            for table in _OF_THE_LIVING:
                known = {row[0] for row in connection.execute(f"SELECT job_id FROM {table}")}
                gone = [(job_id,) for job_id in sorted(known - living)]
                connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", gone)
            connection.execute(_OVERFLOW, (MOST_ENDED,))
            before = connection.total_changes
            for statement in _AGEING:
                connection.execute(statement, (now_s - KEPT_S,))
            if connection.total_changes != before:
                self._known, self._steps = None, {}


def _lease(row: Sequence[Any]) -> TickLease:
    job_id, kind, *rest = row
    if kind not in [*LeaseKind]:
        known = ", ".join(LeaseKind)
        raise DataError(f"the journal has a lease of the kind {kind!r:.40} on job {job_id}, not {known}: {REPAIR}")
    return TickLease(job_id, LeaseKind(kind), *rest)


def open_journal(path: str, write: bool = True) -> Journal:
    """Open the journal at `path`; with `write` create or migrate it (0600) and hold the writer's lock.

    Reading takes no lock of ours and needs no writer.

    Raises BusyError when another writer holds PATH.lock; DataError when the file is missing
    (reading), damaged, not ours, from a newer schema, where others could write it, or
    cannot be opened or created.
    """
    folder, powers = os.path.dirname(path) or ".", {0, slurm_user_uid()}
    with contextlib.ExitStack() as stack:
        if write:
            make_directory(folder, 0o755 if os.geteuid() in powers else 0o700)
        elif not os.path.exists(path):
            raise DataError(f"no journal at {path}: pal-rebalance has not acted yet")
        _check_trust(folder, path, powers)
        if write:
            stack.enter_context(writer_lock(path, "another pal-rebalance"))
            create(path, _schema(), 0o600)
            with contextlib.suppress(PermissionError):  # not ours, yet writable: leave its mode
                os.chmod(path, 0o600)
        with said(path, REPAIR):
            connection = _connected(path, write)
            stack.callback(connection.close)
            migrate(connection, path, _schema(), write)
        journal = Journal(path, connection, stack.pop_all())
        with contextlib.suppress(OSError):
            journal._file = _identity(path)
        return journal
    raise AssertionError("unreachable")


def _connected(path: str, write: bool = True) -> sqlite3.Connection:
    # A reader, too, must be able to roll back what a killed writer left: so rw, and query_only.
    connection = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("PRAGMA journal_mode = DELETE" if write else "PRAGMA query_only = ON")
        connection.execute("PRAGMA synchronous = EXTRA")  # FULL, and the removal of the rollback journal as well
    except BaseException:
        connection.close()
        raise
    return connection


def _identity(path: str) -> tuple[int, int]:
    """Device and inode of a file. Raises OSError."""
    found = os.stat(path, follow_symlinks=False)
    return found.st_dev, found.st_ino


def _schema() -> Schema:
    what, renew = "a journal of slurm-pal", "pal-rebalance --once"
    return Schema(APPLICATION_ID, len(MIGRATIONS), MIGRATIONS, what, "move it away or set paths.state_dir", renew)


def _check_trust(folder: str, path: str, powers: set[int]) -> None:
    """The rule of `files.open_trusted`, for the file and its directory; by name, before SQLite opens it.

    The directory counts, since SQLite believes any PATH-journal that it finds there. The file is
    not opened: to close it again would take SQLite's locks away from another connection.
    """
    for name, right_kind, kind in ((folder, stat.S_ISDIR, "directory"), (path, stat.S_ISREG, "regular file")):
        try:
            info = os.stat(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"{name} cannot be looked at ({error.strerror}): run as the owner of {path}") from None
        if not right_kind(info.st_mode):
            raise DataError(f"{name} is not a {kind}: move it away")
        if info.st_mode & 0o002:
            raise DataError(f"{name} can be written by everyone: chmod o-w {name}")
        if right_kind is stat.S_ISREG:
            check_not_empty(path, info.st_size, REPAIR)
        if os.geteuid() in powers and info.st_uid not in powers:
            rule = "root and SlurmUser keep their journal in files of their own"
            raise DataError(f"{name} belongs to uid {info.st_uid}, but {rule}: move it away or set paths.state_dir")
