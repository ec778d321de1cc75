# SPDX-License-Identifier: MIT
"""The controller's side of a sweep: take in the spool, form classes, publish, sum up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slurm_pal.base import hooks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, PalError, one_line
from slurm_pal.base.faults import OK, fault_line, state_of
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.profiling.sweep import urgency
from slurm_pal.profiling.sweep.spending import DAY_S
from slurm_pal.profiling.sweep.sweep_job import members
from slurm_pal.profiling.sweep.sweep_state import RESULT, SweepDirectory, left_nodes
from slurm_pal.profiling.sweep.urgency import Urgency
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.topology import Topology
from slurm_pal.store import level_ratios, snapshot
from slurm_pal.store.database import Database, database_path, open_database
from slurm_pal.store.ingest import Complaint, IngestReport, ingest, spool_directories
from slurm_pal.store.level_ratios import Level
from slurm_pal.store.publish import PublishReport, publish
from slurm_pal.store.snapshot import LevelRatio
from slurm_pal.variability.finding import STEP, UNCONFIRMED, Finding, flagged

if TYPE_CHECKING:
    from slurm_pal.variability.classify import GpuStanding

T = TypeVar("T")
WAIT_FOR_WRITER_S = 15.0
MAX_SHOWN = 8


class Outlier(NamedTuple):
    """A GPU outside the classes of its peers."""

    node: str
    slot: int  # Slurm's GPU index
    uuid: str
    slowdown: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """With the key that `pal gpus --json` uses for the slot."""
        return {"node": self.node, "index": self.slot, "uuid": self.uuid, "slowdown": self.slowdown}


class Faulty(NamedTuple):
    """A GPU that was seen to fail."""

    node: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used here
    uuid: str
    state: str
    text: str  # where, what, and what to do


class Change(NamedTuple):
    """A GPU that has changed."""

    node: str
    slot: int  # Slurm's GPU index
    finding: Finding

    def to_json(self) -> dict[str, Any]:
        """With the key that `pal gpus --json` uses for the slot."""
        found = self.finding._asdict()
        return {"node": self.node, "index": self.slot, **found, "change": round(self.finding.change, 5)}

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d", time.localtime(self.finding.since_s))
        kind = "" if self.finding.kind == STEP else f" ({self.finding.kind})"
        return (
            f"{self.node}:{self.slot} {self.finding.benchmark} {100 * self.finding.change:+.1f} % since {since}{kind}"
        )


class Summary(NamedTuple):
    """What a sweep brought, and what is published now."""

    sweep_id: str
    counts: dict[str, int]  # state -> nodes
    gpus: int  # measured by this sweep
    new_records: int
    complaints: tuple[str, ...]  # what ingest refused
    published: str  # path of the snapshot, "" where there was nothing to publish
    published_gpus: int
    classes: dict[str, list[float]]  # sensitivity class -> slowdown of v0, v1, ...
    outliers: tuple[Outlier, ...]
    trouble: str  # why nothing was published
    changes: tuple[Change, ...] = ()  # steps and drifts seen lately, and jumps not confirmed yet
    faulty: tuple[Faulty, ...] = ()  # seen to fail, and not measured cleanly since
    levels: Mapping[int, LevelRatio] = {}  # of the network
    unit: str = "nodes"  # or "pairs of nodes": what the counts are of

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        lists: dict[str, Any] = {
            "outliers": [o.to_json() for o in self.outliers],
            "changes": [c.to_json() for c in self.changes],
        }
        lists["faulty"] = [f._asdict() for f in self.faulty]
        lists["levels"] = {str(level): row._asdict() for level, row in self.levels.items()}
        return {**self._asdict(), **lists}

    def lines(self) -> list[str]:
        """For people; whoever prints them also prints `trouble`."""
        lines = []
        if self.sweep_id:
            states = ", ".join(f"{n} {state}" for state, n in self.counts.items() if n) or "no nodes"
            lines.append(f"sweep {self.sweep_id}: {self.unit} {states}; {self.gpus} GPUs measured")
        else:
            lines.append(f"{self.new_records} new records")
        lines += [f"refused: {text}" for text in self.complaints[:MAX_SHOWN]]
        if self.trouble:
            return lines
        for name in SENSITIVITY_CLASSES:
            values = self.classes.get(name, [])
            if values:
                shown = " ".join(f"v{i}={v:.3f}" for i, v in enumerate(values[:MAX_SHOWN]))
                more = f" ... v{len(values) - 1}={values[-1]:.3f}" if len(values) > MAX_SHOWN else ""
                lines.append(f"class {name}: {shown}{more}")
        lines += [row.line(level) for level, row in self.levels.items()]
        lines += [f"seen to fail, jobs are kept off it: {faulty.text}" for faulty in self.faulty[:MAX_SHOWN]]
        if len(self.faulty) > MAX_SHOWN:
            lines.append(f"and {len(self.faulty) - MAX_SHOWN} more that were seen to fail: pal gpus -f")
        for outlier in self.outliers[:MAX_SHOWN]:
            slow = " ".join(f"{c}={v:.3f}" for c, v in sorted(outlier.slowdown.items()))
            lines.append(f"outlier {outlier.node}:{outlier.slot} {slow}")
        if len(self.outliers) > MAX_SHOWN:
            lines.append(f"and {len(self.outliers) - MAX_SHOWN} more outliers: pal gpus -f")
        lines += self._changed()
        return [*lines, f"published {self.published_gpus} GPUs in {self.published}"]

    def _changed(self) -> list[str]:
        """What has changed, with Slurm's names for the GPUs."""
        sure = [c for c in self.changes if c.finding.kind != UNCONFIRMED]
        lines = []
        for what, found in (("changed", sure), ("may have changed", [c for c in self.changes if c not in sure])):
            if found:
                gpus = len({c.finding.uuid for c in found})
                more = f" and {len(found) - MAX_SHOWN} more: pal-profile show" if len(found) > MAX_SHOWN else ""
                lines.append(f"{gpus} GPU{'s' * (gpus > 1)} {what}: " + ", ".join(map(str, found[:MAX_SHOWN])) + more)
        doubtful = fold(sorted({c.node for c in self.changes if c.finding.kind == UNCONFIRMED}))
        if doubtful:
            lines.append(f"confirm {doubtful}: pal-profile run -w {doubtful}")
        return lines


