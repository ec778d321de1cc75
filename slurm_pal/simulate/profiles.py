# SPDX-License-Identifier: MIT
"""How slow the GPUs of the virtual cluster are: where their slowdowns come from, as rows of a table.

A source draws a `Profile` for a cluster by seed: one slowdown per class and GPU, 1.0 being
the median. Class D (memory-bound, of the published traces) is like C where a source does
not know it.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.emulation.gpus import draw_registry
from slurm_pal.simulate.inputs import pal_profile
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, ProfileRun
from slurm_pal.simulate.inputs.pal_rows import number, read_csv
from slurm_pal.simulate.virtual import VirtualCluster
from slurm_pal.store import snapshot as snapshots

Columns = dict[str, tuple[float, ...]]
"""class -> slowdown of each GPU, node by node."""

Node = tuple[dict[str, float], ...]
"""The GPUs of a measured node, each by its slowdown per class."""

_SLOW_STREAM = "slow GPUs"


class Source(Protocol):
    """Where slowdowns come from. Sources are sent to worker processes, so they must be picklable."""

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        """The cluster's GPUs; the same seed gives the same GPUs. Raises UsageError when it cannot be."""

    def text(self) -> str:
        """What they are, in a few words."""


class Drawn(NamedTuple):
    """The made-up population of `pal lab`: 2 % between GPUs, 5 % of outliers."""

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        names = [f"n{k}" for k in range(len(cluster.node_gpus))]
        registry = draw_registry(names, max(cluster.node_gpus), seed)
        kept = [
            gpu for name, count in zip(names, cluster.node_gpus, strict=True) for gpu in registry.on_node(name)[:count]
        ]
        columns = {c: tuple(gpu.slowdown[c] for gpu in kept) for c in registry.gpus[0].slowdown}
        return _profile("drawn", cluster, columns, seed)

    def text(self) -> str:
        return "drawn (SD 2 %, 5 % outliers of 1.1 to 1.5 in class A)"


class Independent(NamedTuple):
    """GPUs drawn one by one, class by class, from measured runs (pal.md 2.1 and 6)."""

    kind: str  # of pal_profile.KINDS
    runs: Mapping[str, Sequence[ProfileRun]]
    name: str

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        made = pal_profile.draw(self.runs, cluster.n_gpus, 1, self.kind, seed)
        return made._replace(gpus_per_node=cluster.per_node or 1)

    def text(self) -> str:
        return f"{pal_profile.KINDS[self.kind].summary}, from {self.name}"


class Joint(NamedTuple):
    """Whole measured nodes, all classes joined by GPU."""

    runs: Mapping[str, Sequence[ProfileRun]]
    name: str

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        if not cluster.per_node:
            raise UsageError(f"whole nodes need nodes of one size, not {cluster.text()}")
        return pal_profile.joint(self.runs, len(cluster.node_gpus), cluster.per_node, seed)

    def text(self) -> str:
        return f"whole nodes by per-GPU medians, from {self.name}"


PUBLISHED_RUNS = {"A": 1404, "B": 1096, "C": 1096, "D": 880}
"""Runs in the artefact's file of each class."""


class Fixed(NamedTuple):
    """A table with a row per GPU; every seed has these GPUs.

    Tables of the artefact were drawn from its files, and its Random baselines go on with
    the generator that drew them; so the generator goes on from there here, too.
    """

    columns: Columns
    name: str

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        rows = len(self.columns["A"])
        if rows != cluster.n_gpus:
            raise UsageError(f"{self.name} describes {rows} GPUs, the cluster has {cluster.text()}; set --cluster")
        generator = random.Random(seed)
        for _ in range(rows):
            for runs in PUBLISHED_RUNS.values():
                generator.randrange(runs)
        return _profile("given", cluster, self.columns, seed)._replace(generator=generator.getstate())

    def text(self) -> str:
        return f"as given in {self.name}"


