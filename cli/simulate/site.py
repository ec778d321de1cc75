# SPDX-License-Identifier: MIT
"""pal simulate --site: what this Slurm would gain, from its own nodes, scores and history."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base import config as configuration
from slurm_pal.base.cluster import Gpu
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, Exit, SlurmError, UsageError, one_line
from slurm_pal.base.faults import OK
from slurm_pal.base.files import slurm_user_uid
from slurm_pal.cli import common, tables
from slurm_pal.cli.simulate.command import slurm_words
from slurm_pal.cli.simulate.run import (
    Output,
    carry_out,
    cause_lines,
    claim_folders,
    interruption,
    show_bad_rows,
    write,
)
from slurm_pal.cli.simulate.site_options import DAYS
from slurm_pal.cli.simulate.twin import SITE_SOONER, takes
from slurm_pal.decide.facts import appends
from slurm_pal.report.listing import Listing
from slurm_pal.report.simulation.assemble import AssembledStudy, body
from slurm_pal.report.simulation.site_gain import (
    Findings,
    as_insensitive,
    due_to_slow,
    five_lines,
    gpu_hours_text,
    studied,
)
from slurm_pal.report.simulation.study import Study, compare
from slurm_pal.report.simulation.tables import CSV_COLUMNS, caveats, csv_rows, table
from slurm_pal.simulate.aliases import QUEUE_ALIASES, resolved
from slurm_pal.simulate.inputs import ReaderOptions, read, sacct
from slurm_pal.simulate.inputs.collect import TraceCollector
from slurm_pal.simulate.inputs.lines import numbered
from slurm_pal.simulate.inputs.reader_options import parse_patterns
from slurm_pal.simulate.pool import processors
from slurm_pal.simulate.profiles import Drawn, Fixed, Source
from slurm_pal.simulate.queues import QUEUES
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.scores import Scores, parse_scores
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.site_history import FittedHistory, MovableJobs, fit, parse_mix
from slurm_pal.simulate.site_runs import BASELINE, TICK, WAYS, SiteRuns, SiteTask, capped_tasks, main_tasks
from slurm_pal.simulate.statistics import verdict
from slurm_pal.simulate.trace import Trace
from slurm_pal.simulate.virtual_site import VirtualSite, scored, site_of
from slurm_pal.slurm import accounting
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.cli import subprocess_runner
from slurm_pal.slurm.shares import shares
from slurm_pal.store import snapshot as snapshots
from slurm_pal.tick.deciding import terms_of
from slurm_pal.twin import outages
from slurm_pal.twin.run import Twin
from slurm_pal.twin.settings import with_options
from slurm_pal.twin.slurm_settings import slurm_settings
from slurm_pal.twin.slurm_side import SlurmSide, billing_of

FROM_CONFIG = {"locality_penalty": ("placement", "locality_penalty"), "bar": ("placement", "barred_slowdown")}
"""Option -> the site's setting that is used when it is not given."""

SACCT_TIMEOUT_S = 600.0
SHARES_TIMEOUT_S = 30.0
FIFO = "fifo"

DRAWN = "drawn"
TYPICAL = "--profile drawn assumes a typical spread"


class SiteProfile(NamedTuple):
    """How slow the site's GPUs are, and what to say about it."""

    source: Source
    named: bool  # measured on these very GPUs
    assumed: str
    notes: tuple[str, ...]


def run_site(options: Mapping[str, Any], settings_of: Callable[[dict[str, Any]], ReplaySettings], command: str) -> Exit:
    """Ask Slurm, read scores and history, replay, print; the exit code. See SITE for the options.

    Raises SlurmError where Slurm or sacct does not answer, DataError without scores,
    UsageError for impossible options and for a history without jobs.
    """
    config = configuration.load()
    output = _output(options, command)
    mix = parse_mix(options["class_mix"]) if options["class_mix"] else {}
    scores = parse_scores(options["scores"])
    queue = _queue(options["queue"])
    claim_folders(output)
    filled = {name: config.number(*key) for name, key in FROM_CONFIG.items() if options[name] is None}
    settings = settings_of({**options, **filled})._replace(
        expected_run_share=config.number("submit", "expected_run_share")
    )
    client = connect(config)
    site = site_of(client.overview(), _faulty(config) if options["profile"] is None else ())
    profile = _profile(options["profile"], config, site)
    trace, notes = _history(options, config)
    slurm = client.config()
    fitted = fit(trace, site, settings.locality_penalty, _movable(config, slurm, options["all_movable"]))
    if not fitted.trace.jobs:
        raise UsageError(_no_jobs(fitted))
    seeds = _seeds(options)
    pairs = _scheduling(slurm, queue) | slurm_words(options)
    side, more = _side(site, pairs, options["failures"])
    program = Twin(with_options(config, options), pairs, side=side)
    program.check(WAYS.values(), queue, settings)
    runs = SiteRuns(
        fitted.trace, site.cluster, profile.source, settings, program, queue, _jitter_s(options, seeds), mix,
        options["causes"], scores,
    )  # fmt: skip
    notes = (*notes, *site.notes, *more, *profile.notes, *_changes(fitted))
    if not output.form.as_json:
        show_bad_rows(trace)
        for note in notes:
            common.say(f"note: {note}", err=True)
    return _replay_and_show(
        runs, seeds, _Background(site, fitted, profile, notes, program), output, bool(options["verbose"])
    )