def result_directories(config: Config) -> tuple[str, str, str]:
    """Where a node's result file may be: just dropped, or already taken in."""
    return spool_directories(config.spool_dir)


def newest_by_node(config: Config, now_s: float) -> dict[str, float]:
    """Node -> Unix s of its newest valid record; {} before the first sweep. Raises DataError.

    Those dated more than a day ahead are of a clock that was wrong: they would hold a node back until then.
    """
    if not os.path.exists(database_path(config.state_dir)):
        return {}
    with open_database(config.state_dir) as database:
        return database.last_measured(now_s + DAY_S)


def urgent_nodes(config: Config) -> dict[str, Urgency]:
    """Node -> why it should be measured before its turn. Raises DataError."""
    left = left_nodes(config.state_dir)
    if not os.path.exists(database_path(config.state_dir)):
        return urgency.urgent((), (), (), left)
    with open_database(config.state_dir) as database:
        measured, seen = database.conditions(valid=True), database.conditions(valid=False)
    try:
        published = snapshot.read(config.snapshot_path)
    except DataError:
        return urgency.urgent((), measured, seen, left)
    return urgency.urgent(map(published.gpu, range(len(published))), measured, seen, left)


def fresh_pairs(config: Config, level: Level, now_s: float) -> dict[int, int]:
    """Level of the network -> pairs of nodes that were measured lately. Raises DataError."""
    oldest_s = now_s - config.number("classes", "stale_after_d") * DAY_S
    found = level_ratios.level_ratios(level_ratios.read(config.state_dir), level, now_s, oldest_s)
    return {number: row.pairs for number, row in found.items()}


def collect(config: Config, sweep: SweepDirectory | None, now_s: float, method: str | None = None) -> Summary:
    """Ingest and publish. Raises DataError, or BusyError when another writer does not finish."""
    known = _known_bad(config)
    summary = _patiently(lambda: _collect(config, sweep, now_s, method))
    outliers = [one.to_json() for one in summary.outliers if one.uuid not in known]
    faulty = [one._asdict() for one in summary.faulty if one.uuid not in known]
    if outliers or faulty:
        hooks.call(config, hooks.ON_OUTLIER, {"outliers": outliers, "faulty": faulty}, now_s)
    return summary


