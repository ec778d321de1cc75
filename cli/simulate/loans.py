# SPDX-License-Identifier: MIT
"""pal simulate --policy aryl,...: an owner's servers lent to a training cluster, a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.run import Output, carry_out, interruption
from slurm_pal.report.listing import Listing
from slurm_pal.research.loans import GRACE_S, ORDER_S, LoanFigures
from slurm_pal.research.loans_comparison import (
    BASELINE,
    POLICIES,
    Gate,
    LoanComparison,
    LoanSeed,
    LoanSettings,
    gates,
)
from slurm_pal.simulate.pool import processors
from slurm_pal.simulate.statistics import mean_interval

HEADER = (
    "POLICY", "QUEUE(s)", "P95(s)", "JCT(s)", "P95(s)", "QUEUE x", "JCT x", "OF ARYL", "USAGE", "USAGE +%", "LOANED",
    "RECLAIMS", "PREEMPTED", "SCALE-IN", "OWNER(s)", "LOST(GPUh)", "CHANGES",
)  # fmt: skip
FORMS = {
    "queue_s": ".0f", "queue_p95_s": ".0f", "jct_s": ".0f", "jct_p95_s": ".0f", "queue_ratio": ".2f",
    "jct_ratio": ".3f", "jct_share_of_aryl": ".2f", "usage": ".3f", "usage_gain_percent": ".1f", "loaned": ".1f",
    "reclaims": ".0f", "preemptions": ".1f", "scale_in": ".3f", "owner_wait_s": ".0f", "lost_gpu_h": ".0f",
    "changes": ".0f",
}  # fmt: skip
CSV_COLUMNS = ("policy", *FORMS, "jct_ratio_low", "jct_ratio_high", "runs")
GATES = ("GATE", "WHAT", "WANTED", "MEASURED", "AT MOST", "")
EXPLAINED = (
    "AT MOST: what any policy could reach on these jobs; restarts count as usage, but not in the bound. OF ARYL: part "
    "of the JCT that aryl saves."
)
ENOUGH = 3
"""Independent traces for an interval."""


def asks_for_loans(policies: Sequence[str]) -> bool:
    """Whether any policy is of this study."""
    return any(word.strip().partition("-")[0] == "aryl" for text in policies for word in text.split(","))


def run_loans(options: Mapping[str, Any], command: str) -> Exit:
    """Run and print; the exit code. Raises UsageError."""
    names = tuple(dict.fromkeys(word.strip() for text in options["policies"] for word in text.split(",")))
    comparison = LoanComparison(settings_of(options["generate"] or ""), names)
    comparison.check()
    first, count = 1 if options["seed"] is None else options["seed"], options["seeds"] or ENOUGH
    output = Output(
        {}, command, options["jobs"] or processors(), options["form"],

    )  # fmt: skip
    todo = list(range(first, first + count))
    results, interrupted = carry_out(comparison, todo, len(names), output.workers)
    seeds = [results[seed] for seed in sorted(results)]
    if seeds:
        lines = {name: _line(name, seeds) for name in dict.fromkeys((BASELINE, *names))}
        _show(comparison, lines, sorted(results), seeds, output)
    if interrupted:
        common.say(interruption(len(results), len(todo)), err=True)
    return Exit.INTERRUPTED if interrupted else Exit.OK


def settings_of(text: str) -> LoanSettings:
    """Those of `--generate KEY=VALUE,...`. Raises UsageError."""
    usual = LoanSettings()
    given: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        try:
            given[name] = type(getattr(usual, name))(value) if name in usual._fields else None
        except ValueError:
            given[name] = None
        if given[name] is None:
            raise UsageError(
                f"--generate {word!r} must be KEY=NUMBER with a key of {', '.join(usual._fields)}, "
                f"like restart={usual.restart:g}"
            )
    return usual._replace(**given)


def _line(name: str, seeds: Sequence[LoanSeed]) -> dict[str, float | None]:
    """Means over seeds, and the ratios of the means over seeds to the baseline."""
    own = [seed.figures[name] for seed in seeds]
    base = [seed.figures[BASELINE] for seed in seeds]
    found: dict[str, float | None] = {field: fmean(getattr(one, field) for one in own) for field in LoanFigures._fields}
    found["owner_wait_s"] = max(one.owner_wait_s for one in own)
    queue_s = fmean(one.queue_s for one in own)
    found["queue_ratio"] = fmean(one.queue_s for one in base) / queue_s if queue_s else None
    found["jct_ratio"] = fmean(one.jct_s for one in base) / fmean(one.jct_s for one in own)
    found["jct_share_of_aryl"] = None
    if "aryl" in seeds[0].figures:
        whole_s = fmean(one.jct_s - seed.figures["aryl"].jct_s for one, seed in zip(base, seeds, strict=True))
        saved_s = fmean(first.jct_s - second.jct_s for first, second in zip(base, own, strict=True))
        found["jct_share_of_aryl"] = saved_s / whole_s if whole_s > 0 else None
    found["usage_gain_percent"] = 100 * (fmean(one.usage for one in own) / fmean(one.usage for one in base) - 1)
    pairs = [first.jct_s / second.jct_s for first, second in zip(base, own, strict=True)]
    low, high = mean_interval(pairs)[1:] if len(pairs) >= ENOUGH and len(set(pairs)) > 1 else (None, None)
    return {**found, "jct_ratio_low": low, "jct_ratio_high": high, "runs": len(own)}


def _show(
    comparison: LoanComparison,
    lines: Mapping[str, dict[str, float | None]],
    numbers: Sequence[int],
    seeds: Sequence[LoanSeed],
    output: Output,
) -> None:

    def body() -> dict[str, Any]:
        return {
            "policies": lines,
            "settings": comparison.settings._asdict(),
            "study": True,
            "baseline": BASELINE,
            "seeds": {
                number: {field: value for field, value in seed._asdict().items() if field != "figures"}
                | {"baseline_queue_s": seed.figures[BASELINE].queue_s}
                for number, seed in zip(numbers, seeds, strict=True)
            },
            "gates": [gate._asdict() for gate in _gates(seeds)],
            "command": output.command,
        }  # fmt: skip

    told = [{"policy": name, **{key: line[key] for key in CSV_COLUMNS[1:]}} for name, line in lines.items()]
    rows = [[name, *(_written(line[field], form) for field, form in FORMS.items())] for name, line in lines.items()]

    def text() -> None:
        measured = [
            (gate.name, gate.what, f"{gate.wanted:g}", _written(gate.measured, ".4g"), _written(gate.at_most, ".4g"),
             "met" if gate.met else "missed")
            for gate in _gates(seeds)
        ]  # fmt: skip
        noheader = output.form.noheader
        common.say(*tables.lines(HEADER, rows, noheader))
        common.say(*(["", *tables.lines(GATES, measured, noheader)] if measured else []))
        tables.say_notes(["", *_notes(comparison, lines, numbers, seeds)])

    listing = Listing(CSV_COLUMNS, told, HEADER, rows)
    tables.show(output.form, listing, "simulate-loans", lambda _: body(), text=text)


def _gates(seeds: Sequence[LoanSeed]) -> list[Gate]:
    return gates(seeds) if "aryl" in seeds[0].figures else []


def _written(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _notes(
    comparison: LoanComparison,
    lines: Mapping[str, dict[str, float | None]],
    numbers: Sequence[int],
    seeds: Sequence[LoanSeed],
) -> list[str]:
    """What was drawn, tuned, charged and assumed."""
    given = comparison.settings
    found = ["A study: no Slurm runs here. x: baseline over policy, of means over seeds; + %: over the baseline."]
    for number, seed in zip(numbers, seeds, strict=True):
        found.append(
            f"seed {number}{f', draw {seed.draw}' if seed.draw > 1 else ''}: {seed.jobs} jobs in {seed.days:.1f} days, "
            f"load {seed.load:.2f} of the training servers, baseline's mean queue "
            f"{seed.figures[BASELINE].queue_s:.0f} s; {seed.elastic:.1%} of jobs are elastic and have "
            f"{seed.elastic_time:.1%} of GPU time. Without any waiting and with all workers, mean JCT would be "
            f"{seed.jct_bound_s:.0f} s and usage {seed.usage_bound:.3f}"
        )
    for name, line in lines.items():
        if line["jct_ratio_low"] is not None:
            found.append(f"{name}: JCT x by seed, 95 %: {line['jct_ratio_low']:.3f} to {line['jct_ratio_high']:.3f}")
    return [
        *found,
        *([EXPLAINED] if _gates(seeds) else []),
        f"{given.servers} + {given.servers} servers of 8 GPUs, orders every {ORDER_S:.0f} s, grace {GRACE_S:.0f} s. "
        f"A preempted job falls back to its last checkpoint, every {given.checkpoint:g} s; each "
        f"restart and each change of workers costs {given.restart:g} s on its GPUs. Linear scaling; loaned GPUs as "
        "fast as own ones.",
        *(f"{name}: {POLICIES[name].summary}" for name in lines),
    ]
