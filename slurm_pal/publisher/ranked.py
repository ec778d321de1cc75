# SPDX-License-Identifier: MIT
"""Nodes in the order of a placement rule, for each number of GPUs and however many were given away meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from slurm_pal.placement import as_whole_nodes, preferences
from slurm_pal.placement.candidates import Preference
from slurm_pal.placement.faulty import any_faulty
from slurm_pal.placement.view import Rule, View

DEPTH = 64  # untouched nodes in one list
MOST_GONE = 63  # GPUs of one node that may be gone
MOST_TIERS = 6  # of nodes by the site's weights

Row = tuple[int, int]
"""A node's row in the view, and how many of its free GPUs were given away since."""
Kind = tuple[str, int, int]
"""Sensitivity class, preference from 1, GPUs wanted on one node."""


def rankings(
    policy: str, views: Mapping[str, View], rules: Mapping[str, Rule], whole_nodes: bool = False
) -> dict[Kind, list[Row]]:
    """For each kind of request the rows that can take it, best first; preferences count tier by tier (`tiers`).

    `views` (one for each sensitivity class) have the same rows. An untouched node is listed when it is
    among the best DEPTH of its list; a node that gave GPUs away when it is among the best of any list, since
    only such nodes are given to jobs. A list of DEPTH untouched nodes ends with the last of them.
    With `whole_nodes` a job takes all of a node, and the count is 1.
    """
    seen = {c: as_whole_nodes(view) if whole_nodes else view for c, view in views.items()}
    faulty = any(any_faulty(view.slowdown) for view in seen.values())
    heads: dict[Kind, list[int]] = {}
    for c, view in seen.items():
        for number, preference in enumerate(_wanted(policy, view, rules[c], faulty, tiers(view)), 1):
            usable = [preference.usable(row) for row in range(len(view.free))]
            most = max(usable, default=0)
            for count in range(1, (min(most, 1) if whole_nodes else most) + 1):
                heads[c, number, count] = _best(preference, usable, count)
    named = sorted({row for head in heads.values() for row in head})
    deepest = 0 if whole_nodes else MOST_GONE
    lists: dict[Kind, list[Row]] = {}
    for c, view in seen.items():
        expanded = [(row, gone) for row in named for gone in range(min(len(view.free[row]), deepest + 1))]
        mine = {kind: head for kind, head in heads.items() if kind[0] == c}
        lists |= _sorted(policy, view, expanded, rules[c], faulty, tiers(view), mine)
    return lists


def tiers(view: View) -> list[int]:
    """The node weights up to which nodes are offered, tier by tier; the last covers all."""
    weights = sorted(set(view.weight)) or [0]
    return [*weights[: MOST_TIERS - 1], weights[-1]] if len(weights) > MOST_TIERS else weights


def _wanted(policy: str, view: View, rule: Rule, faulty: bool, weights: Sequence[int]) -> list[Preference]:
    """What the rule wants, tier by tier: nodes of a higher weight only where the others cannot take a job."""
    wanted = preferences(policy, view, rule, faulty)
    assert wanted is not None, policy
    return [_up_to(preference, view.weight, most) for most in weights for preference in wanted]


def _up_to(preference: Preference, weights: Sequence[int], most: int) -> Preference:
    if not weights:
        return preference
    return preference._replace(usable=lambda node: preference.usable(node) if weights[node] <= most else 0)


def _best(preference: Preference, usable: list[int], count: int) -> list[int]:
    fitting = (row for row, most in enumerate(usable) if most >= count)
    return nsmallest(DEPTH, fitting, key=lambda row: preference.key(row, count))


def _sorted(
    policy: str,
    view: View,
    expanded: list[Row],
    rule: Rule,
    faulty: bool,
    weights: Sequence[int],
    heads: Mapping[Kind, list[int]],
) -> dict[Kind, list[Row]]:
    wanted = _wanted(policy, _suffixes(view, expanded), rule, faulty, weights)
    usable = [[preference.usable(place) for place in range(len(expanded))] for preference in wanted]
    lists: dict[Kind, list[Row]] = {}
    for kind, head in heads.items():
        _, number, count = kind
        preference, most, untouched = wanted[number - 1], usable[number - 1], frozenset(head)
        fitting = [
            place for place, (row, gone) in enumerate(expanded) if most[place] >= count and (gone or row in untouched)
        ]
        lists[kind] = _cut([expanded[place] for place in _in_order(fitting, preference, count)], len(head))
    return lists


def _in_order(places: list[int], preference: Preference, count: int) -> list[int]:
    return sorted(places, key=lambda place: preference.key(place, count))


def _cut(entries: list[Row], untouched: int) -> list[Row]:
    """Beyond the last of DEPTH untouched nodes stand some that are not listed: there the order ends."""
    if untouched < DEPTH:
        return entries
    last = max(place for place, (_, gone) in enumerate(entries) if not gone)
    return entries[: last + 1]


def _suffixes(view: View, expanded: Sequence[Row]) -> View:
    """Each row as it is when its first GPUs, which Slurm hands out first, are gone."""

    def left(table: Sequence[Sequence[float]]) -> list[Sequence[float]]:
        return [table[row][gone:] for row, gone in expanded]

    return view._replace(
        names=[view.names[row] for row, _ in expanded],
        free=[view.free[row][gone:] for row, gone in expanded],
        slowdown=left(view.slowdown),
        level=left(view.level),
        slowdown_a=left(view.slowdown_a),
        node_gpus=[view.node_gpus[row] for row, _ in expanded],
        weight=[view.weight[row] for row, _ in expanded] if view.weight else (),
        position=(),
        cpus_free=(),
    )