def _scheduling(pairs: Mapping[str, str], queue: str) -> dict[str, str]:
    """What this Slurm's configuration says of scheduling; of priorities only where no other queue is asked for."""
    other = queue != FIFO
    return {key: text for key, text in pairs.items() if not (other and key.startswith("Priority"))}


def _side(site: VirtualSite, pairs: Mapping[str, str], failures: str | None) -> tuple[SlurmSide, tuple[str, ...]]:
    """What this Slurm knows beside GPUs, and what to say about it."""
    made = SlurmSide(site.cluster.sizes, site.rules, outages=outages.read(failures) if failures else ())
    weights = slurm_settings(pairs).priority
    if not weights.multifactor or not (weights.fair_share or weights.qos):
        return made, ()
    try:
        known = shares(subprocess_runner(SHARES_TIMEOUT_S))
    except SlurmError as error:
        return made, (f"All accounts are alike, and no QOS has a priority: {one_line(error)}.",)
    billing = {name: billing_of(text) for name, text in known.billing.items()}
    return made._replace(associations=known.associations, qos=known.qos, billing=billing), ()


class _Background(NamedTuple):
    """What is shown beside the replays."""

    site: VirtualSite
    fitted: FittedHistory
    profile: SiteProfile
    notes: tuple[str, ...]
    program: Twin


# -- reading ------------------------------------------------------------------------------


def _output(options: Mapping[str, Any], command: str) -> Output:
    return Output(
        names={way: way for way in WAYS}, command=command, workers=options["jobs"] or processors(),
        form=options["form"], out=options["out"],
        jobs_out=options["jobs_out"],
    )  # fmt: skip


def _queue(name: str) -> str:
    found = list(resolved([name], QUEUES, QUEUE_ALIASES, "queue").values())
    if len(found) > 1:
        raise UsageError(f"queue {name!r}: a site has only one")
    return found[0]


def _seeds(options: Mapping[str, Any]) -> tuple[int, ...]:
    first = 1 if options["seed"] is None else options["seed"]
    return tuple(range(first, first + (options["seeds"] or 8)))


def _jitter_s(options: Mapping[str, Any], seeds: Sequence[int]) -> float:
    if options["jitter"] is not None:
        return float(options["jitter"])
    return SiteRuns._field_defaults["jitter_s"] if len(seeds) > 1 else 0.0


def _profile(name: str | None, config: Config, site: VirtualSite) -> SiteProfile:
    """The published scores of these GPUs, or what is assumed instead. Raises DataError, UsageError."""
    if name == DRAWN:
        text = f"slowdowns are {Drawn().text()}, not measured here"
        return SiteProfile(Drawn(), False, text, (f"The GPUs' {text}.",))
    if name is not None:
        raise UsageError(f"with --site the profile is the published snapshot, or {DRAWN}, not {name!r}")
    try:
        snapshot = snapshots.read(config.snapshot_path)
    except DataError as error:
        raise DataError(f"{one_line(error)}; or {TYPICAL}") from None
    known = scored(site, snapshot.slowdown)
    n_gpus = site.cluster.n_gpus
    if known.unscored == n_gpus:
        raise DataError(
            f"snapshot {config.snapshot_path} has no score of any of the {n_gpus} GPUs here: run pal-profile run; "
            f"or {TYPICAL}"
        )
    note = f"{known.unscored} of {n_gpus} GPUs have no score and count as median ones (1.00): pal-profile run."
    text = f"scores ({n_gpus - known.unscored} of {n_gpus} GPUs) are the GPUs' true slowdowns"
    return SiteProfile(Fixed(known.slowdown, "the snapshot"), True, text, (note,) if known.unscored else ())


