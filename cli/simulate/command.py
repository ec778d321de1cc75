# SPDX-License-Identifier: MIT
"""pal simulate: what a policy would gain on a trace, every cost charged."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurm_pal.base.errors import UsageError
from slurm_pal.cli import common
from slurm_pal.cli.simulate.options import LOANS, NOT_PLAIN, PRICED, REPLICAS, UNEQUAL, simulate_options
from slurm_pal.cli.simulate.site_options import check_site_options

if TYPE_CHECKING:
    from slurm_pal.cli.simulate.run import Output
    from slurm_pal.simulate.experiment import Experiment
    from slurm_pal.simulate.program import Program
    from slurm_pal.simulate.settings import ReplaySettings
    from slurm_pal.simulate.trace import Trace
    from slurm_pal.simulate.virtual import VirtualCluster

# Everything that is heavy to import is imported where it is used: `pal gpus` shares this process's start.

DEFAULT_CLUSTER = "16x4"


@click.command()
@simulate_options
@click.pass_context
def simulate(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401  # one entry for each option
    """Replay a trace on a virtual cluster under several policies, and show what would be gained.

    Compares stock Slurm (slurm-twin) with the program itself: palsub, the submit filter, and palsub with
    pal-rebalance (tick), over a virtual Slurm, with the settings of pal.toml. tick+order, tick-moves and
    so on switch one lever of the tick. All others are studies of the simulator (--list), which no Slurm
    here follows.
    Runs with the same seed are pairs; the claim is the mean ratio of job completion time over
    pairs, with its 95 % interval.

    \b
    Examples:
      pal simulate --generate '' --out report
          a made-up trace on 16 x 4 made-up GPUs: table, pictures, one HTML page
      pal simulate --trace sacct.txt --policy slurm-twin,tick-moves,tick
          what moves are worth: a row for each lever
      pal simulate --trace sacct.txt --policy slurm,packed,class-fit
          studies: seconds where the program takes minutes
      pal simulate --trace sacct.txt --cluster 20x8 --profile snapshot
          this site's history (docs/traces.md) on nodes like this site's
      pal simulate --trace sacct.txt --throughputs table.csv --cluster h100:32,a100:64
          --policy slurm,pal-share,gavel:max-min
          the same on GPUs of several types, the fastest first: which job belongs on which
      pal simulate --policy aryl,aryl-noloan,aryl-noscale
          a study: an owner's idle servers lent to a training cluster, elastic jobs (docs/loans.md)
      pal simulate --policy min-cost --prices log.csv --throughputs table.csv
          a study: what long jobs cost on a market whose prices move (docs/simulation.md)
      pal simulate --replica blox-pal --trace workload-7.csv --profile DIR
          the simulator published with PAL, job for job, its six policies
      pal simulate --replica gavel --trace T.trace --throughputs TABLE.json
          --cluster v100:12,p100:12,k80:12 --policy gavel:max-min,gavel:fifo-perf
          the simulator published with Gavel, on unequal GPUs

    The study of owners and guests (--policy aryl,...) draws its own jobs and owner. Its --generate
    has the keys servers, days, queue (the baseline's mean wait, s; the number of jobs is tuned to it),
    jobs (how many, instead), elastic and elastic_time (shares of jobs and of GPU time), restart and
    checkpoint (s), error (of run times) and headroom; --list explains them.

    Ctrl-C prints what is complete. Traces can be looked at and converted with pal trace.
    """
    if options["list_"]:
        from slurm_pal.cli.simulate.names import show_lists

        show_lists(options["form"])
        return
    from slurm_pal.cli.simulate.loans import asks_for_loans, run_loans

    if asks_for_loans(options["policies"]):
        _check_options(context, LOANS, "with --policy aryl,...")
        context.exit(run_loans(options, _command()))
    from slurm_pal.cli.simulate.prices import asks_for_prices, run_prices

    if asks_for_prices(options["policies"]):
        _check_options(context, PRICED, "with --policy min-cost")
        context.exit(run_prices(options, _command()))
    check_site_options(context, options["site"])
    if options["site"] or options["replica"] or _unequal(options):
        options["trace"] = _one_trace(options["trace"])
    _check_mode(context, options["replica"], unequal=_unequal(options))
    if options["replica"] == "gavel":
        from slurm_pal.cli.simulate.gavel import run_gavel

        context.exit(run_gavel(options, _command()))
    if options["replica"]:
        from slurm_pal.cli.simulate.replica import run_replica

        context.exit(run_replica(options, _cluster(options), _command()))
    if _unequal(options):
        from slurm_pal.cli.simulate.unequal import run_unequal

        context.exit(run_unequal(options, _command()))
    if options["site"]:
        from slurm_pal.cli.simulate.site import run_site

        context.exit(run_site(options, _settings, _command()))
    from slurm_pal.cli.simulate.run import run_and_report, show_bad_rows
    from slurm_pal.simulate.fitting import fit_all

    cluster = _cluster(options)
    names, experiment = _comparison(options)
    traces = _traces(options, cluster, experiment)
    for trace in traces:
        show_bad_rows(trace)
    cluster, fitted = fit_all(traces, cluster, options["keep_partitions"])
    anew = options["generate"] is not None
    experiment = experiment._replace(traces=tuple(one.trace for one in fitted), cluster=cluster, anew=anew)
    if experiment.program is not None:
        from slurm_pal.cli.simulate.twin import how_long

        common.say(*filter(None, [how_long(experiment, _output(options, names).workers)]), err=True)
    notes = tuple(dict.fromkeys(note for one in fitted for note in one.notes()))
    too_wide = [job for one in fitted for job in one.too_wide]
    context.exit(run_and_report(experiment, _output(options, names), notes, too_wide))


def _one_trace(traces: tuple[str, ...]) -> str | None:
    if len(traces) > 1:
        raise UsageError(f"--trace is given {len(traces)} times; here one trace is replayed: give the one that counts")
    return traces[0] if traces else None


def _unequal(options: dict[str, Any]) -> bool:
    """Whether the cluster is given as TYPE:GPUS,... ."""
    return ":" in (options["cluster"] or "")


def _check_mode(context: click.Context, replica: str | None, *, unequal: bool) -> None:
    """Options that would be ignored are refused."""
    if replica is not None and replica not in REPLICAS:
        raise UsageError(f"replica {replica!r} is not one of {', '.join(REPLICAS)}")
    allowed = REPLICAS[replica] if replica else UNEQUAL if unequal else None
    _check_options(context, allowed, f"with --replica {replica}" if replica else "with --cluster TYPE:GPUS,...")


def _check_options(context: click.Context, allowed: frozenset[str] | None, where: str) -> None:
    """Raises UsageError for an option that is not `allowed`; None: for those in NOT_PLAIN."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        words = "/".join((*parameter.opts, *parameter.secondary_opts))
        if allowed is None and name in NOT_PLAIN:
            raise UsageError(f"{words} means nothing without {NOT_PLAIN[name]}")
        if allowed is not None and name not in allowed:
            raise UsageError(f"{words} means nothing {where}")


def _command() -> str:
    return shlex.join(["pal", *sys.argv[1:]])


def _cluster(options: dict[str, Any]) -> VirtualCluster:
    from slurm_pal.simulate.virtual import parse_cluster

    nodes, gpus = options["nodes"], options["gpus_per_node"]
    if (nodes or gpus) and options["cluster"]:
        raise UsageError("give --cluster, or --nodes and --gpus-per-node, not both")
    return parse_cluster(f"{nodes or 16}x{gpus or 4}" if nodes or gpus else options["cluster"] or DEFAULT_CLUSTER)


def _traces(options: dict[str, Any], cluster: VirtualCluster, experiment: Experiment) -> list[Trace]:
    """Those of the files, or one drawn for each seed: what is made up may as well be independent."""
    if bool(options["trace"]) == (options["generate"] is not None):
        raise UsageError("give a trace with --trace FILE, or --generate SPEC (--generate '' takes the defaults)")
    from slurm_pal.cli.simulate.trace_inputs import generated, options_of, with_throughputs
    from slurm_pal.simulate.inputs import read

    if options["generate"] is not None:
        spec, seeds = options["generate"], experiment.seeds
        if experiment.program is not None and "jobs" not in spec:
            from slurm_pal.cli.simulate.twin import GENERATED

            spec = f"{GENERATED},{spec}"
        return [generated(spec, cluster.n_gpus, seed - seeds[0]) for seed in seeds]
    reading = with_throughputs(options_of(options), options["throughputs"])
    return [read(path, options["format_"], reading) for path in options["trace"]]


def _comparison(options: dict[str, Any]) -> tuple[dict[str, str], Experiment]:
    """The names as asked for, and the experiment without its trace."""
    from slurm_pal.simulate.aliases import QUEUE_ALIASES, resolved
    from slurm_pal.simulate.experiment import Experiment
    from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
    from slurm_pal.simulate.queues import QUEUES
    from slurm_pal.simulate.scores import parse_scores
    from slurm_pal.simulate.virtual import parse_cluster

    _check_types(options["policies"])
    names = _resolved(options["policies"] or _default_policies())
    policies = tuple(dict.fromkeys(names.values()))
    usual = next((name for name in ("slurm-twin", "packed") if name in policies), policies[0])
    baseline = next(iter(_resolved([options["baseline"] or usual]).values()))
    others = [name for name in policies if name != baseline]
    program = _program(options, (*policies, baseline))
    queue = resolved([options["queue"]], QUEUES, QUEUE_ALIASES, "queue")
    first, count = 1 if options["seed"] is None else options["seed"], options["seeds"] or 8
    jitter = options["jitter"]
    return names, Experiment(
        traces=(),
        cluster=parse_cluster(DEFAULT_CLUSTER),
        source=profile_of(options["profile"] or "drawn"),
        slow=parse_slow(options["slow"]) if options["slow"] else SlowShare(),
        scores=parse_scores(options["scores"]),
        policies=policies,
        policy=next((name for name in ("tick", "pal-fit") if name in others), next(iter(others[::-1]), baseline)),
        baseline=baseline,
        queue=next(iter(queue.values())),
        seeds=tuple(range(first, first + count)),
        settings=_settings(options),
        jitter_s=(600.0 if count > 1 else 0.0) if jitter is None else jitter,
        background_per_h=options["background"],
        worst=(1 if program is None else 0) if options["worst"] is None else options["worst"],
        causes=options["causes"],
        sweeps=tuple(dict.fromkeys(name for name in options["sweeps"] if name != "none")),
        program=program,
    )


def _default_policies() -> tuple[str, ...]:
    from slurm_pal.cli.simulate.twin import default_policies

    return default_policies()


def _resolved(asked: Sequence[str]) -> dict[str, str]:
    """Policy as asked for -> as it is run. Raises UsageError for an unknown one, or an unknown lever of the tick."""
    from slurm_pal.simulate.aliases import POLICY_ALIASES, resolved
    from slurm_pal.simulate.levers import has_levers, switched
    from slurm_pal.simulate.policies import POLICIES

    words = [word.strip() for text in asked for word in text.split(",")]
    return resolved(
        words, (*POLICIES, *(word for word in words if has_levers(word) and switched(word))), POLICY_ALIASES
    )


def _program(options: dict[str, Any], policies: tuple[str, ...]) -> Program | None:
    """What runs the policies that are no study, with the settings of pal.toml; None where there are none."""
    from slurm_pal.cli.simulate.twin import program_of, runs_the_program
    from slurm_pal.simulate.policies import STUDY, named

    sizes, failures = _cluster(options).sizes, options["failures"]
    studies = [name for name in policies if named(name).runs == STUDY]
    if studies and (sizes or failures):
        what = "--failures" if failures else "--cluster with CPUs and memory"
        raise UsageError(
            f"{what}: policy {studies[0]!r} is a study, which does not know them; "
            "give --policy slurm-twin,palsub,filter,tick"
        )
    return program_of(options, slurm_words(options), sizes) if runs_the_program(policies) else None


def slurm_words(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of backfill as slurm.conf says them."""
    pairs: dict[str, str] = {}
    if options["bf_interval"] is not None:
        pairs["SchedulerParameters"] = f"bf_interval={max(1, round(options['bf_interval']))}"
    if options["backfill"] is False:
        pairs["SchedulerType"] = "sched/builtin"
    return pairs


def _check_types(policies: tuple[str, ...]) -> None:
    """Raises UsageError for an allocation policy, which needs GPUs of several types."""
    for name in ",".join(policies).split(","):
        if name.strip().startswith(("gavel:", "pal-share", "nonpreemptive-makespan")):
            raise UsageError(
                f"policy {name.strip()!r} is for GPUs of several types: give --cluster TYPE:GPUS,..., "
                "like v100:12,p100:12,k80:12, and --throughputs FILE"
            )


FIELDS = {
    "locality_penalty": "locality_penalty", "move_cost": "move_cost_s", "warm_up": "warmup_s", "tick": "tick_s",
    "bar": "barred_slowdown", "limit_factor": "limit_factor", "bf_interval": "backfill_interval_s", "steer": "steer",
}  # fmt: skip
"""Option -> field of ReplaySettings; an option that is not given leaves the field's default."""


def _settings(options: dict[str, Any]) -> ReplaySettings:
    from slurm_pal.simulate.settings import Failures, ReplaySettings

    given = {field: options[name] for name, field in FIELDS.items() if options[name] is not None}
    settings = ReplaySettings(best_first=options["best_first"])._replace(**given)
    if options["margin"] is not None:
        settings = settings._replace(limits=settings.limits._replace(margin=options["margin"]))
    if options["backfill"] is False:
        settings = settings._replace(backfill_depth=0)
    if options["mtbf_h"] is not None:
        settings = settings._replace(failures=Failures(3600 * options["mtbf_h"], 3600 * options["repair_h"]))
    return settings


def _output(options: dict[str, Any], names: dict[str, str]) -> Output:
    from slurm_pal.cli.simulate.run import Output
    from slurm_pal.simulate.pool import processors

    return Output(
        names=names,
        command=_command(),
        workers=options["jobs"] or processors(),
        form=options["form"],
        out=options["out"],
        jobs_out=options["jobs_out"],
    )
