# SPDX-License-Identifier: MIT
"""Nodes near a job's data: a soft term of placement, after POSH (USENIX ATC 2020). Pure, standard library only.

Of placements that are alike for the job, on GPUs of the same variability class, on as few nodes, and no better for
anybody else, the one whose nodes lack least of its input. So data never outweighs a variability class, and a site
without a table of data places every job as before.
"""

from __future__ import annotations

from slurm_pal.base.light import Callable, Iterable, Mapping, NamedTuple, Sequence
from slurm_pal.decide.scene import rows
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.view import ALIKE, Placement, Rule, View

GIB = float(1 << 30)
Place = Callable[[View], Placement | None]
"""What a placement rule chooses of a view."""


class Input(NamedTuple):
    """One input of a job."""

    path: str
    size_bytes: int  # 0: not known
    nodes: frozenset[str]  # where it is local
    gib_per_s: float  # at which other nodes get it


class Near(NamedTuple):
    """How long each node would take to get what it lacks."""

    stage_in_s: Mapping[str, float]  # of nodes that have some of it
    otherwise_s: float  # of all others
    missing: Mapping[str, int]  # bytes, of the same nodes
    whole: int  # bytes of all inputs

    def seconds(self, nodes: Iterable[str]) -> float:
        """A job waits for the last of its nodes."""
        return max((self.stage_in_s.get(name, self.otherwise_s) for name in nodes), default=0.0)

    def moved(self, nodes: Iterable[str]) -> int:
        """Bytes that its nodes must get, all together."""
        return sum(self.missing.get(name, self.whole) for name in nodes)


def near(inputs: Sequence[Input]) -> Near | None:
    """None where no input is known to be nearer to one node than to another."""
    known = [one for one in inputs if one.size_bytes > 0 and one.gib_per_s > 0]
    names = frozenset(name for one in known for name in one.nodes)
    if not names:
        return None

    def lacks(name: str) -> list[Input]:
        return [one for one in known if name not in one.nodes]

    whole = sum(one.size_bytes for one in known)
    return Near(
        {name: _seconds(lacks(name)) for name in names}, _seconds(known),
        {name: sum(one.size_bytes for one in lacks(name)) for name in names}, whole,
    )  # fmt: skip


def _seconds(inputs: Iterable[Input]) -> float:
    return sum(one.size_bytes / GIB / one.gib_per_s for one in inputs)


def nearer(view: View, placed: Placement, data: Near, rule: Rule, place: Place) -> Placement:
    """The placement with the least to bring that is alike `placed`, or that itself."""
    names = view.names
    here_s = data.seconds(names[i] for i in placed.nodes)
    seconds = [data.seconds((name,)) for name in names]
    for bound_s in sorted({value for value in seconds if value < here_s}):
        kept = [i for i, value in enumerate(seconds) if value <= bound_s]
        found = place(rows(view, kept))
        if found is not None:
            found = found._replace(nodes=tuple(kept[row] for row in found.nodes))
            if _alike(view, placed, found, rule):
                return found
    return placed


def _alike(view: View, placed: Placement, found: Placement, rule: Rule) -> bool:
    """Whether the job, and everybody else, loses nothing by `found` in place of `placed`."""
    if found.locality > placed.locality or len(found.nodes) > len(placed.nodes):
        return False
    if view.weight and max(view.weight[i] for i in found.nodes) > max(view.weight[i] for i in placed.nodes):
        return False
    if _worst(view, found, view.level) > _worst(view, placed, view.level):
        return False
    # An insensitive job leaves fast GPUs to others.
    return rule.sensitivity not in INSENSITIVE or ALIKE * _mean(view, found) >= _mean(view, placed)


def _values(view: View, placed: Placement, table: Sequence[Sequence[float]]) -> list[float]:
    return [
        table[node][view.free[node].index(gpu)]
        for node, gpus in zip(placed.nodes, placed.gpus, strict=True)
        for gpu in gpus
    ]


def _worst(view: View, placed: Placement, table: Sequence[Sequence[float]]) -> float:
    return max(_values(view, placed, table), default=1.0)


def _mean(view: View, placed: Placement) -> float:
    values = _values(view, placed, view.slowdown_a)
    return sum(values) / max(1, len(values))
