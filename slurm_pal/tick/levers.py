# SPDX-License-Identifier: MIT
"""Node levers: class features for --prefer, and weights for the default order of all jobs.

Both are lost when slurmctld reads its configuration anew (scontrol(1), reconfigure), and so are
compared with what is wanted at each tick. Only features named like ours (`pal_A_v0`) are ours;
the weight that a node had before is remembered in the journal, before it is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.journal.journal import Journal
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store.snapshot import NO_CLASS, Snapshot

_CLASSES, _LATE = r"pal_[ABC]_v\d+", r"pal_late_\d+"
OURS, LATE_ONLY = re.compile(f"{_CLASSES}|{_LATE}"), re.compile(_LATE)
"""Features that are ours: class features and those of GPUs that jobs wait for; where classes are not published only
the latter."""
WEIGHT_STEP = 10
"""Between one variability class and the next: room for the site's own order in between."""


# -- class features --------------------------------------------------------------------------


class FeatureUpdate(NamedTuple):
    """Nodes that get the same features: both AvailableFeatures and ActiveFeatures of scontrol(1)."""

    names: tuple[str, ...]
    features: str  # the whole list, that of others included; "" for none


def wanted_features(nodes: Iterable[Node], snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Node -> class features: for each sensitivity class the worst variability class of its GPUs.

    A node with a GPU of unknown class gets none for that sensitivity class.
    """
    found: dict[str, frozenset[str]] = {}
    for node in nodes:
        worst = {c: worst_class(node, snapshot, c) for c in SENSITIVITY_CLASSES}
        found[node.name] = frozenset(f"pal_{c}_v{k}" for c, k in worst.items() if k is not None)
    return found


def worst_class(node: Node, snapshot: Snapshot, sensitivity: str) -> int | None:
    """Number of the worst variability class among a node's GPUs; None where one is unknown or faulty, or none there."""
    if has_faulty(node, snapshot):
        return None
    column, index = snapshot.columns[f"class_{sensitivity}"], snapshot.columns["index"]
    known = {int(index[row]): int(column[row]) for row in snapshot.rows.get(node.name, ())}
    bins = [known.get(k, NO_CLASS) for k in range(node.n_gpus)]
    worst = max(bins, default=NO_CLASS)
    return None if worst == NO_CLASS else worst


def has_faulty(node: Node, snapshot: Snapshot) -> bool:
    """Whether a GPU of the node was seen to fail."""
    index = snapshot.columns["index"]
    return any(snapshot.faulty(row) and index[row] < node.n_gpus for row in snapshot.rows.get(node.name, ()))


def feature_updates(
    nodes: Iterable[Node], wanted: Mapping[str, frozenset[str]], mine: re.Pattern[str] = OURS
) -> list[FeatureUpdate]:
    """What is to change so that each node bears the wanted features, and no other ones of ours.

    The features of others stay, in their order. Nodes that get the same list go together; with
    `wanted` empty ours are withdrawn.
    """
    together: dict[str, list[str]] = {}
    for node in nodes:
        ours = wanted.get(node.name, frozenset())
        if not _as_wanted(node, ours, mine) and not _untouchable(node):
            text = ",".join([*_others(node.available or (), mine), *sorted(ours)])
            together.setdefault(text, []).append(node.name)
    return [FeatureUpdate(tuple(names), text) for text, names in together.items()]


def left_alone(nodes: Iterable[Node], wanted: Mapping[str, frozenset[str]], mine: re.Pattern[str] = OURS) -> list[str]:
    """Nodes whose class features cannot be set without touching others' features, one line for each reason."""
    why: dict[str, list[str]] = {}
    for node in nodes:
        if not _as_wanted(node, wanted.get(node.name, frozenset()), mine) and (reason := _untouchable(node)):
            why.setdefault(reason, []).append(node.name)
    return [f"{len(names)} nodes ({names[0]}, ...) get no class features: {reason}" if len(names) > 1 else
            f"node {names[0]} gets no class features: {reason}" for reason, names in why.items()]  # fmt: skip


def _as_wanted(node: Node, ours: frozenset[str], mine: re.Pattern[str]) -> bool:
    available = frozenset(filter(mine.fullmatch, node.available or ()))
    active = frozenset(filter(mine.fullmatch, node.features))
    return active == ours and (available == ours or node.available is None)


def _untouchable(node: Node) -> str:
    """Why a node's list cannot be written whole: a feature plug-in decides which are active (NodeFeaturesPlugins)."""
    if node.available is None:
        return "this backend does not show the available features (slurm.backend = cli does)"
    if frozenset(_others(node.available)) != frozenset(_others(node.features)):
        return "its available and active features differ, which setting both would undo"
    return ""


def _others(features: Iterable[str], mine: re.Pattern[str] = OURS) -> list[str]:
    return [feature for feature in features if not mine.fullmatch(feature)]


def set_features(client: SlurmClient, updates: Sequence[FeatureUpdate]) -> None:
    """Give the updates to Slurm. Raises SlurmError; the next tick finds again what was not done."""
    for update in updates:
        client.update_nodes(update.names, AvailableFeatures=update.features, ActiveFeatures=update.features)


# -- weights ---------------------------------------------------------------------------------


class WeightUpdate(NamedTuple):
    """Nodes that get the same weight and had the same one before."""

    names: tuple[str, ...]
    weight: int
    base: int  # what the journal must hold before; with `weight` equal to it, nothing afterwards


def weight_updates(
    nodes: Iterable[Node], snapshot: Snapshot, barred: float, bases: Mapping[str, int]
) -> list[WeightUpdate]:
    """What is to change so that nodes with slow or faulty GPUs are taken last (slurm.conf(5), Weight: lowest first).

    A node's weight is its base + `WEIGHT_STEP` x its worst class for A; classes up to `barred`
    count as 0, and so does an unknown one; a faulty GPU is worse than every class. `bases` is Journal.weights().
    """
    levels = snapshot.centroids.get("A", [])
    together: dict[tuple[int, int], list[str]] = {}
    for node in nodes:
        worst = worst_class(node, snapshot, "A")
        slow = worst is not None and worst < len(levels) and levels[worst] > barred
        base = base_weight(node, bases)
        steps = max(1, len(levels)) if has_faulty(node, snapshot) else worst if slow and worst is not None else 0
        weight = base + WEIGHT_STEP * steps
        journalled = bases.get(node.name) == base if weight != base else node.name not in bases
        if weight != node.weight or not journalled:
            together.setdefault((weight, base), []).append(node.name)
    return [WeightUpdate(tuple(names), *key) for key, names in together.items()]


def withdrawn_weights(nodes: Iterable[Node], bases: Mapping[str, int]) -> list[WeightUpdate]:
    """What gives each node that we changed its own weight back."""
    together: dict[int, list[str]] = {}
    for node in nodes:
        if node.name in bases:
            together.setdefault(base_weight(node, bases), []).append(node.name)
    return [WeightUpdate(tuple(names), base, base) for base, names in together.items()]


def base_weight(node: Node, bases: Mapping[str, int]) -> int:
    """The weight that the site gave a node: the remembered one while the node bears one of ours, else the present."""
    base = bases.get(node.name, node.weight)
    above = node.weight - base
    return base if above >= 0 and above % WEIGHT_STEP == 0 and above < WEIGHT_STEP * NO_CLASS else node.weight


def set_weights(client: SlurmClient, journal: Journal, updates: Sequence[WeightUpdate]) -> None:
    """Remember the base, update the node, and forget the base once the node bears it again: no kill loses a base.

    Raises SlurmError, DataError; what was not done is found again by the next tick.
    """
    for update in updates:
        with journal.together():
            for name in update.names:
                journal.set_weight(name, update.base)
        client.update_nodes(update.names, Weight=str(update.weight))
        if update.weight == update.base:
            with journal.together():
                for name in update.names:
                    journal.set_weight(name, None)