def _known_bad(config: Config) -> frozenset[str]:
    """The GPUs that are published as outliers, or as seen to fail."""
    try:
        published = snapshot.read(config.snapshot_path)
    except DataError:
        return frozenset()
    gpus = map(published.gpu, range(len(published)))
    return frozenset(gpu.uuid for gpu in gpus if "outlier" in gpu.flags or state_of(gpu.flags) != OK)


def _collect(config: Config, sweep: SweepDirectory | None, now_s: float, method: str | None) -> Summary:
    network = _network(config)
    with open_database(config.state_dir, write=True) as database:
        taken = ingest(config.spool_dir, database, now_s)
        levels, refused = _levels(config, network, now_s)
        taken = taken._replace(bad=taken.bad + len(refused), complaints=(*taken.complaints, *refused))
        report, trouble = _publish(config, database, now_s, method, levels)
    return _summary(sweep, taken, report, trouble, now_s)


def _network(config: Config) -> Topology | None:
    """The network as Slurm knows it; None where Slurm does not answer, or no pair of nodes was ever measured."""
    try:
        if level_ratios.present(config.spool_dir, config.state_dir):
            return connect(config).overview().network
    except PalError:
        pass
    return None


def _levels(
    config: Config, network: Topology | None, now_s: float
) -> tuple[dict[int, LevelRatio] | None, list[Complaint]]:
    """What pairs of nodes say of each level of the network, None where it is not known, and what is wrong with them."""
    try:
        refused = level_ratios.take_in(config.spool_dir, config.state_dir)
        rows = level_ratios.read(config.state_dir) if network is not None else []
    except DataError as error:
        return None, [Complaint(level_ratios.FILE_NAME, 0, one_line(error))]
    if network is None:
        return None, refused
    oldest_s = now_s - config.number("classes", "unknown_after_d") * DAY_S
    return level_ratios.level_ratios(rows, network.level, now_s, oldest_s), refused


def _publish(
    config: Config, database: Database, now_s: float, method: str | None, levels: dict[int, LevelRatio] | None
) -> tuple[PublishReport | None, str]:
    if not len(database):
        return None, "there is no measurement yet"
    try:
        return publish(config, now_s, database, method=method, network=levels), ""
    except DataError as error:
        return None, one_line(error)


def _changes(gpus: Sequence[GpuStanding], findings: Iterable[Finding], now_s: float) -> tuple[Change, ...]:
    """The findings of these GPUs that count now, the largest first."""
    where = {g.uuid: g for g in gpus}
    found = [
        Change(where[f.uuid].node, where[f.uuid].slot, f)
        for f in findings
        if f.uuid in where and (f.kind == UNCONFIRMED or flagged(f, now_s))
    ]
    return tuple(sorted(found, key=lambda c: -abs(c.finding.change)))


def _summary(
    sweep: SweepDirectory | None, taken: IngestReport, report: PublishReport | None, trouble: str, now_s: float
) -> Summary:
    gpus = report.classification.gpus if report else ()
    outliers = [Outlier(g.node, g.slot, g.uuid, g.slowdown) for g in gpus if "outlier" in g.flags]
    outliers.sort(key=lambda o: -max(o.slowdown.values(), default=0.0))
    states = sweep.nodes.values() if sweep else ()
    return Summary(
        sweep_id=sweep.sweep_id if sweep else "",
        counts={state: n for state, n in sweep.counts().items() if n} if sweep else {},
        gpus=sum(s.gpus for s in states if s.state in RESULT),
        new_records=taken.new,
        complaints=tuple(str(c) for c in taken.complaints),
        published=report.path if report else "",
        published_gpus=report.gpus if report else 0,
        classes=report.classes if report else {},
        outliers=tuple(outliers),
        trouble=trouble,
        faulty=tuple(
            Faulty(g.node, g.slot, g.uuid, state_of(g.flags), fault_line(g.flags, g.node, g.slot))
            for g in gpus
            if state_of(g.flags) != OK
        ),
        changes=_changes(gpus, report.classification.findings, now_s) if report else (),
        levels=report.levels if report else {},
        unit="pairs of nodes" if sweep and any(len(members(node)) > 1 for node in sweep.nodes) else "nodes",
    )


def _patiently(action: Callable[[], T]) -> T:
    """Wait for another writer: a tick takes seconds."""
    deadline_s = time.monotonic() + WAIT_FOR_WRITER_S
    while True:
        try:
            return action()
        except BusyError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
