# SPDX-License-Identifier: MIT
"""Whether classes last, and whether slow GPUs are taken for broken: simulated truth through the real code.

    python -P tests/bench/class_stability.py [--part sweeps|kinds|k|small|cost] [--json]

`sweeps`: what happens to classes and scores when all GPUs change together, or when few repeats are noisy. `kinds`:
healthy GPUs and two board makers, and how many of them are quarantined. `k`: how many classes are chosen, and how good
the worst of four GPUs is that are picked by class among 40. `small`: groups of 4 to 16 GPUs. All of it takes seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_pal.variability.classify import Classification, classify_sweeps
from slurm_pal.variability.kinds import two_kinds
from slurm_pal.variability.packed import Packed
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.runs import (
    OBSERVATIONS,
    SIGHTINGS,
    Environment,
    Group,
    Sighting,
    SweepObservation,
    SweepRuns,
)

START_S = 1_700_000_000.0
ENVIRONMENT = Environment("550", "1", "300", "enabled", "disabled")
GROUP = Group("A", "gemm_bf16", "emu", "m", 80, "default", "h", "TFLOP/s")
PER_NODE = 8
NOISE = 0.0012
EVERY_D = 14.0
PLAIN: frozenset[str] = frozenset()

Floats = NDArray[np.float64]


def sweep(day: float, slowdown: Floats, only: Sequence[int] | None = None, power_w: float = 300.0) -> SweepRuns:
    """One sweep of all GPUs or of `only` some; `slowdown` as measured, by position."""
    seen, where = Packed[SweepObservation](OBSERVATIONS), Packed[Sighting](SIGHTINGS)
    for i in range(len(slowdown)) if only is None else only:
        uuid, ts = f"g{i:05d}", START_S + day * DAY_S
        speed = -float(np.log(slowdown[i]))
        seen.append(SweepObservation(uuid, GROUP, ts, speed, 1.0, 0.0003, None, PLAIN, power_w, ENVIRONMENT))
        place = (f"n{i // PER_NODE:04d}", i % PER_NODE)
        where.append(Sighting(ts, f"{day}-{uuid}", uuid, *place, "emu", "m", ENVIRONMENT, ("default",), PLAIN, True))
    return SweepRuns(START_S + day * DAY_S, f"s{day:08.3f}", seen, where)


def spread(gpus: int, sd: float, draw: np.random.Generator) -> Floats:
    """True slowdowns of healthy GPUs."""
    return 1.0 + draw.normal(0.0, sd, gpus)


def measured(true: Floats, draw: np.random.Generator, noise: float = NOISE, common: float = 0.0) -> Floats:
    """What a sweep measures."""
    return true * (1.0 + common) * (1.0 + draw.normal(0.0, noise, len(true)))


def judged(found: Classification, true: Floats) -> dict[str, Any]:
    """Classes, scores at exactly 1.0, RMS error of the scores, flags."""
    scores = np.ones(len(true))
    for gpu in found.gpus:
        scores[int(gpu.uuid[1:])] = gpu.slowdown["A"]
    (group,) = found.groups
    return {
        "k": group.classes,
        "at_1": float((scores == 1.0).mean()),
        "distinct": len(np.unique(scores)),
        "error_pct": 100 * float(np.sqrt(np.mean((scores - true / np.median(true)) ** 2))),
        "repeatability_pct": 100 * group.repeatability,
        **{flag: sum(flag in gpu.flags for gpu in found.gpus) for flag in ("unconfirmed", "outlier", "quarantined")},
    }


def at_end(made: Sequence[SweepRuns], true: Floats) -> dict[str, Any]:
    """What is known after the last of some sweeps."""
    return judged(classify_sweeps(made, made[-1].ts + DAY_S, Params()), true)


def shifted() -> list[tuple[str, dict[str, Any]]]:
    """400 GPUs, spread 2 %: all become 1.5 % slower at once."""
    draw = np.random.default_rng(1)
    true = spread(400, 0.02, draw)
    made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(3)]
    found = [("400 GPUs, before", at_end(made, true))]
    for i in range(3, 6):
        made.append(sweep(EVERY_D * i, measured(true, draw, common=0.015)))
        found.append((f"400 GPUs, sweep {i - 2} after a common shift of 1.5 %", at_end(made, true)))
    return found


def rolling() -> list[tuple[str, dict[str, Any]]]:
    """800 GPUs, the same shift; then a tenth of the nodes is measured every four days."""
    draw = np.random.default_rng(2)
    true = spread(800, 0.02, draw)
    made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(3)]
    found = [("800 GPUs, before", at_end(made, true))]
    order = draw.permutation(100)
    for i in range(10):
        only = [PER_NODE * n + g for n in sorted(order[10 * i : 10 * i + 10].tolist()) for g in range(PER_NODE)]
        made.append(sweep(2 * EVERY_D + 4.2 * (i + 1), measured(true, draw, common=0.015), only))
        if i in (0, 4, 9):
            found.append((f"800 GPUs, {10 * (i + 1)} % measured after the shift", at_end(made, true)))
    return found


def one_node() -> list[tuple[str, dict[str, Any]]]:
    """5,000 GPUs; one node is tried three more times and scatters."""
    draw = np.random.default_rng(3)
    true = spread(5000, 0.02, draw)
    made = [sweep(0.0, measured(true, draw))]
    made += [sweep(1.0 + i, measured(true, draw, 0.008), range(PER_NODE)) for i in range(3)]
    return [("5,000 GPUs, one node of 8 tried 3 more times, scatter .8 %", at_end(made, true))]


def days() -> list[tuple[str, dict[str, Any]]]:
    """10,000 GPUs: noise of runs, of node-days and of days."""
    draw = np.random.default_rng(4)
    true = spread(10_000, 0.01, draw)
    made = []
    for i in range(4):
        of_node = np.repeat(draw.normal(0.0, 0.002, 10_000 // PER_NODE), PER_NODE)
        common = float(draw.normal(0.0, 0.003))
        made.append(sweep(EVERY_D * i, measured(true * (1.0 + of_node), draw, common=common)))
    return [("10,000 GPUs, spread 1 %, noise .12 %, node-day .2 %, day .3 %", at_end(made, true))]


def kinds() -> list[tuple[str, dict[str, Any]]]:
    """Healthy GPUs, and two board makers; and that what is broken is still seen beside them."""
    rows = []
    draw = np.random.default_rng(5)
    true = spread(10_000, 0.02, draw)
    made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(4)]
    rows.append(("10,000 healthy GPUs, spread 2 %", at_end(made, true)))
    for sd, share in ((0.01, 0.09), (0.01, 0.25), (0.01, 0.5), (0.015, 0.1), (0.02, 0.1), (0.02, 0.25)):
        draw = np.random.default_rng(6)
        true = spread(400, sd, draw)
        true[: round(400 * share)] += 0.06
        made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(4)]
        text = f"400 GPUs, {100 * share:.0f} % of another maker, 6 % slower; spread {100 * sd:g} %"
        rows.append((text, at_end(made, true)))
    for sd in (0.01, 0.02):
        draw = np.random.default_rng(7)
        true = spread(400, sd, draw)
        true[:100] += 0.06
        true[[5, 200, 300]] = 1.25
        made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(4)]
        rows.append((f"... 25 % of another maker, spread {100 * sd:g} %, and 3 GPUs at 1.25", at_end(made, true)))
    return rows


def found() -> list[tuple[str, dict[str, Any]]]:
    """How often two kinds are found, where there are two and where there is one of whatever shape."""
    draw, rows = np.random.default_rng(10), []
    for gpus, sd, share in (
        (400, 0.01, 0.09),
        (400, 0.01, 0.5),
        (400, 0.02, 0.1),
        (400, 0.02, 0.25),
        (2000, 0.02, 0.1),
    ):
        hits = 0
        for _ in range(100):
            true = spread(gpus, sd, draw)
            true[: round(gpus * share)] += 0.06
            hits += two_kinds(true / np.median(true), Params().mad_floor) is not None
        text = f"100 groups of {gpus}, {100 * share:.0f} % of another maker, spread {100 * sd:g} %"
        rows.append((text, {"two_kinds": hits}))
    shapes: dict[str, Callable[[int], Floats]] = {
        "normal 2 %": lambda n: draw.normal(0.0, 0.02, n),
        "normal 1 %": lambda n: draw.normal(0.0, 0.01, n),
        "gamma 4": lambda n: 0.01 * draw.gamma(4.0, 1.0, n),
        "gamma 1.5": lambda n: 0.016 * draw.gamma(1.5, 1.0, n),
        "Student 4": lambda n: 0.012 * draw.standard_t(4, n),
        "Laplace": lambda n: 0.012 * draw.laplace(size=n),
    }
    for name, shape in shapes.items():
        hits = 0
        for gpus in (40, 100, 400, 2000, 10_000):
            for _ in range(60):
                true = 1.0 + shape(gpus)
                hits += two_kinds(true / np.median(true), Params().mad_floor) is not None
        rows.append((f"300 groups of 40 to 10,000 of one kind, {name}", {"two_kinds": hits}))
    return rows


def picked(classes: NDArray[np.int64], true: Floats, draw: np.random.Generator, tries: int = 4000) -> float:
    """Mean slowdown of the worst of four GPUs, picked by class among 40 that are free; ties at random."""
    free = np.argsort(draw.random((tries, len(true))), axis=1)[:, :40]
    rank = classes[free] + draw.random(free.shape)
    best = np.take_along_axis(free, np.argsort(rank, axis=1)[:, :4], axis=1)
    return float(true[best].max(axis=1).mean())


def choice() -> list[tuple[str, dict[str, Any]]]:
    """The number of classes that is chosen, and what picking by class is worth."""
    found = []
    for gpus in (40, 100, 400, 1000, 5000):
        for sd in (0.01, 0.02):
            draw = np.random.default_rng(8)
            true = spread(gpus, sd, draw)
            true /= np.median(true)
            result = classify_sweeps([sweep(0.0, measured(true, draw))], START_S + DAY_S, Params())
            classes = np.zeros(gpus, dtype=np.int64)
            for gpu in result.gpus:
                classes[int(gpu.uuid[1:])] = gpu.variability_class["A"]
            tries = max(100, 400_000 // gpus)
            exact = np.argsort(np.argsort(true))
            row = {"k": result.groups[0].classes, "picked": picked(classes, true, draw, tries)}
            row |= {"exact": picked(exact, true, draw, tries), "any": picked(0 * classes, true, draw, tries)}
            found.append((f"{gpus} GPUs, spread {100 * sd:g} %", row))
    return found


def small() -> list[tuple[str, dict[str, Any]]]:
    """Healthy GPUs in groups of 4 to 16: how many are called outliers or quarantined."""
    found = []
    for gpus in (4, 6, 8, 12, 16):
        draw = np.random.default_rng(9)
        rows, sure = [], []
        for _ in range(250):
            true = spread(gpus, 0.02, draw)
            made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(3)]
            result = classify_sweeps(made, made[-1].ts + DAY_S, Params())
            rows.append(judged(result, true))
            sure += [gpu.confidence for gpu in result.gpus]
        row = {name: 100 * float(np.mean([r[name] for r in rows])) / gpus for name in ("outlier", "quarantined")}
        row |= {"k": float(np.mean([r["k"] for r in rows])), "confidence": float(np.mean(sure))}
        found.append((f"groups of {gpus}", row))
    return found


def cost() -> list[tuple[str, dict[str, Any]]]:
    """What all this costs: the processor time of one classification."""
    draw = np.random.default_rng(11)
    true = spread(10_000, 0.02, draw)
    made = [sweep(EVERY_D * i, measured(true, draw)) for i in range(12)]
    begun_s = time.process_time()
    at_end(made, true)
    return [("10,000 GPUs, 12 sweeps, one benchmark", {"cpu_s": time.process_time() - begun_s})]


PARTS: dict[str, Sequence[Callable[[], list[tuple[str, dict[str, Any]]]]]] = {
    "sweeps": (shifted, rolling, one_node, days),
    "kinds": (kinds, found),
    "k": (choice,),
    "small": (small,),
    "cost": (cost,),
}


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description="How classes stand common shifts, noise, two makers, few GPUs.")
    options.add_argument("--part", choices=[*PARTS], action="append")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    for part in chosen.part or PARTS:
        for study in PARTS[part]:
            for text, row in study():
                shown = {name: round(value, 4) for name, value in row.items()}
                if chosen.json:
                    print(json.dumps({"part": part, "case": text, **shown}), flush=True)
                else:
                    print(f"{text}: " + ", ".join(f"{name} {value}" for name, value in shown.items()), flush=True)


if __name__ == "__main__":
    main()