def _faulty(config: Config) -> frozenset[tuple[str, int]]:
    """The GPUs that were seen to fail; whether there is a snapshot at all is for `_profile` to say."""
    try:
        snapshot = snapshots.read(config.snapshot_path)
    except DataError:
        return frozenset()
    return frozenset((gpu.node, gpu.index) for row in range(len(snapshot)) if (gpu := snapshot.gpu(row)).state != OK)


def _history(options: Mapping[str, Any], config: Config) -> tuple[Trace, tuple[str, ...]]:
    """The trace, and what to say about it."""
    reading = ReaderOptions(site_apps=config.apps, patterns=parse_patterns(options["app_patterns"]))
    if options["trace"] is not None:
        if options["days"] is not None:
            raise UsageError("--days is for the history that sacct gives; with --trace the whole file is replayed")
        return read(options["trace"], "sacct", reading), ()
    trace = _from_sacct(options["days"] or DAYS, reading)
    users = {job.user for job in trace.jobs}
    if len(users) == 1 and os.geteuid() not in (0, slurm_user_uid()):
        return trace, (
            f"All jobs are of user {users.pop()}. Slurm may hide those of others (PrivateData=jobs): as root, "
            "SlurmUser or an operator sacct shows all.",
        )
    return trace, ()


def _from_sacct(days: int, reading: ReaderOptions) -> Trace:
    """The history as sacct reports it. Raises SlurmError with a way out where it does not."""
    since = f"now-{days}days"
    collector = TraceCollector("sacct")
    try:
        with accounting.history(accounting.argv(since), SACCT_TIMEOUT_S) as stream:
            return sacct.read_lines(numbered(stream, collector), collector, reading)
    except SlurmError as error:
        raise SlurmError(
            f"{one_line(error)}; or export the history where sacct works, and replay it with --trace trace.txt: "
            f"{accounting.export_command(since)}"
        ) from None


def _movable(config: Config, pairs: Mapping[str, str], everybody: bool) -> MovableJobs:
    """Whom the tick may move here: by QOS and partition, and only where Slurm keeps the output of a requeued job."""
    terms = terms_of(config, appends(pairs))
    if everybody or not (terms.may_empty_output or terms.appends):
        return MovableJobs(everybody)
    return MovableJobs(qos=terms.movable_qos, partitions=terms.movable_partitions)


def _no_jobs(fitted: FittedHistory) -> str:
    trace = fitted.trace
    reasons = ", ".join(f"{count} x {reason}" for reason, count in trace.skipped.items()) or "none"
    return (
        f"{trace.name}: no job to replay ({len(trace.bad)} bad rows; not replayed: {reasons}); does "
        "AccountingStorageTRES have gres/gpu, and do --days go back far enough?"
    )


def _changes(fitted: FittedHistory) -> list[str]:
    groups = ((fitted.left_out, "left out"), (fitted.changed, "changed"))
    return [
        f"{tally.jobs} jobs ({gpu_hours_text(tally.gpu_h)}) {what}: {reason}."
        for tallies, what in groups
        for reason, tally in tallies.items()
    ]


# -- replaying and showing ----------------------------------------------------------------


def _replay_and_show(
    runs: SiteRuns, seeds: Sequence[int], background: _Background, output: Output, verbose: bool
) -> Exit:
    todo = main_tasks(runs, seeds)
    replays = [(WAYS[task.way], len(runs.trace.jobs)) for task in todo]
    common.say(*filter(None, [takes(replays, output.workers, SITE_SOONER)]), err=True)
    results, interrupted = carry_out(runs, todo, len(runs.trace.jobs), output.workers)
    notes = list(background.notes)
    if interrupted:
        notes.append(interruption(len(results), len(todo)))
        common.say(notes[-1], err=True)
        if not {SiteTask(BASELINE, seeds[0]), SiteTask(TICK, seeds[0])} <= results.keys():
            return Exit.INTERRUPTED
    study = studied(runs, results, _study(runs, background, notes, output))
    total = compare(study).headline.ratio.get("mean_jct_s")
    if total is not None and verdict(total) == "gain" and not interrupted:
        capped, interrupted = carry_out(runs, capped_tasks(runs, seeds), len(runs.trace.jobs), output.workers)
        study = study._replace(worst=due_to_slow(runs.slow_gpus(seeds[0]), total, capped))
    _show(study, runs, results, seeds[0], background, output, verbose)
    return Exit.INTERRUPTED if interrupted else Exit.OK


