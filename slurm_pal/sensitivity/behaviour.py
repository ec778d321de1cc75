# SPDX-License-Identifier: MIT
"""From the telemetry of a job's GPUs to its sensitivity class. Pure; standard library only.

A job that is held back by the power cap runs at the clock that its GPU's silicon allows: class A. One
that leaves the cap and the clock alone, because it waits for memory, is C. B lies between
(specification, section 7; docs/sensitivity.md has the figures behind the thresholds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS

LONGEST_LOOK_S = 5.0
"""One look stands for the time since the one before, and for no more than this."""
LAST_WINDOW = 0.5
"""A window that was cut short counts if it has this share of its length."""


class Look(NamedTuple):
    """One look at the sensors of one GPU; what the device does not show is None."""

    t_s: float
    active: bool  # a kernel ran since the last look
    sm_clk: float | None = None  # share of the clock that the GPU may have
    power: float | None = None  # share of the power limit
    capped: bool | None = None  # held back by the power cap (SwPowerCap)
    dram: float | None = None  # share of the memory bandwidth in use
    tensor: float | None = None  # share of the time with tensor or floating-point pipes busy


class Traits(NamedTuple):
    """What many looks amount to: medians of the active ones, and the share held back by the power cap."""

    duty: float | None = None
    clk: float | None = None
    pw: float | None = None
    dram: float | None = None
    tensor: float | None = None


class Thresholds(NamedTuple):
    """Where A and C begin; the defaults are the specification's."""

    a_duty: float = 0.30
    a_clk: float = 0.97
    a_pw: float = 0.85
    c_duty: float = 0.02
    c_clk: float = 0.99
    c_pw: float = 0.60
    c_dram: float = 0.50
    c_tensor: float = 0.25


class Timing(NamedTuple):
    """How much must have been seen, s of activity."""

    window_s: float = 30.0
    least_s: float = 60.0


class Centroid(NamedTuple):
    """Where one of the sweep's own kernels lies on one GPU model; the last two are None where its sensors lack them."""

    duty: float
    clk: float
    pw: float
    dram: float | None = None
    tensor: float | None = None


Centroids = Mapping[str, Centroid]
"""Sensitivity class -> where its kernel lies."""
SCALES = Centroid(duty=0.30, clk=0.03, pw=0.15, dram=0.25, tensor=0.25)
"""What counts as one unit of distance in each direction [our choice: the spread of single windows of one kernel;
of the last two, half of what lies between a memory-bound kernel and a matrix product]."""
LEAST_APART = Centroid(duty=0.10, clk=0.01, pw=0.05, dram=0.10, tensor=0.10)
"""Centroids nearer than this in one direction give no threshold there."""


class Behaviour(NamedTuple):
    """What a job was seen to be."""

    sensitivity: str  # "?" where too little was seen
    confidence: float  # share of windows that agree
    traits: Traits
    active_s: float  # of the GPU that was active longest
    windows: str  # the class of each, in order, GPU by GPU


Judge = Callable[[Traits], str]


def traits_of(looks: Iterable[Look]) -> Traits:
    """Medians over the looks (all of which count), None where no look shows the value."""
    seen = list(looks)
    capped = [one.capped for one in seen if one.capped is not None]
    duty = sum(capped) / len(capped) if capped else None
    clk, pw = _middle(one.sm_clk for one in seen), _middle(one.power for one in seen)
    return Traits(duty, clk, pw, _middle(one.dram for one in seen), _middle(one.tensor for one in seen))


