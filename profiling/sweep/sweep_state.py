# SPDX-License-Identifier: MIT
"""A sweep on disk: its plan, written once, and a journal of each node's states.

`STATE_DIR/sweeps/<sweep_id>/plan.json` is replaced atomically; `journal.jsonl` only
grows, one line per change, and its last line for a node counts. A journal cut off by a
crash loses at most its last line, which Slurm and the result files show again.
"""

from __future__ import annotations

import calendar
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, get_origin, get_type_hints

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.files import MOST_BYTES, read_plain, read_trusted, write_atomic
from slurm_pal.base.numbers import digits
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.sweep import spending
from slurm_pal.profiling.sweep.plan import ChosenNode, SweepPlan
from slurm_pal.profiling.sweep.spending import Expense
from slurm_pal.profiling.sweep.sweep_job import JobOptions
from slurm_pal.variability.records import check_schema

SCHEMA = "pal.sweep/1"
TODO, SUBMITTED, DONE, PARTIAL, FAILED, SKIPPED = "todo", "submitted", "done", "partial", "failed", "skipped"
STATES = {
    TODO: "not yet submitted",
    SUBMITTED: "its job is pending or running",
    DONE: "all GPUs measured",
    PARTIAL: "some GPUs measured",
    FAILED: "no usable result; --resume tries again",
    SKIPPED: "not measured, see the reason; --resume tries again",
}
OVER = frozenset({DONE, PARTIAL, FAILED, SKIPPED})
RESULT = frozenset({DONE, PARTIAL})
SWEEPS_BACK = 30
"""A node that the last so many sweeps did not take is no longer first in line."""

_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{5}")


class NodeState(NamedTuple):
    """Where one node of a sweep stands."""

    state: str = TODO
    job_id: int = 0
    since_s: float = 0.0  # Unix time of the last change
    reason: str = ""
    attempts: int = 0  # jobs submitted so far
    gpus: int = 0  # GPUs measured
    leavings: int = 0  # how often a job of this sweep has left it, for users' jobs
    leaves_for: int = 0  # the user's job for which the last one left, or is leaving; -1: it left early, for none yet
    rest: str = ""  # benchmarks that are still to be run there, comma-separated; "": all
    stays: bool = False  # its job leaves only for a user's job that waits


class Pause(NamedTuple):
    """Why a sweep submits nothing now."""

    why: str
    since_s: float  # Unix s
    until_s: float = 0.0  # Unix s; 0.0: not known
    withdraw: bool = True  # pending jobs are taken back as well


class SweepTerms(NamedTuple):
    """What was agreed when the sweep was planned."""

    job: JobOptions
    created_s: float
    max_parallel: int
    pending_max_s: float
    chosen: tuple[ChosenNode, ...]
    skipped: dict[str, str]
    node_s: float
    window: str = ""  # hours of the day, see window.py; "": all day
    budget_gpu_h_per_day: float = 0.0  # 0: no limit
    yield_to_users: bool = False
    publish_every_s: float = 0.0  # 0: only at the end
    max_leavings: int = 0  # of one node; 0: jobs do not leave
    uid: int = -1  # who planned it and owns its jobs; -1: not known (an older release)
    spare_nodes: int = 0  # that stay idle beside the sweep's

    @property
    def plan(self) -> SweepPlan:
        return SweepPlan(self.chosen, self.skipped, self.node_s)

    @property
    def gpu_hours(self) -> dict[str, float]:
        """Node -> expected GPU-hours."""
        return {c.node: c.gpus * (c.seconds or self.node_s) / 3600.0 for c in self.chosen}


def new_id(now_s: float, newest: str = "") -> str:
    """A sweep id: its UTC time to the millisecond, and two random digits; ids sort by time.

    After a clock that was ahead has been set back it follows the `newest` id there is: the last sweep is the last.
    """
    now_ms = int(now_s * 1000)
    if newest:
        last_s, last_ms = calendar.timegm(time.strptime(newest[:15], "%Y%m%d-%H%M%S")), digits(newest[16:19])
        now_ms = max(now_ms, last_s * 1000 + (999 if last_ms is None else last_ms) + 1)  # None: of an older release
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now_ms // 1000))}-{now_ms % 1000:03d}{secrets.token_hex(1)}"