class Sampled(NamedTuple):
    """Nodes of a published snapshot: each once while they last, then again."""

    nodes: tuple[Node, ...]
    name: str

    def draw(self, cluster: VirtualCluster, seed: int) -> Profile:
        """A node takes a node of the snapshot with as many GPUs, or, where there is none, GPUs from anywhere."""
        generator = random.Random(seed)
        by_size = {size: [node for node in self.nodes if len(node) == size] for size in set(cluster.node_gpus)}
        loose: list[Node] = [(gpu,) for node in self.nodes for gpu in node]
        decks: dict[int, list[Node]] = {}

        def deal(size: int, cards: list[Node]) -> Node:
            if not decks.get(size):
                decks[size] = generator.sample(cards, len(cards))
            return decks[size].pop()

        gpus: list[dict[str, float]] = []
        for size in cluster.node_gpus:
            if by_size[size]:
                gpus += deal(size, by_size[size])
            else:
                gpus += [deal(0, loose)[0] for _ in range(size)]
        return _profile("snapshot", cluster, {c: tuple(gpu.get(c, 1.0) for gpu in gpus) for c in ("A", "B", "C")}, seed)

    def text(self) -> str:
        return f"sampled from {self.name}"


def _profile(name: str, cluster: VirtualCluster, columns: Columns, seed: int) -> Profile:
    full = {c: columns.get(c, columns["C"]) for c in CLASSES}
    return pal_profile.given(full, cluster.per_node or 1, seed)._replace(name=f"{name} seed {seed}")


def tables(profile: Profile, cluster: VirtualCluster) -> dict[str, list[Sequence[float]]]:
    """The slowdowns as [node][index] per class."""
    return {c: cluster.rows(column) for c, column in profile.slowdown.items()}


# -- by name ----------------------------------------------------------------------------


class SourceKind(NamedTuple):
    """One word of `--profile`; `load` is given what stands after its colon."""

    load: Callable[[str], Source]
    summary: str


def _drawn(rest: str) -> Source:
    if rest:
        raise UsageError(f"profile drawn takes nothing after a colon, not {rest!r}")
    return Drawn()


def _snapshot(rest: str) -> Source:
    if not rest:
        from slurm_pal.base import config

        rest = config.load().snapshot_path
    found = snapshots.read(rest)
    if not len(found):
        raise DataError(f"snapshot {rest} holds no GPU: run pal-profile run")
    # A faulty GPU counts as the median one that will be in its place.
    return Sampled(
        tuple(
            tuple({} if found.faulty(row) else found.gpu(row).slowdown for row in found.rows[node])
            for node in found.nodes
        ),
        rest,
    )


def _measured(kind: str) -> Callable[[str], Source]:
    def load(rest: str) -> Source:
        files = _files(rest, LONGHORN)
        return Independent(kind, _runs(files, with_node=False), _names(files))

    return load


def _joint(rest: str) -> Source:
    files = _files(rest, FRONTERA)
    return Joint(_runs(files, with_node=True), _names(files))


KINDS = {
    "drawn": SourceKind(_drawn, "drawn by seed: SD 2 %, 5 % outliers of 1.1 to 1.5 (class A), as in pal lab"),
    "medians": SourceKind(_measured("medians"), "FILES: each GPU has the median of one measured GPU, per class"),
    "runs": SourceKind(_measured("raw"), "FILES: each GPU has one random single run, per class (as published)"),
    "joint": SourceKind(_joint, "FILES: whole measured nodes, classes joined by UUID"),
    "snapshot": SourceKind(_snapshot, "nodes sampled from this site's published snapshot, or snapshot:FILE"),
}
"""FILES: a directory with the published files, or perf CSVs of class A,B,C[,D]."""

LONGHORN = ("resnet-longhorn-agg.csv", "bert-longhorn-agg.csv", "bert-longhorn-agg.csv", "pagerank-longhorn-agg.csv")
FRONTERA = ("frontera-resnet-agg.csv", "frontera-bert-agg.csv", "frontera-bert-agg.csv", "frontera-pagerank-agg.csv")
"""The published files for classes A to D, in the artefact's directory."""
OWN = ("A.csv", "B.csv", "C.csv")
"""The names in a directory of one's own; D.csv may be added."""


def profile_of(text: str, directory: str = "medians") -> Source:
    """The source that `--profile` names: a word of KINDS, a CSV with a row per GPU, or a directory.

    A directory is read as the kind `directory` says. Raises UsageError for anything else,
    DataError for a file that cannot be used.
    """
    name, colon, rest = text.partition(":")
    if name in KINDS and (colon or not os.path.exists(text)):
        return KINDS[name].load(rest)
    if os.path.isdir(text):
        return KINDS[directory].load(text)
    if os.path.isfile(text):
        return _table(text)
    raise UsageError(f"profile {text!r} is not a file or directory and not one of {', '.join(KINDS)}")


