# SPDX-License-Identifier: MIT
"""What a site does about a GPU that jobs wait for: one rung at a time, up by evidence, down by a measurement. Pure.

    observe   it is flagged `late`, and measured before its turn
    annotate  its node bears the feature pal_late_<index>
    avoid     it is scored as slow as its jobs found it, so that sensitive jobs go elsewhere
    reserve   its node, once idle, is reserved for us for half an hour and measured fully, again until runs agree
    drain     its node is drained: only after two measurements that did not end it

The site says how far it goes (`online.ladder`); up to `annotate` one job is enough, from `avoid` on several users
must agree, since a job can report anything. No rung is left downwards but by a clean measurement, another GPU in the
slot, or a week without evidence, so nothing flaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base.cluster import Gpu
from slurm_pal.store.late import AVOID, DRAIN, OBSERVE, RELEASED, RESERVE, RUNGS, Heard, LateGpu

LEAST_FACTOR = 1.03
"""Beyond what its measurement explains; jobs that lose less are no evidence."""
ANNOTATE_LOOKS = 3
AVOID_JOBS = 2
RESERVE_AFTER_S = 600.0
DRAIN_MEASURED = 2
QUIET_S = 7 * 86400.0
REMEMBERED_S = 30 * 86400.0
"""How long a released GPU is remembered, to count how often it was measured in vain."""
MOST_AHEAD_S = 300.0
"""Munge refuses nodes whose clocks are further off; what is said of a later time is nobody's honest word."""
LOOK_S = 10.0
"""Words of a job that follow sooner are one."""
MOST_JOBS = 50
MOST_GPUS = 2000


class Measured(NamedTuple):
    """What is published of a GPU."""

    uuid: str
    measured_s: float  # 0.0: never
    slowdown: Mapping[str, float]  # by sensitivity class
    confirmed: bool = True  # false: its newest run departs from the others, and a second one must agree


class Terms(NamedTuple):
    """The site's rule."""

    most: str = OBSERVE
    users: int = 2
    climbs: bool = True  # false: this process only observes


class RungStep(NamedTuple):
    """One step on the ladder, for the log."""

    gpu: LateGpu  # as it is now
    before: str
    why: str


def climb(
    known: Iterable[LateGpu], heard: Iterable[tuple[Gpu, Heard]], measured: Mapping[Gpu, Measured], terms: Terms,
    now_s: float,
) -> tuple[tuple[LateGpu, ...], tuple[RungStep, ...]]:  # fmt: skip
    """The GPUs as they are after this look, and what changed."""
    gpus = {(one.node, one.index): one for one in known}
    words: dict[Gpu, list[Heard]] = {}
    for place, one in heard:
        if one.at_s <= now_s + MOST_AHEAD_S:
            words.setdefault(place, []).append(one)
    steps: list[RungStep] = []
    found: list[LateGpu] = []
    for place in dict.fromkeys((*gpus, *words)):
        before = gpus.get(place)
        score = measured.get(place, Measured("", 0.0, {}))
        after, why = _moved(place, before, words.get(place, ()), score, terms, now_s)
        if after is None:
            continue
        found.append(after)
        rung = before.rung if before is not None else RELEASED
        if after.rung != rung:
            steps.append(RungStep(after, rung, why))
    found.sort(key=lambda one: (-RUNGS.index(one.rung), -one.since_s, one.node, one.index))
    return tuple(sorted(found[:MOST_GPUS], key=lambda one: (one.node, one.index))), tuple(steps)


def _moved(
    place: Gpu, before: LateGpu | None, words: Iterable[Heard], score: Measured, terms: Terms, now_s: float
) -> tuple[LateGpu | None, str]:
    """The GPU after this look, None to forget it; and why it left its rung."""
    one = before or LateGpu(*place, score.uuid, RELEASED, now_s)
    if before is not None and score.uuid and one.uuid not in ("", score.uuid):
        if one.rung == RELEASED:
            return None, ""
        return one._replace(uuid=score.uuid, rung=RELEASED, since_s=now_s, heard=(), measured=0), "another GPU is there"
    held = _merged(one.heard, words, score if score.confirmed else score._replace(measured_s=0.0))
    if one.rung != RELEASED and not held:
        again = one.measured + (one.heard != () and one.at_least(RESERVE))
        return one._replace(rung=RELEASED, since_s=now_s, heard=(), uuid=score.uuid, measured=again), "it was measured"
    newest_s = max((word.at_s for word in held), default=0.0)
    if one.rung != RELEASED and now_s - newest_s > QUIET_S:
        return one._replace(rung=RELEASED, since_s=now_s, heard=()), "no job has waited for it for a week"
    if one.rung == RELEASED and not held:
        return (None, "") if before is None or now_s - one.since_s > REMEMBERED_S else (one, "")
    one = one._replace(heard=held, uuid=one.uuid or score.uuid)
    wanted, why = _wanted(one, terms, now_s)
    here, most = RUNGS.index(one.rung), RUNGS.index(terms.most)
    if here > most:
        return one._replace(rung=terms.most, since_s=now_s), "the site's rule goes no further"
    if RUNGS.index(wanted) > here and here < (most if terms.climbs else RUNGS.index(OBSERVE)):
        return one._replace(rung=RUNGS[here + 1], since_s=now_s), why
    return one, ""


def _merged(known: Iterable[Heard], words: Iterable[Heard], score: Measured) -> tuple[Heard, ...]:
    """The newest word of each job since the measurement, of those that say clearly more than the measurement.

    A weaker word takes nothing back: else a job near the limit would come and go.
    """
    held = {word.job_id: word for word in known if word.at_s > score.measured_s}
    for word in words:
        old = held.get(word.job_id)
        believed = max(1.0, score.slowdown.get(word.sensitivity, score.slowdown.get("A", 1.0)))
        if word.at_s <= score.measured_s or word.factor < LEAST_FACTOR * believed:
            continue
        if old is None or word.at_s >= old.at_s + LOOK_S:
            held[word.job_id] = word._replace(looks=1 if old is None else old.looks + 1)
    return tuple(sorted(held.values(), key=lambda word: (word.at_s, word.job_id))[-MOST_JOBS:])


def _wanted(one: LateGpu, terms: Terms, now_s: float) -> tuple[str, str]:
    """The highest rung that the evidence carries, and why the next one is taken."""
    looks, jobs, users = sum(word.looks for word in one.heard), len(one.heard), len({word.user for word in one.heard})
    agreed = any(word.agreed for word in one.heard)
    told = f"jobs took {one.factor:.2f} x as long because of it ({jobs} jobs, {users} users, {looks} reports)"
    if not (agreed or looks >= ANNOTATE_LOOKS):
        return OBSERVE, told
    if not (agreed or (jobs >= AVOID_JOBS and users >= terms.users)):
        return "annotate", told
    if not (one.at_least(AVOID) and now_s - one.since_s >= RESERVE_AFTER_S) and not one.at_least(RESERVE):
        return AVOID, told
    if one.measured < DRAIN_MEASURED:
        return RESERVE, f"{told}; to be measured fully"
    return DRAIN, f"{told}, again after {one.measured} measurements"
