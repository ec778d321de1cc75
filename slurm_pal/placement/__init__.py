# SPDX-License-Identifier: MIT
"""Place one job: pure functions from a view of the free GPUs to a placement.

Adding a rule is one module and one row here. A module has `preferences(view, rule)`, what
it wants of nodes in one or more tries, or `pick(view, need, rule)`, where that cannot be
said node by node. Beside `preferences` it may have `limited(view, rule, limit)`, the first
preference among GPUs not slower than a limit: then of the ways to give a job that may spread
its GPUs the one of least slowdown x locality is taken.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Callable, NamedTuple, Sequence, cached
from slurm_pal.placement.candidates import Candidates, Preference, Scan
from slurm_pal.placement.faulty import any_faulty, first_sound, sound_part
from slurm_pal.placement.need import Need, Picks, choose, least, need_of
from slurm_pal.placement.view import Placement, Rule, View

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from types import ModuleType


class Policy(NamedTuple):
    """One row of the table of placement rules."""

    module: str
    summary: str


CLASS_FIT = "class-fit"
"""The default."""
POLICIES = {
    CLASS_FIT: Policy("class_fit", "pack first; among equally packed nodes the best fit of job class and GPU"),
    "pal": Policy("pal", "the published L x V walk: best GPU class first, one node before several (PAL, SC'24)"),
    "pm-first": Policy("pm_first", "best GPUs first, wherever they are (PAL, SC'24, section on PM-First)"),
    "threshold": Policy("threshold", "nearly the best attainable slowdown, then the fewest nodes"),
    "packed": Policy("packed", "fewest GPUs left over, scores ignored"),
    "random": Policy("shuffled", "any node that fits, by seed"),
}
BLIND = frozenset({"packed", "random"})
"""Rules that do not go by scores."""

Look = Callable[[int | None, Preference], Candidates]
"""How the candidates of a rule's k-th preference are looked up; None: of one that is asked once."""


def place(
    policy: str,
    view: View,
    shape: GpuShape,
    rule: Rule,
    look: Look | None = None,
    largest_node: int | None = None,
    faulty: bool | None = None,
) -> Placement | None:
    """The GPUs that `policy` would take for a job of `shape`, or None when it does not fit now.

    A sensitive job may be given a GPU beyond `rule.barred_slowdown` when nothing else is
    free: whether to wait instead is for the caller to decide (patience.py), who knows what
    waiting costs. `look` may answer from what was kept between jobs; by default every
    node is looked at. `largest_node` is the number of GPUs of the largest node that the
    job might ever get, by default of those in the view; `faulty` says whether there are faulty GPUs, by
    default in the view. Raises UsageError for an unknown policy.
    """
    _module(policy)
    need = need_of(shape, max(view.node_gpus, default=0) if largest_node is None else largest_node)
    if need is None:
        return None
    if faulty is None:
        faulty = any_faulty(view.slowdown)
    if shape.whole_nodes:
        picks = _picks(policy, as_whole_nodes(view), need, rule, None, faulty)
        return None if picks is None else placement(view, whole(view, picks), rule)
    picks = _picks(policy, view, need, rule, look, faulty)
    return None if picks is None else placement(view, picks, rule)


def _picks(policy: str, view: View, need: Need, rule: Rule, look: Look | None, faulty: bool) -> Picks | None:
    module, wanted = _module(policy), preferences(policy, view, rule, faulty)
    found: Picks | None
    if wanted is None:
        found = module.pick(sound_part(view), need, rule) if faulty else None
        if found is None:
            found = module.pick(view, need, rule)
        return found

    def among(number: int | None, preference: Preference) -> Picks | None:
        return choose(look(number, preference) if look else Scan(len(view.free), preference), need)

    tries = (among(number, preference) for number, preference in enumerate(wanted))
    found = next((picks for picks in tries if picks is not None), None)
    if found is None or need.counts or need.total == 1 or not hasattr(module, "limited"):
        return found
    # Several nodes with GPUs as slow as this would be no better.
    bar, most = rule.barred_slowdown, _judged(view, rule, found) / rule.locality_penalty
    if most <= bar:
        return found
    spread = among(len(wanted), module.limited(view, rule, bar))
    if spread is None:
        limits = sorted({slowdown for row in view.slowdown for slowdown in row if bar < slowdown < most})
        spread = least(limits, lambda limit: among(None, module.limited(view, rule, limit)))
    return spread or found


def _judged(view: View, rule: Rule, picks: Picks) -> float:
    """Slowdown x locality of some picks, where GPUs up to the bar count as alike."""
    slowest = max(max(view.slowdown[node][:count]) for node, count in picks)
    return max(slowest, rule.barred_slowdown) * (rule.locality_penalty if len(picks) > 1 else 1.0)


def preferences(policy: str, view: View, rule: Rule, faulty: bool) -> list[Preference] | None:
    """What a rule wants of nodes, try by try; None where it cannot be said node by node.

    With `faulty` GPUs around, the same tries without them come first. Raises UsageError for an unknown policy.
    """
    module = _module(policy)
    wanted: list[Preference] | None = module.preferences(view, rule) if hasattr(module, "preferences") else None
    return first_sound(view, wanted) if wanted and faulty else wanted


@cached(None)
def _module(policy: str) -> ModuleType:
    if policy not in POLICIES:
        raise UsageError(f"placement policy {policy!r} is not one of {', '.join(POLICIES)}")
    # importlib, which has a function for this, takes longer to import than the rule.
    found: ModuleType = __import__(f"slurm_pal.placement.{POLICIES[policy].module}", fromlist=["preferences"])
    return found


def whole(view: View, picks: Picks) -> Picks:
    """The same nodes with all their GPUs: what a job with --exclusive is given."""
    return [(node, len(view.free[node])) for node, _ in picks]


def as_whole_nodes(view: View) -> View:
    """Each GPU stands for the slowest of its node, because the job will run on all of them."""

    def slowest(table: Sequence[Sequence[float]]) -> list[list[float]]:
        return [[max(row, default=1.0)] * len(row) for row in table]

    return view._replace(
        slowdown=slowest(view.slowdown), level=slowest(view.level), slowdown_a=slowest(view.slowdown_a)
    )


def placement(view: View, picks: Picks, rule: Rule) -> Placement:
    """Turn picks (node, how many) into the GPUs that Slurm will hand out there."""
    picks = sorted(picks)
    return Placement(
        nodes=tuple(node for node, _ in picks),
        gpus=tuple(tuple(view.free[node][:count]) for node, count in picks),
        slowdown=max(max(view.slowdown[node][:count]) for node, count in picks),
        locality=rule.locality_penalty if len(picks) > 1 else 1.0,
    )
