# SPDX-License-Identifier: MIT
"""pal simulate --replica blox-pal: the published simulator's figures for its six policies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.run import Output, carry_out, claim_folders, interruption, write
from slurm_pal.report.listing import Listing
from slurm_pal.report.simulation.assemble import AssembledStudy, answer
from slurm_pal.report.simulation.study import Study
from slurm_pal.research.replica.active import QUEUES, RoundSettings
from slurm_pal.research.replica.blox_pal import BloxFigures, BloxResult
from slurm_pal.research.replica.comparison import BloxComparison, BloxTask, trace_of
from slurm_pal.research.replica.published_policies import POLICIES, summaries
from slurm_pal.simulate.aliases import REPLICA_ALIASES, resolved
from slurm_pal.simulate.inputs.pal_profile import SEED
from slurm_pal.simulate.inputs.pal_rows import read_sia
from slurm_pal.simulate.pool import processors
from slurm_pal.simulate.profiles import profile_of
from slurm_pal.simulate.virtual import VirtualCluster

HEADER = ("POLICY", "AVG JCT(s)", "P99(s)", "MEDIAN(s)", "MAKESPAN(s)", "UTIL", "ROUNDS", "MOVES", "RATIO")


def run_replica(options: Mapping[str, Any], cluster: VirtualCluster, command: str) -> Exit:
    """Run and print; the exit code."""
    names, comparison = _comparison(options, cluster)
    output = Output(
        names, command, options["jobs"] or processors(), options["form"],
        options["out"], options["jobs_out"],
    )  # fmt: skip
    claim_folders(output)
    todo = comparison.tasks()
    results, interrupted = carry_out(comparison, todo, len(comparison.rows), output.workers)
    done = {task: results[task] for task in todo if task in results}
    notes = [interruption(len(done), len(todo))] if interrupted else []
    if done:
        found = _found(comparison, done, notes, options, command)
        _show(comparison, done, found, output)
        if not interrupted:
            write(found, output)
    for note in notes:
        common.say(note, err=True)
    return Exit.INTERRUPTED if interrupted else Exit.OK


def _comparison(options: Mapping[str, Any], cluster: VirtualCluster) -> tuple[dict[str, str], BloxComparison]:
    if not options["trace"] or not options["profile"]:
        raise UsageError("--replica needs a Sia-Philly trace (--trace FILE) and measured GPUs (--profile DIR or CSV)")
    if options["format_"] not in ("auto", "sia"):
        raise UsageError(f"--replica reads Sia-Philly traces; format {options['format_']!r} is not sia")
    if not cluster.per_node:
        raise UsageError(f"--replica needs nodes of one size, not {cluster.text()}")
    names = resolved(options["policies"] or POLICIES, summaries(), REPLICA_ALIASES)
    settings = RoundSettings(
        round_s=options["tick"] or 360.0,
        locality_penalty=options["locality_penalty"] or 1.7,
        queue=next(iter(resolved([options["queue"]], QUEUES, {}, "queue").values())),
        replay=options["replay"] is not False,
        backfill=bool(options["backfill"]),
        barred={} if options["bar"] is None else dict.fromkeys("AB", options["bar"]),
        start_cost_s=options["move_cost"] or 0.0,
    )
    settings.check()
    first = SEED if options["seed"] is None else options["seed"]
    return names, BloxComparison(
        rows=read_sia(options["trace"]),
        cluster=cluster,
        source=profile_of(options["profile"], directory="runs"),
        policies=tuple(dict.fromkeys(names.values())),
        seeds=tuple(range(first, first + (options["seeds"] or 1))),
        settings=settings,
    )


def _found(
    comparison: BloxComparison,
    done: Mapping[BloxTask, BloxResult],
    notes: Sequence[str],
    options: Mapping[str, Any],
    command: str,
) -> AssembledStudy:
    s = comparison.settings
    study = Study(
        runs=[result.replay for result in done.values()],
        policy=comparison.policies[-1],
        baseline=comparison.policies[0],
        trace=trace_of(comparison.rows, os.path.basename(options["trace"])),
        cluster=comparison.cluster.text(),
        charged=(
            ("rounds", f"{s.round_s:g} s; every job may be placed anew in each"),
            ("locality penalty", f"x {s.locality_penalty:g} on more than one node"),
            ("start or move", f"{s.start_cost_s:g} s"),
            ("backfill", "jobs that do not fit are skipped, without reservations" if s.backfill else "none"),
            ("background", "the trace again and again, unreported" if s.replay else "none"),
            ("profile", comparison.source.text()),
        ),
        caveats=(
            "The published simulator, not a Slurm cluster: rounds, and moves that cost what is shown above.",
            *notes,
        ),
        command=command,
    )
    return AssembledStudy(study, ())


def _show(
    comparison: BloxComparison, done: Mapping[BloxTask, BloxResult], found: AssembledStudy, output: Output
) -> None:
    means = _means(comparison, done)

    def body() -> dict[str, Any]:
        policies = answer(found.study.runs, output.names)
        for asked, row in policies.items():
            row.update(means[output.names[asked]])
        return {
            "policies": policies,
            "replica": "blox-pal",
            "queue": comparison.settings.queue,
            "cluster": found.study.cluster,
            "charged": dict(found.study.charged),
            "seeds": list(comparison.seeds),
            "command": found.study.command,
        }

    first = next(iter(means.values()))["avg_jct_s"]
    told = [
        {"policy": asked, **f, "ratio_to_first": f["avg_jct_s"] / first}
        for asked, name in output.names.items()
        if (f := means.get(name))
    ]
    names = ("policy", *BloxFigures._fields, "ratio_to_first")
    listing = Listing(names, told, HEADER, _rows(means, output.names))
    charged = "; ".join(f"{name} {value}" for name, value in found.study.charged)
    tables.show(output.form, listing, "simulate-blox-pal", lambda _: body(), notes=["", charged])


def _means(comparison: BloxComparison, done: Mapping[BloxTask, BloxResult]) -> dict[str, dict[str, float]]:
    """Each policy's figures (fields of Figures), averaged over its seeds."""
    of = {name: [r.figures for task, r in done.items() if task.policy == name] for name in comparison.policies}
    return {
        name: {field: fmean(getattr(row, field) for row in rows) for field in BloxFigures._fields}
        for name, rows in of.items()
        if rows
    }


FORMS = (
    ("avg_jct_s", ".1f"), ("p99_jct_s", ".0f"), ("median_jct_s", ".0f"), ("makespan_s", ".0f"), ("utilisation", ".3f"),
    ("rounds", ".0f"), ("migrations", ".0f"),
)  # fmt: skip
"""The figures of a line and how they are written."""


def _rows(means: Mapping[str, Mapping[str, float]], names: Mapping[str, str]) -> list[list[str]]:
    """One line for each policy that has a run; the ratio is to the first of them."""
    first = next(iter(means.values()))["avg_jct_s"]
    return [
        [asked, *(format(f[field], form) for field, form in FORMS), f"{f['avg_jct_s'] / first:.3f}"]
        for asked, name in names.items()
        if (f := means.get(name))
    ]
