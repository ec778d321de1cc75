# SPDX-License-Identifier: MIT
"""From all records to the standing of every GPU: a pure fold over the sweeps in time order.

Nothing is carried over from an earlier call: the history, the held classes and their
hysteresis are rebuilt from the records. The same records therefore give the same classes
in whatever order and however often they came in, and a lost database costs only another
reading of the result files.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.variability import classes, drift, flags, levels, notices, published, regime
from slurm_pal.variability.classes import Held
from slurm_pal.variability.drift import Course
from slurm_pal.variability.finding import UNCONFIRMED, Finding, flagged
from slurm_pal.variability.health import MISSING, Health
from slurm_pal.variability.notices import Notice
from slurm_pal.variability.params import Params, preference
from slurm_pal.variability.residence import newest, residents
from slurm_pal.variability.runs import Group, Sighting, SweepRuns
from slurm_pal.variability.shift import CommonLevel
from slurm_pal.variability.slowdown import GroupSlowdowns, age_state, confidence, shrunk, standing
from slurm_pal.variability.succession import background, kin, shifted
from slurm_pal.variability.track import Track, observe


class GpuStanding(NamedTuple):
    """What the records show of one GPU."""

    uuid: str
    node: str
    slot: int  # Slurm's GPU index on the node
    model: str
    slowdown: dict[str, float]  # sensitivity class -> slowdown; 1.0 where forgotten, absent: never measured
    variability_class: dict[str, int]  # sensitivity class -> index into Classification.centroids
    measured_s: float  # Unix s of the newest run believed, 0.0: never
    confidence: float  # 0..1, of the least sure sensitivity class
    flags: frozenset[str]


class GroupSummary(NamedTuple):
    """The classes of one group, for reports."""

    group: Group
    gpus: int
    classes: int
    lone: int  # outliers, each its own class
    explained: float | None  # share of the variance between the others that classes explain
    spread: float  # population SD of the slowdowns without the lone
    repeatability: float
    met_cap: float | None = None  # share of its GPUs that were measured at their power cap; None: not known


class Classification(NamedTuple):
    """All GPUs by (node, slot), and the slowdown that each class stands for."""

    gpus: tuple[GpuStanding, ...]
    centroids: dict[str, list[float]]  # sensitivity class -> level of v0, v1, ..., rising
    groups: tuple[GroupSummary, ...]
    findings: tuple[Finding, ...] = ()  # what happened to single GPUs, by time
    met_cap: dict[str, dict[str, float]] = {}  # model -> sensitivity class -> share of GPUs measured at the cap
    notices: tuple[Notice, ...] = ()  # about the groups by which class A is scored


def classify_sweeps(known: Iterable[SweepRuns], now_s: float, params: Params) -> Classification:
    """Every GPU in sweeps in time order, as of `now_s` (Unix s); `runs.in_order` has them without all records."""
    fold = _Fold(params)
    for sweep in known:
        fold.take(sweep)
    return fold.finish(now_s)


def classify_each(
    known: Iterable[SweepRuns], params: Params, skip: int = 0
) -> Iterator[tuple[SweepRuns, Classification]]:
    """Each sweep after the first `skip` with what was known once it was in, as of its own time; in time order."""
    fold = _Fold(params)
    for position, sweep in enumerate(known):
        fold.take(sweep)
        if position >= skip:
            yield sweep, fold.fork().finish(sweep.ts)


_STATES = ("fresh", "stale", "unknown")


class _Chosen(NamedTuple):
    """The track that speaks for one GPU in one sensitivity class."""

    group: Group
    track: Track
    state: str  # fresh, stale or unknown
    standing: GroupSlowdowns | None  # None when unknown
    position: int  # in the standing


def _without_noise(slowdown: float, held: Held) -> float:
    """What a slowdown is worth where part of the differences is noise of the runs."""
    return 1.0 + held.icc * (slowdown - 1.0)


def _kind(group: Group) -> str:
    """Its part in finding out what belongs to a node; "" for none, and then for no class either."""
    return "pcie" if group.benchmark.startswith("pcie") else group.sensitivity


class _Fold:
    """The state between two sweeps. Lives only within one call of `classify`."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.tracks: dict[Group, dict[str, Track]] = {}
        self.seen: dict[str, Sighting] = {}
        self.standings: dict[Group, GroupSlowdowns] = {}
        self.methods: dict[Group, list[Group]] = {}  # kin -> its groups, newest method first
        self.outdated: dict[Group, frozenset[str]] = {}  # GPUs whose environment has changed since
        self.held: dict[Group, Held] = {}
        self.coupled: frozenset[str] = frozenset()
        self.faulty: dict[Group, frozenset[str]] = {}
        self.courses: dict[Group, dict[str, Course]] = {}
        self.scatter: dict[Group, float] = {}  # of runs, as far as it was known before the sweep
        self.health = Health()
        self.below: frozenset[Group] = frozenset()  # measured below the power cap
        self.common: dict[Group, CommonLevel] = {}

    def fork(self) -> _Fold:
        """A copy that can be finished while this one goes on; it must not take in another sweep."""
        twin = copy.copy(self)
        twin.standings, twin.held, twin.faulty = dict(self.standings), dict(self.held), dict(self.faulty)
        twin.outdated = dict(self.outdated)
        return twin

    def take(self, sweep: SweepRuns) -> None:
        """Take in one sweep; sweeps come in time order."""
        self.seen = newest(self.seen, (seen for seen in sweep.sightings if MISSING not in seen.flags))
        # Equal groups of a sweep are one object, and that is quicker to look up than its eight fields.
        series_of: dict[int, tuple[dict[str, Track], dict[str, Course] | None]] = {}
        touched: list[Group] = []
        common = self._common(sweep)
        for seen in sweep.observations:
            mine = series_of.get(id(seen.group))
            if mine is None:
                touched.append(seen.group)
                mine = series_of[id(seen.group)] = self._series(seen.group)
            series, courses = mine
            if shared := common.get(seen.group):
                seen = seen._replace(speed=seen.speed - shared)
            before = series.get(seen.uuid)
            if courses is None:
                series[seen.uuid] = observe(before, seen, self.params)
                continue
            course = courses.get(seen.uuid) or courses.setdefault(seen.uuid, Course())
            noise = usual = self.scatter.get(seen.group, self.params.repeatability)
            if before is not None and abs(seen.speed - before.speed) > self.params.jump:  # else noise decides nothing
                noise = course.scatter(usual, self.params)
            series[seen.uuid] = after = observe(before, seen, self.params, noise)
            course.follow(before, after, seen, usual, self.params)
        self.scatter.update(
            (g, drift.scatter_of(self.tracks[g].values(), self.params)) for g in touched if g.sensitivity
        )
        self._evaluate(sorted(group for group in touched if _kind(group)), sweep.ts)
        suspects = (self.faulty.get(group, frozenset()) for group in touched)
        self.health.take(sweep.sightings, frozenset().union(*suspects))

    def _common(self, sweep: SweepRuns) -> dict[Group, float]:
        """What the sweep's log speeds share against what is held, for each group."""
        node_of = {seen.uuid: seen.node for seen in sweep.sightings}
        apart: dict[Group, dict[str, dict[str, float]]] = {}
        for seen in sweep.observations:
            held = self.tracks.get(seen.group, {}).get(seen.uuid) if seen.group.sensitivity else None
            if held is None or held.pending is not None or self.courses[seen.group][seen.uuid].suspected:
                continue  # a GPU that may have changed by itself, and is measured again for that, says nothing
            if seen.weight == 1.0 and not seen.environment.changed_since(held.last.environment):
                nodes = apart.setdefault(seen.group, {})
                nodes.setdefault(node_of.get(seen.uuid, ""), {})[seen.uuid] = seen.speed - held.speed
        found: dict[Group, float] = {}
        for group, differences in apart.items():
            alive = len(self._alive(group, sweep.ts))
            level = self.common.setdefault(group, CommonLevel())
            taken = level.take(differences, alive, group, sweep.ts, self.params)
            for uuid in taken.uuids:
                self.tracks[group][uuid] = shifted(self.tracks[group][uuid], taken.given_back)
                self.courses[group][uuid] = Course(events=self.courses[group][uuid].events)
            found[group] = taken.shift
        return found

    def _series(self, group: Group) -> tuple[dict[str, Track], dict[str, Course] | None]:
        """A group's tracks and courses; no courses for links and hosts, which vary by more than drift's thresholds."""
        if group not in self.tracks:
            self.methods.setdefault(kin(group), []).insert(0, group)
        tracks = self.tracks.setdefault(group, {})
        return tracks, self.courses.setdefault(group, {}) if group.sensitivity else None

    def _alive(self, group: Group, at_s: float) -> dict[str, Track]:
        """The tracks of a group that are not too old."""
        return {u: t for u, t in self.tracks[group].items() if age_state(t.ts, at_s, self.params) != "unknown"}

    def _changed(self, uuid: str, track: Track) -> bool:
        """Whether the GPU is in another environment now than when it was measured."""
        known = self.seen.get(uuid)
        return known is not None and known.environment.changed_since(track.last.environment)

    def _evaluate(self, touched: Iterable[Group], at_s: float) -> None:
        """Bring groups up to date.

        A number measured in another environment is no score, but stays in its group to keep the median.
        """
        tracks_of: dict[Group, tuple[dict[str, Track], Group | None]] = {}
        node_of = {uuid: seen.node for uuid, seen in self.seen.items()}
        for group in touched:
            own = self._alive(group, at_s)
            self.outdated[group] = frozenset(u for u, t in own.items() if self._changed(u, t))
            methods = self.methods[kin(group)]
            older = ((g, self._alive(g, at_s)) for g in methods[methods.index(group) + 1 :])
            tracks_of[group] = background(own, older)
            before = self.standings.get(group)
            had_kinds = before is not None and before.kinds is not None
            self.standings[group] = standing(group, tracks_of[group][0], node_of, had_kinds, self.params)
            self.below = regime.step(self.below, group, regime.share(t.last.met_cap for t in own.values()))
        self.coupled = self._node_coupled()
        for group, (tracks, heir_of) in tracks_of.items():
            if group.sensitivity in SENSITIVITY_CLASSES:
                self._hold(group, tracks, heir_of)

    def _hold(self, group: Group, tracks: dict[str, Track], heir_of: Group | None) -> None:
        now = self.standings[group]
        self.faulty[group] = frozenset()
        if group.sensitivity == "A":
            z = (now.relative - 1.0) / now.scale
            self.faulty[group] = flags.suspect_hardware(
                now.uuids, now.relative, z, now.slower_kind, tracks, group in self.below, self.params
            )
        unfit = frozenset(u for u in now.uuids if "degraded" in tracks[u].last.flags)
        if group.sensitivity == "B":
            unfit |= self.coupled
        before = self.held.get(group) or (self.held.get(heir_of) if heir_of else None)
        held = classes.step(before, now, unfit, self.faulty[group], self.params)
        if held is None:
            self.held.pop(group, None)
        else:
            self.held[group] = held

    def _scored(self, group: Group) -> list[int]:
        """Positions in the group's standing of the GPUs whose score it gives."""
        own, outdated = self.tracks[group], self.outdated[group]
        return [i for i, u in enumerate(self.standings[group].uuids) if u in own and u not in outdated]

    def _node_coupled(self) -> frozenset[str]:
        """GPUs slow with their node in class B or over PCIe but not in class A, each over all groups."""
        z: dict[str, dict[str, float]] = {"A": {}, "B": {}, "pcie": {}}
        for group, now in sorted(self.standings.items()):
            kind = _kind(group)
            if kind in z and not now.small:
                values = now.z.tolist()
                z[kind].update((now.uuids[i], values[i]) for i in self._scored(group))
        node_of = {u: s.node for u, s in self.seen.items()}
        found = (flags.node_coupled(node_of, z[kind], z["A"], self.params) for kind in ("B", "pcie") if z[kind])
        return frozenset().union(*found)

    def finish(self, now_s: float) -> Classification:
        """The result as of `now_s`."""
        self._evaluate(sorted(self.tracks), now_s)
        present = [s for _, s in sorted(residents(self.seen).items())]
        differs = flags.config_differs(present, self.params)
        present = sorted([*present, *self.health.stand_ins(present)], key=lambda s: (s.node, s.slot))
        chosen = {c: self._choose(c, present, now_s) for c in SENSITIVITY_CLASSES}
        numbers: dict[str, dict[str, int]] = {}
        centroids: dict[str, list[float]] = {}
        for c in SENSITIVITY_CLASSES:
            numbers[c], centroids[c] = self._number(chosen[c], now_s)
        findings = self._findings()
        changed: dict[str, set[str]] = {}
        for group, own in findings.items():
            for finding in own:
                speaks = chosen[group.sensitivity].get(finding.uuid) if group.sensitivity in chosen else None
                doubted = finding.kind == UNCONFIRMED and speaks is not None and speaks.group == group
                if doubted or flagged(finding, now_s):
                    changed.setdefault(finding.uuid, set()).add(finding.kind)
        gpus = []
        for sighting in present:
            picks = {c: chosen[c][sighting.uuid] for c in SENSITIVITY_CLASSES if sighting.uuid in chosen[c]}
            mine = {c: numbers[c][sighting.uuid] for c in picks if sighting.uuid in numbers[c]}
            gpu = self._gpu(sighting, picks, mine, sighting.uuid in differs, now_s)
            shown = changed.get(sighting.uuid, set()) | self.health.faults(sighting)
            gpus.append(gpu._replace(flags=gpu.flags | shown))
        levels_of = {c: v for c, v in centroids.items() if v}
        happened = sorted((f for own in findings.values() for f in own), key=lambda f: (f.seen_s, f.uuid, f.benchmark))
        caps = self._met_cap(chosen, present)
        noticed = tuple(self._notices({pick.group for pick in chosen["A"].values() if pick.standing}, now_s))
        return Classification(tuple(gpus), levels_of, tuple(self._summaries()), tuple(happened), caps, noticed)

    def _notices(self, groups: Iterable[Group], now_s: float) -> Iterator[Notice]:
        for group in sorted(groups):
            held, level = self._held_or_none(group), self.common.get(group)
            shown = level.shown if level else None
            now, tracks = self.standings[group], self.tracks[group]
            measured_s = [tracks[uuid].ts for uuid in now.uuids if uuid in tracks]
            yield from notices.of_group(group, now, held, shown, measured_s, now_s, self.params)

    def _findings(self) -> dict[Group, list[Finding]]:
        return {
            group: drift.of_group(self.tracks[group], courses, self.scatter[group], self.params)
            for group, courses in sorted(self.courses.items())
        }

    def _choose(self, sensitivity: str, present: list[Sighting], now_s: float) -> dict[str, _Chosen]:
        """For each GPU the track to use: one that still counts, fresh, of the preferred benchmark, the newest.

        Fresh comes first, so a benchmark that is no longer measured does not count for months. For class A one that
        was measured at the power cap is preferred to one that was not.
        """
        below = self.below if sensitivity == "A" else frozenset()
        here = {s.uuid for s in present}
        best: dict[str, tuple[tuple[object, ...], _Chosen]] = {}
        for group in sorted(g for g in self.tracks if g.sensitivity == sensitivity):
            now = self.standings[group]
            position = {now.uuids[i]: i for i in self._scored(group)}
            for uuid, track in self.tracks[group].items():
                if uuid not in here:
                    continue
                state = age_state(track.ts, now_s, self.params) if uuid in position else "unknown"
                found = None if state == "unknown" else now
                rank = (_STATES.index(state), group in below, preference(group.benchmark), -track.ts, group)
                if uuid not in best or rank < best[uuid][0]:
                    best[uuid] = (rank, _Chosen(group, track, state, found, position.get(uuid, -1)))
        return {uuid: pick for uuid, (_, pick) in best.items()}

    def _number(self, chosen: dict[str, _Chosen], now_s: float) -> tuple[dict[str, int], list[float]]:
        """(UUID -> class number, level of each class) over all groups of one sensitivity class."""
        groups = sorted({pick.group for pick in chosen.values() if pick.standing})
        found: list[levels.Level] = []
        where: dict[str, int] = {}
        for which, group in enumerate(groups):
            mine = sorted(u for u, pick in chosen.items() if pick.group == group and pick.standing)
            held = self._classes_of(group)
            if held is None:
                continue
            first = len(found)
            counts = np.bincount([held.members[u] for u in mine if u in held.members], minlength=len(held.centroids))
            found += [
                levels.Level(_without_noise(v, held), which, int(n), False)
                for v, n in zip(held.centroids, counts.tolist(), strict=True)
            ]
            for uuid in mine:
                if uuid in held.lone:
                    where[uuid] = len(found)
                    found.append(levels.Level(self._slowdown(uuid, chosen[uuid], now_s), which, 1, True))
                else:
                    where[uuid] = first + held.members[uuid]
        numbers, values = levels.number(found, self.params)
        return {uuid: numbers[i] for uuid, i in where.items()}, values

    def _classes_of(self, group: Group) -> Held | None:
        """Held classes, or the bins of the published procedure where that is asked for."""
        if self.params.method == "exact" or group not in self.held:
            return self.held.get(group)
        now = self.standings[group]
        make = published.as_intended if self.params.method == "pal" else published.as_shipped
        bins = make(now.slowdown)
        regular = sorted(set(bins.labels[~bins.lone].tolist()))
        return Held(
            centroids=tuple(float(bins.levels[i]) for i in regular),
            members={u: regular.index(i) for u, i, x in zip(now.uuids, bins.labels, bins.lone, strict=True) if not x},
            lone=frozenset(u for u, x in zip(now.uuids, bins.lone, strict=True) if x),
            flat=False,
            fitted=len(now.uuids),
            explained=1.0,
        )

    def _slowdown(self, uuid: str, pick: _Chosen, now_s: float) -> float:
        if pick.standing is None or pick.standing.small:
            return 1.0
        held = self._held_or_none(pick.group)
        slowdown = float(pick.standing.slowdown[pick.position])
        if held is not None and uuid not in held.lone:
            slowdown = _without_noise(slowdown, held)
        return shrunk(slowdown, pick.track.ts, now_s, self.params)

    def _held_or_none(self, group: Group) -> Held | None:
        return self.held.get(group) if self.params.method == "exact" else None

    def _gpu(
        self, sighting: Sighting, picks: dict[str, _Chosen], numbers: dict[str, int], differs: bool, now_s: float
    ) -> GpuStanding:
        found = set(sighting.flags) | ({"config_differs"} if differs else set())
        found |= {"node_coupled"} if sighting.uuid in self.coupled else set()
        found |= set() if picks else {"unknown"}
        for c, pick in picks.items():
            found.update(self._flags(sighting.uuid, c, pick))
        sure = [
            0.0 if p.standing is None else confidence(p.track, len(p.standing.uuids), now_s, self.params)
            for p in picks.values()
        ]
        return GpuStanding(
            uuid=sighting.uuid,
            node=sighting.node,
            slot=sighting.slot,
            model=sighting.model,
            slowdown={c: self._slowdown(sighting.uuid, pick, now_s) for c, pick in picks.items()},
            variability_class=numbers,
            measured_s=max((pick.track.ts for pick in picks.values()), default=0.0),
            confidence=min(sure, default=0.0),
            flags=frozenset(found),
        )

    def _flags(self, uuid: str, sensitivity: str, pick: _Chosen) -> Iterator[str]:
        """Flags of one GPU that follow from one sensitivity class."""
        track, now = pick.track, pick.standing
        yield from track.last.flags
        if pick.state != "fresh":
            yield pick.state
        if now is None:
            return
        if sensitivity == "A" and track.last.met_cap is not None and track.last.met_cap < regime.HALF:
            yield regime.NOT_CAPPED
        if now.small:
            yield "small_group"
            return
        held = self.held.get(pick.group)
        if held is not None and uuid in held.lone:
            yield "outlier"
            if track.runs == 1:
                yield "unconfirmed"  # one slow run; the next sweep decides
        elif now.relative[pick.position] < 1.0 - self.params.outlier_z * now.scale:
            yield "outlier"
        if uuid in self.faulty.get(pick.group, frozenset()):
            yield "suspect_hw"
        slow = float(now.relative[pick.position])
        if sensitivity == "A" and flags.quarantined(slow, now.scale, now.slow_z, track, self.params):
            yield "quarantined"

    @staticmethod
    def _met_cap(chosen: dict[str, dict[str, _Chosen]], present: Iterable[Sighting]) -> dict[str, dict[str, float]]:
        """Model -> sensitivity class -> share of its GPUs whose score was measured at the power cap, where known."""
        met: dict[tuple[str, str], list[float | None]] = {}
        for seen in present:
            for c, picks in chosen.items():
                if seen.uuid in picks and picks[seen.uuid].standing:
                    met.setdefault((seen.model, c), []).append(picks[seen.uuid].track.last.met_cap)
        found: dict[str, dict[str, float]] = {}
        for (model, c), values in sorted(met.items()):
            known = regime.share(values)
            if known is not None:
                found.setdefault(model, {})[c] = round(known, 3)
        return found

    def _summaries(self) -> Iterator[GroupSummary]:
        for group, now in sorted(self.standings.items()):
            held = self._classes_of(group) if group.sensitivity in SENSITIVITY_CLASSES else None
            mine = self._scored(group)
            if not mine:
                continue
            ordinary = now.slowdown[[i for i in mine if held is None or now.uuids[i] not in held.lone]]
            yield GroupSummary(
                group=group,
                gpus=len(mine),
                classes=len(held.centroids) if held else 0,
                lone=len(mine) - len(ordinary),
                explained=held.explained if held else None,
                spread=float(np.std(ordinary)) if len(ordinary) else 0.0,
                repeatability=now.repeatability,
                met_cap=regime.share(self.tracks[group][now.uuids[i]].last.met_cap for i in mine),
            )