def sweeps_dir(state_dir: str) -> str:
    """Where all sweeps are kept."""
    return os.path.join(state_dir, "sweeps")


class SweepDirectory:
    """One sweep on disk, and the nodes' states in memory. `fresh`: nobody has worked on it yet."""

    def __init__(self, path: str, terms: SweepTerms, fresh: bool = False) -> None:
        self.path = path
        self.terms = terms
        self.fresh = fresh
        self._torn = True  # whether the journal may end in half a line
        self.pause: Pause | None = None
        self.nodes: dict[str, NodeState] = {c.node: NodeState() for c in terms.chosen}
        for change in _journal(os.path.join(path, "journal.jsonl")):
            node = change.pop("node", "")
            if "pause" in change:
                self.pause = _pause(change["pause"])
            elif node in self.nodes:
                self.nodes[node] = NodeState(**change)

    @property
    def sweep_id(self) -> str:
        return self.terms.job.sweep_id

    def set(self, node: str, state: NodeState) -> None:
        """Note a change, in the journal first."""
        self._write({"node": node, **state._asdict()})
        self.nodes[node] = state

    def set_pause(self, pause: Pause | None) -> None:
        """Note that submission is paused, or (None) continues."""
        self._write({"pause": pause._asdict() if pause else None})
        self.pause = pause

    def _write(self, change: dict[str, Any]) -> None:
        line = json.dumps(change, separators=(",", ":")) + "\n"
        torn, self._torn = self._torn, True
        try:
            _append(os.path.join(self.path, "journal.jsonl"), "\n" + line if torn else line)
        except OSError as error:
            raise DataError(
                f"cannot write the journal in {self.path}: {error.strerror}; "
                "running jobs go on, mend it and then pal-profile run --resume"
            ) from None
        self._torn = False

    def counts(self) -> dict[str, int]:
        """How many nodes are in each state."""
        found = {state: 0 for state in STATES}
        for node in self.nodes.values():
            found[node.state] += 1
        return found


