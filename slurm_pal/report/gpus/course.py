# SPDX-License-Identifier: MIT
"""What changed from sweep to sweep: classes, scores, flags, new and vanished GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.variability.classify import Classification, GpuStanding, classify_each
from slurm_pal.variability.finding import Finding
from slurm_pal.variability.params import Params
from slurm_pal.variability.runs import SweepRuns

NEWEST = 8  # sweeps that a page shows
JUMP = 0.01  # a change of the slowdown that is worth showing
QUIET_FLAGS = frozenset({"stale", "unknown"})  # come with age, not with a sweep


class ChangedGpu(NamedTuple):
    """One GPU whose class, slowdown or flags changed."""

    uuid: str
    node: str
    gpu_index: int
    classes: dict[str, tuple[int, int]]  # sensitivity class -> (class before, class now)
    slowdown: dict[str, tuple[float, float]]  # where it changed by JUMP or more
    new_flags: tuple[str, ...]
    gone_flags: tuple[str, ...]


class SweepChange(NamedTuple):
    """One sweep, and how the classification differs from the one before it."""

    sweep_id: str
    ts: float  # Unix s
    gpus: int  # measured by the sweep
    classes: dict[str, dict[str, int]]  # sensitivity class -> UUID -> class after the sweep
    levels: dict[str, int]  # sensitivity class -> number of classes
    compared: dict[str, int]  # GPUs with a class before and after; {} for the first sweep
    changed: dict[str, int]  # those of them with another class now
    moves: tuple[ChangedGpu, ...]
    new: tuple[str, ...]  # UUIDs never seen before
    gone: tuple[str, ...]
    findings: tuple[Finding, ...]  # all steps, drifts and transients known by then

    def churn(self, sensitivity: str) -> float | None:
        """Share of the GPUs that changed class; None if nothing can be compared."""
        compared = self.compared.get(sensitivity, 0)
        return self.changed[sensitivity] / compared if compared else None


def steps(
    sweeps: Iterable[SweepRuns], params: Params, present: Collection[str] | None = None, skip: int = 0
) -> list[SweepChange]:
    """The sweeps after the first `skip`; they come in time order. `present` are the UUIDs that count, None: all."""
    found: list[SweepChange] = []
    before: Classification | None = None
    # One more than is shown, so that the first one can be compared.
    for sweep, now in classify_each(sweeps, params, skip - 1):
        chosen = now._replace(gpus=tuple(g for g in now.gpus if present is None or g.uuid in present))
        measured = {o.uuid for o in sweep.observations if present is None or o.uuid in present}
        found.append(_step(sweep.sweep_id, sweep.ts, len(measured), before, chosen))
        before = chosen
    return found[1:] if skip > 0 else found


def _step(sweep_id: str, ts: float, gpus: int, before: Classification | None, now: Classification) -> SweepChange:
    old = {g.uuid: g for g in before.gpus} if before else {}
    both = [(old[g.uuid], g) for g in now.gpus if g.uuid in old]
    compared, changed = {}, {}
    for c in SENSITIVITY_CLASSES if before else ():
        pairs = [(a.variability_class[c], b.variability_class[c]) for a, b in both if c in _classes(a) & _classes(b)]
        compared[c], changed[c] = len(pairs), sum(1 for a, b in pairs if a != b)
    present = {g.uuid for g in now.gpus}
    return SweepChange(
        sweep_id=sweep_id,
        ts=ts,
        gpus=gpus,
        classes={
            c: {g.uuid: g.variability_class[c] for g in now.gpus if c in _classes(g)} for c in SENSITIVITY_CLASSES
        },
        levels={c: len(values) for c, values in now.centroids.items()},
        compared=compared,
        changed=changed,
        moves=tuple(move for a, b in both if (move := _move(a, b)) is not None),
        new=tuple(sorted(present - set(old))) if before else (),
        gone=tuple(sorted(set(old) - present)),
        findings=now.findings,
    )


def _classes(gpu: GpuStanding) -> set[str]:
    return set(gpu.variability_class)


def _move(before: GpuStanding, now: GpuStanding) -> ChangedGpu | None:
    classes = {
        c: (before.variability_class[c], now.variability_class[c])
        for c in SENSITIVITY_CLASSES
        if c in _classes(before) & _classes(now) and before.variability_class[c] != now.variability_class[c]
    }
    slowdown = {
        c: (before.slowdown[c], now.slowdown[c])
        for c in SENSITIVITY_CLASSES
        if c in before.slowdown and c in now.slowdown and abs(now.slowdown[c] - before.slowdown[c]) >= JUMP
    }
    new, gone = (tuple(sorted(a - b - QUIET_FLAGS)) for a, b in ((now.flags, before.flags), (before.flags, now.flags)))
    if not (classes or slowdown or new or gone):
        return None
    return ChangedGpu(now.uuid, now.node, now.slot, classes, slowdown, new, gone)