def _study(runs: SiteRuns, background: _Background, notes: Sequence[str], output: Output) -> Study:
    s = runs.settings
    tick = runs.program.charged(WAYS[TICK], s)
    charged = [
        ("locality penalty", f"x {s.locality_penalty:g} on several nodes"),
        *((name, tick[name]) for name in ("move", "steering", "levers")),
        ("time limits", "kept"),
    ]
    if s.warmup_s:
        charged.append(("warm-up", f"{s.warmup_s:g} s after each start"))
    return Study(
        runs=(), policy=TICK, baseline=BASELINE, trace=runs.trace, cluster=background.site.cluster.text(),
        charged=tuple(charged), caveats=tuple(notes), command=output.command,
    )  # fmt: skip


def _assumed(runs: SiteRuns, background: _Background) -> list[str]:
    slurm = slurm_settings(background.program.pairs)
    backfill = f"backfill every {slurm.bf_interval_s:g} s" if slurm.backfill else "no backfill"
    queue = "multifactor" if slurm.priority.multifactor else runs.queue
    found = [
        background.profile.assumed,
        "they are known exactly, and stay so"
        if runs.scores == Scores()
        else f"what is known is off: {runs.scores.text()}",
        "run times of the history are those on median GPUs",
        _counted(runs),
        _moved(runs),
        f"queue {queue} with {backfill}",
    ]
    if runs.mix:
        mix = ", ".join(f"{name} {share:g}" for name, share in runs.mix.items())
        found.append(f"classes of {runs.unknown} jobs of unknown class drawn ({mix})")
    if runs.jitter_s:
        found.append(f"submissions moved by up to {runs.jitter_s:g} s, by seed")
    return found


def _moved(runs: SiteRuns) -> str:
    """Which jobs moves are open to: sacct shows no user's mark."""
    may, of = sum(job.movable for job in runs.trace.jobs), len(runs.trace.jobs)
    if may == of:
        return "every job may be moved"
    return f"{may} of {of} jobs may be moved, by QOS or partition (--all-movable: every one)"


def _counted(runs: SiteRuns) -> str:
    known = sum(job.cpus > 0 for job in runs.trace.jobs)
    return f"CPUs and memory as {known} of {len(runs.trace.jobs)} jobs had them"


def _show(
    study: Study, runs: SiteRuns, results: Mapping[SiteTask, Replay], seed: int, background: _Background,
    output: Output,
    verbose: bool,
) -> None:  # fmt: skip
    fitted, comparison = background.fitted, compare(study)
    findings = Findings(
        comparison=comparison,
        total=fitted.total,
        left_out=fitted.lost,
        unknown=0 if runs.mix else runs.unknown,
        as_c=as_insensitive(results),
        slow=_slow(runs, background.site, seed),
        named=background.profile.named,
        bar=runs.settings.barred_slowdown,
        assumed=_assumed(runs, background),
    )
    lines = five_lines(findings)
    for line in caveats(comparison)[: -len(study.caveats) or None]:
        common.say(f"note: {line}", err=True)
    found = AssembledStudy(study, () if study.worst is None else (study.worst,))

    def text() -> None:
        tables.say_notes([*lines, *cause_lines(comparison)])
        common.say(*(["", *tables.lines(*table(comparison), output.form.noheader)] if verbose else []))

    listing = Listing(CSV_COLUMNS, csv_rows(comparison), *table(comparison))
    tables.show(
        output.form, listing, "simulate", lambda _: _json(found, output.names, findings, lines, fitted), text=text
    )
    write(found, output)


def _slow(runs: SiteRuns, site: VirtualSite, seed: int) -> list[tuple[Gpu, float]]:
    """GPUs that sensitive jobs should not get, slowest first, with their slowdown in class A."""
    slowdown = runs.source.draw(runs.cluster, seed).slowdown["A"]
    slow = [(gpu, x) for gpu, x in zip(site.gpus(), slowdown, strict=True) if x > runs.settings.barred_slowdown]
    return sorted(slow, key=lambda pair: -pair[1])


def _json(
    found: AssembledStudy, names: Mapping[str, str], findings: Findings, lines: Sequence[str], fitted: FittedHistory
) -> dict[str, Any]:
    """The usual body, and `site` with what only a site has."""
    answer = body(found, names)
    del answer["schema"]
    answer["site"] = {
        "lines": lines,
        "gpu_hours": fitted.total.gpu_h,
        "left_out": {reason: tally._asdict() for reason, tally in fitted.left_out.items()},
        "changed": {reason: tally._asdict() for reason, tally in fitted.changed.items()},
        "unknown_class_jobs": findings.unknown,
        "unknown_as_c": {way: None if r is None else r._asdict() for way, r in findings.as_c.items()},
        "slow_gpus": [{"node": node, "index": index, "slowdown": x} for (node, index), x in findings.slow],
        "slow_gpus_measured": findings.named,
        "assumed": list(findings.assumed),
    }
    return answer