def _append(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        raw = text.encode()
        if os.write(descriptor, raw) < len(raw):  # one write: whole, or cut at its end by a crash or a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def create(state_dir: str, terms: SweepTerms) -> SweepDirectory:
    """Make the directory of a new sweep. Raises DataError when that is not possible."""
    path = os.path.join(sweeps_dir(state_dir), terms.job.sweep_id)
    table = terms._asdict() | {"job": terms.job._asdict() | {"setting": terms.job.setting._asdict()}}
    try:
        os.makedirs(path, exist_ok=False)
        write_atomic(os.path.join(path, "plan.json"), json.dumps({"schema": SCHEMA, **table}, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot create {path}: {error.strerror}; check paths.state_dir (pal doctor)") from None
    return SweepDirectory(path, terms, fresh=True)


def load(state_dir: str, sweep_id: str = "") -> SweepDirectory:
    """One sweep, by default the newest. Raises UsageError when there is none, DataError when it is damaged."""
    known = ids(state_dir)
    if not known:
        raise UsageError(f"no sweep in {sweeps_dir(state_dir)} yet: start one with pal-profile run")
    sweep_id = sweep_id or known[-1]
    if sweep_id not in known:
        raise UsageError(f"no sweep {sweep_id!r}; the last ones are {', '.join(known[-3:])}")
    path = os.path.join(sweeps_dir(state_dir), sweep_id)
    plan = os.path.join(path, "plan.json")
    try:
        table = json.loads(read_trusted(plan))
        check_schema(table.pop("schema", None), SCHEMA)
        job = table.pop("job")
        setting = Setting(**job.pop("setting"))
        chosen = tuple(map(_chosen, table.pop("chosen")))
        terms = SweepTerms(job=JobOptions(**job, setting=setting), chosen=chosen, **table)
        for part in (terms, terms.job, terms.job.setting, *terms.chosen):
            _check_kinds(part)
        return SweepDirectory(path, terms)
    except DataError as error:
        raise DataError(f"{plan}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{plan} cannot be read ({error}): start a new sweep with pal-profile run") from None


def ids(state_dir: str) -> list[str]:
    """Ids of all sweeps, oldest first."""
    try:
        names = os.listdir(sweeps_dir(state_dir))
    except OSError:
        return []
    return sorted(
        n for n in names if _ID.fullmatch(n) and os.path.exists(os.path.join(sweeps_dir(state_dir), n, "plan.json"))
    )


def _journal(path: str) -> Iterator[dict[str, Any]]:
    try:
        lines = read_plain(path, MOST_BYTES).decode(errors="replace").split("\n")
    except (OSError, DataError):
        return
    for line in lines:
        try:
            change = json.loads(line)
        except ValueError:
            continue  # cut off by a crash
        if isinstance(change, dict) and ("pause" in change or _is_node_change(change)):
            yield change


def _is_node_change(change: dict[str, Any]) -> bool:
    """Whether a line of the journal is what `set` writes, as far as types show."""
    known = {"node": "", **NodeState()._asdict()}
    return (
        all(key in known and _fits(value, type(known[key])) for key, value in change.items())
        and "node" in change
        and change.get("state") in STATES
    )


def _fits(value: object, kind: Any) -> bool:  # noqa: ANN401 - a type, or a union of types
    return isinstance(value, kind | int if kind is float else kind)


@cache
def _kinds(noun: type) -> dict[str, Any]:
    hints = get_type_hints(noun).items()
    return {name: origin if (origin := get_origin(kind)) in (tuple, dict) else kind for name, kind in hints}


def _check_kinds(part: tuple[Any, ...]) -> None:
    """Raises TypeError for a field of a type other than declared."""
    for name, kind in _kinds(type(part)).items():
        if not _fits(getattr(part, name), kind):
            raise TypeError(f"{name} = {str(getattr(part, name))[:60]!r}")


def _chosen(row: list[Any]) -> ChosenNode:
    found = ChosenNode(*row)  # rows of an older release are shorter
    return found._replace(partitions=tuple(found.partitions), gpu_types=tuple(found.gpu_types))


def _pause(found: object) -> Pause | None:
    """A pause as the journal has it; None where it has ended, or cannot be read."""
    try:
        pause = Pause(**found) if isinstance(found, dict) else None
        if pause:
            _check_kinds(pause)
    except TypeError:
        return None
    return pause


def left_nodes(state_dir: str) -> dict[str, str]:
    """Node -> why it was not measured to the end, of the nodes whose last sweep left them for users' jobs."""
    found: dict[str, NodeState] = {}
    for sweep_id in reversed(ids(state_dir)[-SWEEPS_BACK:]):
        last: dict[str, NodeState] = {}
        for change in _journal(os.path.join(sweeps_dir(state_dir), sweep_id, "journal.jsonl")):
            if node := change.pop("node", ""):
                last[node] = NodeState(**change)
        found = last | found
    return {
        node: state.reason for node, state in found.items() if (state.leavings or state.rest) and state.state != DONE
    }


def expenses(state_dir: str, since_s: float) -> list[Expense]:
    """Jobs that any sweep has submitted after `since_s` (Unix s), with what they were expected to cost.

    Sweeps that cannot be read are left out.
    """
    found: list[Expense] = []
    for sweep_id in ids(state_dir):
        path = os.path.join(sweeps_dir(state_dir), sweep_id, "journal.jsonl")
        try:
            if os.stat(path).st_mtime <= since_s:
                continue
            terms = load(state_dir, sweep_id).terms
        except (OSError, DataError):
            continue
        found += spending.expenses(sweep_id, _journal(path), terms.gpu_hours, since_s)
    return found
