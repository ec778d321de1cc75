# SPDX-License-Identifier: MIT
"""Every GPU and every node as `pal gpus` and `pal nodes` show them.

Slurm says which GPUs exist and run; the snapshot says how fast they are. Either may be
missing: a GPU that only one of the two knows gets a flag that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, SlurmError, one_line
from slurm_pal.base.faults import OK, fault_line, state_of
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.decide.offers import used_indexes
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import Overview
from slurm_pal.store import snapshot as snapshots
from slurm_pal.store.snapshot import Snapshot

ASK_TIMEOUT_S = 10.0

NEVER_MEASURED = "never_measured"
NOT_IN_SLURM = "not_in_slurm"

_SCORES = (*(f"slowdown_{c}" for c in SENSITIVITY_CLASSES), *(f"class_{c}" for c in SENSITIVITY_CLASSES))
GPU_COLUMNS = ("node", "index", "uuid", "model", *_SCORES, "age_s", "in_use", "flags", "state")
NODE_COLUMNS = ("node", "states", "gpus", "gpus_in_use", *(f"worst_{name}" for name in _SCORES[:3]), *_SCORES[3:],
                "age_s", "flags")  # fmt: skip
"""Columns of the tables in CSV."""


class GpuRow(NamedTuple):
    """One GPU. `slowdown` and `variability_class` by sensitivity class; `age_s` None: never measured."""

    node: str
    gpu_index: int
    uuid: str
    model: str
    slowdown: dict[str, float]
    variability_class: dict[str, str]
    age_s: float | None
    in_use: bool | None  # None: Slurm was not asked, or does not know the node
    flags: tuple[str, ...]

    @property
    def state(self) -> str:
        """ "ok", or the state of a GPU that was seen to fail."""
        return state_of(self.flags)

    def to_json(self) -> dict[str, Any]:
        """One entry of the schema pal.gpus/1."""
        return {
            "node": self.node,
            "index": self.gpu_index,
            "uuid": self.uuid,
            "model": self.model,
            "slowdown": {c: round(v, 5) for c, v in self.slowdown.items()},
            "class": self.variability_class,
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "in_use": self.in_use,
            "flags": list(self.flags),
            "state": self.state,
        }


class NodeRow(NamedTuple):
    """One node: Slurm's state, its GPUs, and the worst slowdown per sensitivity class."""

    node: str
    states: tuple[str, ...]
    gpus: tuple[GpuRow, ...]

    @property
    def worst(self) -> dict[str, float]:
        """Slowdown of the slowest measured GPU, per sensitivity class."""
        return {
            c: max(g.slowdown[c] for g in self.gpus if c in g.slowdown)
            for c in SENSITIVITY_CLASSES
            if any(c in g.slowdown for g in self.gpus)
        }

    @property
    def age_s(self) -> float | None:
        """Age of the oldest measurement; None if a GPU was never measured."""
        ages = [g.age_s for g in self.gpus]
        return None if not ages or None in ages else max(a for a in ages if a is not None)

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags of its GPUs, each once."""
        return tuple(dict.fromkeys(flag for g in self.gpus for flag in g.flags))

    def to_json(self) -> dict[str, Any]:
        """One entry of the schema pal.nodes/1."""
        return {
            "node": self.node,
            "states": list(self.states),
            "gpus": len(self.gpus),
            "gpus_in_use": sum(1 for g in self.gpus if g.in_use),
            "worst_slowdown": {c: round(v, 5) for c, v in self.worst.items()},
            "class": {c: [g.variability_class.get(c, "?") for g in self.gpus] for c in SENSITIVITY_CLASSES},
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "flags": list(self.flags),
        }


def look(
    config: Config, tell: Callable[[str], None], marked: bool = False, whole: frozenset[str] = frozenset()
) -> tuple[Snapshot | None, Overview | None]:
    """Snapshot and Slurm's view (`marked`, `whole` as for `SlurmClient.overview`); `tell` gets what is missing.

    Raises SlurmError if both are.
    """
    snapshot: Snapshot | None = None
    overview: Overview | None = None
    try:
        snapshot = snapshots.read(config.snapshot_path)
    except DataError as error:
        tell(one_line(error))
    try:
        overview = connect(config, timeout_s=ASK_TIMEOUT_S).overview(marked=marked, whole=whole)
    except SlurmError as error:
        if snapshot is None:
            raise
        tell(f"showing the snapshot only: {one_line(error)}")
    return snapshot, overview


def gpu_rows(snapshot: Snapshot | None, overview: Overview | None, now_s: float) -> list[GpuRow]:
    """All GPUs that Slurm or the snapshot knows, in Slurm's node order, then by name."""
    nodes: Sequence[Node] = overview.nodes if overview else ()
    used = used_indexes(overview.jobs) if overview else {}
    rows: list[GpuRow] = []
    for node in nodes:
        known = {g.gpu_index: g for g in _scored(snapshot, node.name, now_s)}
        for index, kind in enumerate(node.gpu_types):
            row = known.pop(index, None) or _unmeasured(node.name, index, kind)
            rows.append(row._replace(in_use=index in used.get(node.name, ())))
        rows += [g._replace(flags=(*g.flags, NOT_IN_SLURM)) for g in known.values()]
    listed = {node.name for node in nodes}
    for name in snapshot.nodes if snapshot is not None else ():
        if name not in listed:
            extra = (NOT_IN_SLURM,) if overview else ()
            rows += [g._replace(flags=(*g.flags, *extra)) for g in _scored(snapshot, name, now_s)]
    return rows


def faulty(rows: Iterable[GpuRow]) -> list[GpuRow]:
    """Those that were seen to fail, as far as Slurm may still give them to jobs."""
    return [row for row in rows if row.state != OK and NOT_IN_SLURM not in row.flags]


def fault_lines(rows: Iterable[GpuRow]) -> list[str]:
    """One line for each faulty GPU: its state, and what to do about it."""
    return [fault_line(row.flags, row.node, row.gpu_index) for row in faulty(rows)]


def node_rows(gpus: Sequence[GpuRow], overview: Overview | None) -> list[NodeRow]:
    """The same GPUs by node; nodes without GPUs are left out."""
    states = {node.name: tuple(sorted(node.states)) for node in overview.nodes} if overview else {}
    by_node: dict[str, list[GpuRow]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    return [NodeRow(name, states.get(name, ("UNKNOWN",)), tuple(rows)) for name, rows in by_node.items()]


def _scored(snapshot: Snapshot | None, node: str, now_s: float) -> list[GpuRow]:
    rows: list[GpuRow] = []
    if snapshot is None:
        return rows
    for number in snapshot.rows.get(node, ()):
        score = snapshot.gpu(number)
        # A measurement from the future (the clock was set back) has age 0, not a negative age.
        age_s = max(0.0, now_s - score.measured_s) if score.measured_s else None
        rows.append(
            GpuRow(
                node,
                score.index,
                score.uuid,
                score.model,
                score.slowdown,
                score.variability_class,
                age_s,
                None,
                score.flags,
            )
        )
    return rows


def _unmeasured(node: str, index: int, kind: str) -> GpuRow:
    unknown = dict.fromkeys(SENSITIVITY_CLASSES, "?")
    return GpuRow(node, index, "", kind, {}, unknown, None, None, (NEVER_MEASURED,))
