# SPDX-License-Identifier: MIT
"""The policies of the published simulator; adding one is one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.research.replica import picks, procedures
from slurm_pal.research.replica.active import RoundPolicy, RoundSettings
from slurm_pal.research.replica.free import RankTable
from slurm_pal.research.replica.ours import ours
from slurm_pal.simulate.inputs.pal_profile import Profile
from slurm_pal.variability.published import as_shipped


class PublishedPolicy(NamedTuple):
    """A rule for one job, a procedure for a round, and whether the rule looks at speed."""

    pick: picks.Pick
    procedure: Callable[[procedures.Placer], RoundPolicy]
    binned: bool
    artefact: str  # its name there
    summary: str


POLICIES = {
    "packed-s": PublishedPolicy(
        picks.packed, procedures.sticky, False, "Default-Packed-S", "packed, running jobs stay (as Tiresias)"
    ),
    "packed-ns": PublishedPolicy(
        picks.packed, procedures.non_sticky, False, "Default-Packed-NS", "packed, every job placed again each round"
    ),
    "random-s": PublishedPolicy(
        picks.shuffled, procedures.sticky, False, "Default-Random-S", "random, running jobs stay"
    ),
    "random-ns": PublishedPolicy(
        picks.shuffled,
        procedures.non_sticky,
        False,
        "Default-Random-NS",
        "random, every job placed again each round (as Gandiva)",
    ),
    "pm-first": PublishedPolicy(
        picks.pm_first, procedures.by_class, True, "PMFirst", "best GPUs first, most sensitive class first"
    ),
    "pal": PublishedPolicy(picks.pal, procedures.by_class, True, "PAL", "the L x V walk, most sensitive class first"),
}


OURS = {
    "pal-fit": ("class fit, waits and moves, with backfill in the queue's order", False),
    "pal-fit-order": ("the same, with backfill by response ratio", True),
}
"""The studies of that name, under the published rounds: summary, and whether backfill goes by response ratio."""


def summaries() -> dict[str, str]:
    """All round policies by name."""
    return {name: row.summary for name, row in POLICIES.items()} | {name: text for name, (text, _) in OURS.items()}


def build(name: str, profile: Profile, settings: RoundSettings) -> RoundPolicy:
    """A fresh round policy for one run. Raises UsageError for an unknown name or class to bar."""
    if name in OURS:
        return ours(profile, by_response=OURS[name][1])
    if name not in POLICIES:
        raise UsageError(f"policy {name!r} is not one of {', '.join(summaries())}")
    row = POLICIES[name]
    generator = Random()
    generator.setstate(profile.generator)
    tables = tables_of(profile, row.binned, settings.locality_penalty, settings.barred)
    return row.procedure(procedures.Placer(tables, row.pick, generator, settings.backfill))


def tables_of(
    profile: Profile, binned: bool, locality_penalty: float, barred: Mapping[str, float]
) -> dict[str, RankTable]:
    """What each class thinks of each GPU: its bin as the artefact computes it, or all alike.

    Classes that think the same share one table, which spares a change of view between them.
    """
    unknown = [c for c in barred if c not in profile.slowdown]
    if unknown:
        raise UsageError(f"class {unknown[0]!r} to bar is not one of {', '.join(profile.slowdown)}")
    views = {c: _levels(values, binned, barred.get(c)) for c, values in profile.slowdown.items()}
    made = {view: RankTable(view, profile.gpus_per_node, locality_penalty) for view in views.values()}
    return {c: made[view] for c, view in views.items()}


def _levels(slowdown: Sequence[float], binned: bool, limit: float | None) -> tuple[float | None, ...]:
    levels = as_shipped(slowdown).sf.tolist() if binned else [1.0] * len(slowdown)
    return tuple(
        None if limit is not None and own > limit else level for own, level in zip(slowdown, levels, strict=True)
    )