def _middle(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return median(told) if told else None


def by_rules(traits: Traits, at: Thresholds = Thresholds()) -> str:  # noqa: B008
    """The class by thresholds; "?" where neither clock nor throttle reasons nor power are shown."""
    duty, clk, pw = traits.duty, traits.clk, traits.pw
    if pw is None and (clk is None or duty is None):
        return UNKNOWN_CLASS
    if (duty is not None and duty >= at.a_duty) or (_below(clk, at.a_clk) and _above(pw, at.a_pw)):
        return "A"
    at_ease = (duty is None or duty < at.c_duty) and (clk is None or clk >= at.c_clk)
    by_memory = _above(traits.dram, at.c_dram) and _below(traits.tensor, at.c_tensor)
    return "C" if at_ease and (_below(pw, at.c_pw) or by_memory) else "B"


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def by_centroids(traits: Traits, centroids: Centroids) -> str:
    """The class of the nearest centroid; "?" where nothing can be compared.

    A direction counts where the job and all centroids have it: a class must not be nearer for lack of a value.
    """
    told = [i for i, column in enumerate(zip(traits, *centroids.values(), strict=True)) if None not in column]
    if not told or not centroids:
        return UNKNOWN_CLASS

    def distance(c: str) -> float:
        return sum((_apart(traits[i], centroids[c][i]) / (SCALES[i] or 1.0)) ** 2 for i in told)

    return min(sorted(centroids), key=distance)


def _apart(one: float | None, other: float | None) -> float:
    """How much greater `one` is; 0 where either is not known."""
    return 0.0 if one is None or other is None else one - other


def calibrated(centroids: Centroids) -> Thresholds:
    """Thresholds half way between the sweep's own kernels on this model; the specification's where they coincide."""
    at = Thresholds()
    if set(centroids) < set(SENSITIVITY_CLASSES):
        return at
    a, b, c = (centroids[name] for name in SENSITIVITY_CLASSES)
    for name, trait, higher, lower in (
        ("a_duty", "duty", a, b), ("a_clk", "clk", b, a), ("a_pw", "pw", a, b), ("c_pw", "pw", b, c),
        ("c_dram", "dram", c, b), ("c_tensor", "tensor", b, c),
    ):  # fmt: skip
        high, low = getattr(higher, trait), getattr(lower, trait)
        if _apart(high, low) > getattr(LEAST_APART, trait):
            at = at._replace(**{name: (high + low) / 2})
    # Where memory-bound work, too, runs below the highest clock or touches the cap, that says nothing against C.
    return at._replace(c_clk=min(at.c_clk, c.clk - LEAST_APART.clk), c_duty=max(at.c_duty, c.duty + at.c_duty))


RULES, CALIBRATED, CENTROID = CLASSIFIERS = ("rules", "calibrated", "centroid")


def judge_of(classifier: str, centroids: Centroids) -> Judge:
    """The judge of that name; the rules where the model's own kernels are not all known."""
    if classifier == RULES or set(centroids) < set(SENSITIVITY_CLASSES):
        return by_rules
    if classifier == CALIBRATED:
        at = calibrated(centroids)
        return lambda traits: by_rules(traits, at)
    return lambda traits: by_centroids(traits, centroids)


def classify(gpus: Iterable[Sequence[Look]], judge: Judge = by_rules, timing: Timing = Timing()) -> Behaviour:  # noqa: B008
    """The class of a job from the looks at each of its GPUs, oldest first.

    Only looks with activity count, and at least `timing.least_s` of them on one GPU. GPUs that
    the job leaves idle have no say.
    """
    busy = [[(one, s) for one, s in _weighed(looks) if one.active] for looks in gpus]
    active_s = max((sum(s for _, s in looks) for looks in busy), default=0.0)
    traits = traits_of(one for looks in busy for one, _ in looks)
    windows = "".join(judge(traits_of(part)) for looks in busy for part in _windows(looks, timing.window_s))
    whole = judge(traits)
    if active_s < timing.least_s - 1e-6 or whole == UNKNOWN_CLASS or not windows:
        return Behaviour(UNKNOWN_CLASS, 0.0, traits, active_s, windows)
    return Behaviour(whole, windows.count(whole) / len(windows), traits, active_s, windows)


def _weighed(looks: Sequence[Look]) -> Iterator[tuple[Look, float]]:
    """Each look with the seconds that it stands for."""
    for i, one in enumerate(looks):
        before = looks[i - 1].t_s if i else 2 * one.t_s - (looks[1].t_s if len(looks) > 1 else one.t_s)
        yield one, min(max(0.0, one.t_s - before), LONGEST_LOOK_S)


def _windows(looks: Sequence[tuple[Look, float]], window_s: float) -> Iterator[list[Look]]:
    part: list[Look] = []
    filled_s = 0.0
    for one, seconds in looks:
        part.append(one)
        filled_s += seconds
        if filled_s >= window_s - 1e-6:
            yield part
            part, filled_s = [], 0.0
    if filled_s >= LAST_WINDOW * window_s:
        yield part
