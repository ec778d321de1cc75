# SPDX-License-Identifier: MIT
"""pal simulate --replica gavel: the figures of Gavel's published simulator for its policies."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.run import Output, carry_out, claim_folders, interruption
from slurm_pal.report.listing import Listing
from slurm_pal.research.allocation_policies import names as policy_names
from slurm_pal.research.replica.gavel_comparison import GavelComparison
from slurm_pal.research.replica.gavel_jobs import parse_types, workload
from slurm_pal.research.replica.gavel_simulator import GavelFigures, GavelResult, GavelSettings
from slurm_pal.simulate.aliases import resolved
from slurm_pal.simulate.inputs.gavel import read_rows
from slurm_pal.simulate.known_throughputs import read_gavels
from slurm_pal.simulate.pool import processors

DEFAULT_POLICIES = ("gavel:fifo-perf", "gavel:max-min", "gavel:ftf", "gavel:makespan")
HEADER = ("POLICY", "AVG JCT(h)", "P99(h)", "MAKESPAN(h)", "UTIL", "KEPT", "PREEMPTED", "SOLVES", "DROPPED", "RATIO")
FORMS = (
    ("avg_jct_s", 3600, ".4f"), ("p99_jct_s", 3600, ".4f"), ("makespan_s", 3600, ".4f"), ("utilisation", 1, ".4f"),
    ("extended", 1, ".3f"), ("preemptions", 1, ".0f"), ("solves", 1, ".0f"), ("dropped", 1, ".0f"),
)  # fmt: skip
"""The figures of a line, the column's unit in their own, and how they are written."""


def run_gavel(options: Mapping[str, Any], command: str) -> Exit:
    """Run and print; the exit code. Raises UsageError and DataError for what cannot be run."""
    names, comparison = _comparison(options)
    output = Output(
        names, command, options["jobs"] or processors(), options["form"],
        jobs_out=options["jobs_out"],
    )  # fmt: skip
    claim_folders(output)
    todo = comparison.policies
    results, interrupted = carry_out(comparison, todo, len(comparison.work.jobs), output.workers)
    done = {name: results[name] for name in todo if name in results}
    if done:
        _show(comparison, done, output)
        if output.jobs_out and not interrupted:
            _write_jobs(output.jobs_out, done, names)
    if interrupted:
        common.say(interruption(len(done), len(todo)), err=True)
    return Exit.INTERRUPTED if interrupted else Exit.OK


def _comparison(options: Mapping[str, Any]) -> tuple[dict[str, str], GavelComparison]:
    for name, example in (("trace", "FILE"), ("throughputs", "FILE"), ("cluster", "v100:12,p100:12,k80:12")):
        if not options[name]:
            raise UsageError(f"--replica gavel needs --{name}, like --{name} {example}")
    if options["format_"] not in ("auto", "gavel"):
        raise UsageError(f"--replica gavel reads Gavel's traces; format {options['format_']!r} is not gavel")
    names = resolved(options["policies"] or DEFAULT_POLICIES, policy_names(), {})
    settings = GavelSettings(
        round_s=options["tick"] or GavelSettings().round_s,
        seed=options["seed"] or 0,
        window=window_of(options["window"]),
    )
    cluster, table = parse_types(options["cluster"]), read_gavels(options["throughputs"], time.time())
    if cluster.per_node:
        raise UsageError(f"--replica gavel knows no nodes: give --cluster {cluster._replace(per_node=()).text()}")
    work = workload(read_rows(options["trace"]), cluster, table)
    found = GavelComparison(work, tuple(dict.fromkeys(names.values())), settings)
    found.check()
    return names, found


def window_of(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, end = text.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (first, end)):
        raise UsageError(f"window {text!r} must be FIRST:END, job numbers from 0, the end not included, like 100:300")
    return int(first), int(end)


def _show(comparison: GavelComparison, done: Mapping[str, GavelResult], output: Output) -> None:
    window, cluster = comparison.settings.window, comparison.work.cluster.text()
    body = {
        "policies": {name: _plain(done[policy]) for name, policy in output.names.items() if policy in done},
        "replica": "gavel",
        "cluster": cluster,
        "round_s": comparison.settings.round_s,
        "window": None if window is None else list(window),
        "seeds": [comparison.settings.seed],
        "command": output.command,
    }
    first = next(iter(done.values())).figures.avg_jct_s
    told = [
        {"policy": asked, **_plain(found), "ratio_to_first": _finite(found.figures.avg_jct_s / first)}
        for asked, name in output.names.items()
        if (found := done.get(name))
    ]
    listing = Listing(("policy", *GavelFigures._fields, "ratio_to_first"), told, HEADER, _rows(done, output))
    jobs = "all jobs" if window is None else f"jobs {window[0]} to {window[1] - 1}"
    note = f"{jobs} on {cluster}; rounds of {comparison.settings.round_s:g} s, moves are free"
    tables.show(output.form, listing, "simulate-gavel", lambda _: body, notes=["", note])


def _plain(found: GavelResult) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in found.figures._asdict().items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rows(done: Mapping[str, GavelResult], output: Output) -> list[Sequence[str]]:
    """One line for each policy that has a run; the ratio is to the first of them."""
    first = next(iter(done.values())).figures.avg_jct_s
    return [
        [
            asked,
            *(_number(getattr(found.figures, field) / unit, form) for field, unit, form in FORMS),
            _number(found.figures.avg_jct_s / first, ".3f"),
        ]
        for asked, name in output.names.items()
        if (found := done.get(name))
    ]


def _number(value: float, form: str) -> str:
    """A dash where there is none: all jobs were dropped, or no lease ended."""
    return format(value, form) if math.isfinite(value) else "-"


def _write_jobs(folder: str, done: Mapping[str, GavelResult], names: Mapping[str, str]) -> None:
    """NAME.csv for each policy, as other modes write them. Raises UsageError when they cannot be written."""
    try:
        for asked, name in names.items():
            lines = ["job_id,submit_s,start_s,finish_s,gpus"]
            lines += [
                f"{o.number},{o.arrival_s:.3f},{o.start_s:.3f},{o.finish_s:.3f},{o.gpus}" for o in done[name].outcomes
            ]
            write_atomic(os.path.join(folder, f"{asked.replace(':', '-')}.csv"), "\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name another folder") from None