def _files(rest: str, preferred: Sequence[str]) -> list[str]:
    """The four files, A to D."""
    files = [name.strip() for name in rest.split(",")] if rest else []
    if len(files) == 1 and os.path.isdir(files[0]):
        files = _in_directory(files[0], preferred)
    if not 3 <= len(files) <= 4:
        raise UsageError(f"perf files {rest!r} must be a directory, or FILE_A,FILE_B,FILE_C with FILE_D or without")
    return [*files, *files[2:3]][:4]


def _in_directory(directory: str, preferred: Sequence[str]) -> list[str]:
    own = (*OWN, "D.csv") if os.path.exists(os.path.join(directory, "D.csv")) else OWN
    for names in (own, preferred, LONGHORN, FRONTERA):
        paths = [os.path.join(directory, name) for name in names]
        if all(map(os.path.exists, paths)):
            return paths
    raise UsageError(
        f"{directory} must hold the perf files {', '.join(OWN)} (and D.csv), or those of the artefact: "
        f"{', '.join(dict.fromkeys(preferred))}"
    )


def _runs(files: Sequence[str], with_node: bool) -> dict[str, list[ProfileRun]]:
    """Nodes are those of class A's file."""
    of_a = pal_profile.read_runs(files[0], with_node)
    others = {path: pal_profile.read_runs(path) for path in dict.fromkeys(files[1:])}
    return {"A": of_a, **{c: others[path] for c, path in zip(CLASSES[1:], files[1:], strict=True)}}


def _names(files: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(os.path.basename(path) for path in files))


def _table(path: str) -> Source:
    """A CSV with a row per GPU and the columns PerfVar_classA, B, C and, where known, D."""
    prefix = "PerfVar_class"
    try:
        rows = list(read_csv(path, tuple(prefix + c for c in CLASSES)))
    except DataError:
        rows = list(read_csv(path, tuple(prefix + c for c in CLASSES[:-1])))
    if not rows:
        raise DataError(f"{path} holds no GPU")
    names = list(rows[0][1])
    columns = {
        name.removeprefix(prefix): [number(row, name, f"{path} line {line}") for line, row in rows] for name in names
    }
    return Fixed({c: tuple(values) for c, values in columns.items()}, os.path.basename(path))


# -- GPUs made slower --------------------------------------------------------------------


class SlowShare(NamedTuple):
    """A share of the GPUs that is persistently slower, by `factor` in class A."""

    share: float = 0.0
    factor: float = 1.0

    def text(self) -> str:
        return f"{100 * self.share:g} % of the GPUs slower by {self.factor:g} (B and C by {self.of('B'):g})"

    def of(self, sensitivity: str) -> float:
        """The factor in one class (pal.md 8.6: 1.5 in A goes with 1.3 in B and C)."""
        return self.factor if sensitivity == "A" else 1.0 + OTHER_CLASSES * (self.factor - 1.0)


OTHER_CLASSES = 0.6
FACTOR_MAX = 100.0


def parse_slow(text: str) -> SlowShare:
    """`SHARE:FACTOR`, like 0.03:1.5. Raises UsageError."""
    share, colon, factor = text.partition(":")
    try:
        found = SlowShare(float(share), float(factor))
    except ValueError:
        found = SlowShare(math.nan)
    if not colon or not 0 <= found.share <= 1 or not 1 <= found.factor <= FACTOR_MAX:
        raise UsageError(f"slow GPUs {text!r} must be SHARE:FACTOR, a share in 0..1 and a factor in 1..{FACTOR_MAX:g}")
    return found


def slowed(profile: Profile, slow: SlowShare, seed: int) -> Profile:
    """The profile with a share of its GPUs (rounded, at least one unless the share is 0) made slower."""
    if not slow.share:
        return profile
    count = max(1, round(slow.share * profile.n_gpus))
    hit = set(random.Random(f"{_SLOW_STREAM} {seed}").sample(range(profile.n_gpus), count))
    return profile._replace(
        slowdown={
            c: tuple(value * slow.of(c) if gpu in hit else value for gpu, value in enumerate(column))
            for c, column in profile.slowdown.items()
        }
    )
