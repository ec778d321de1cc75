# SPDX-License-Identifier: MIT
"""An offer: GPUs that a job could be given now, with what is known of them."""

from __future__ import annotations

from slurm_pal.base.faults import OK, state_of
from slurm_pal.base.light import NamedTuple
from slurm_pal.decide.scene import Scene
from slurm_pal.placement.faulty import is_faulty
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.store.snapshot import Snapshot, known_class


class Gpu(NamedTuple):
    """One GPU of an offer. `slowdown` is None and `variability_class` "?" where it was never measured."""

    node: str
    gpu: int  # Slurm's index
    slowdown: float | None
    variability_class: str
    measured_s: float  # Unix seconds, 0.0: never
    flags: tuple[str, ...]

    @property
    def state(self) -> str:
        """Its state: "ok", or that of a GPU that was seen to fail."""
        return state_of(self.flags)


class Offer(NamedTuple):
    """GPUs a job could be given now, and the predicted time factors: those measured, also of faulty GPUs."""

    gpus: tuple[Gpu, ...]
    slowdown: float
    locality: float

    @property
    def faulty(self) -> str:
        """Those of the GPUs that were seen to fail, like `n5:2 (no-answer)`; "" without any."""
        return ", ".join(f"{gpu.node}:{gpu.gpu} ({gpu.state})" for gpu in self.gpus if gpu.state != OK)

    @property
    def product(self) -> float:
        """Predicted iteration time relative to median GPUs on one node."""
        return self.slowdown * self.locality

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(gpu.node for gpu in self.gpus))

    @property
    def slots(self) -> list[tuple[str, int]]:
        return [(gpu.node, gpu.gpu) for gpu in self.gpus]

    def where(self) -> str:
        """Like `n1:0,1 n2:0`."""
        return " ".join(f"{node}:{','.join(str(k) for n, k in self.slots if n == node)}" for node in self.nodes)


def offer_of(scene: Scene, snapshot: Snapshot, rule: Rule, placed: Placement) -> Offer:
    """A placement as an offer."""
    gpus: list[Gpu] = []
    for node, indexes in zip(placed.nodes, placed.gpus, strict=True):
        gpus += [gpu_of(snapshot, rule, scene.view.names[node], index) for index in indexes]
    slowdown = placed.slowdown
    if is_faulty(slowdown):
        slowdown = max(1.0 if gpu.slowdown is None else gpu.slowdown for gpu in gpus)
    return Offer(tuple(gpus), slowdown, scene.locality(placed, rule))


def gpu_of(snapshot: Snapshot, rule: Rule, node: str, index: int) -> Gpu:
    """What the snapshot knows of one GPU for the job's sensitivity class."""
    row = snapshot.row(node, index)
    if row is None:
        return Gpu(node, index, None, "?", 0.0, ("unknown",))
    score, known = snapshot.gpu(row), known_class(rule.sensitivity)
    return Gpu(node, index, score.slowdown.get(known), score.variability_class[known], score.measured_s, score.flags)


def doubts(scene: Scene, chosen: Offer) -> tuple[str, ...]:
    """What was not known, or known only long ago, of the GPUs chosen."""
    said: list[str] = []
    if chosen.faulty:
        said.append(f"seen to fail, whether they work now: {chosen.faulty}")
    never = [f"{gpu.node}:{gpu.gpu}" for gpu in chosen.gpus if gpu.slowdown is None]
    if never:
        said.append(f"never measured, counted as median: {','.join(never)}")
    stale = [f"{gpu.node}:{gpu.gpu}" for gpu in chosen.gpus if "stale" in gpu.flags]
    if stale:
        said.append(f"measured long ago, shrunk towards the median: {','.join(stale)}")
    if scene.fixed:
        said.append(f"the user's own nodes {','.join(scene.fixed)} were taken as they are")
    return tuple(said)
