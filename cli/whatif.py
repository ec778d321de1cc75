# SPDX-License-Identifier: MIT
"""pal whatif: what a job would get now, and with other requests."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import fold
from slurm_pal.cli import common
from slurm_pal.cli.job_names import find_job, job_name
from slurm_pal.decide.facts import facts_of
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease import EXCLUDED, REQUIRED
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.request import Conflict, Request, for_class, read
from slurm_pal.journal import paths
from slurm_pal.report import what_if as report
from slurm_pal.sensitivity.cascade import WORD
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.job_options import options_of
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import argv, choice, known, options, script, what_if
from slurm_pal.submit.what_if import AskedJob, Asker
from slurm_pal.tick.deciding import terms_of

_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
_WHEN = re.compile(r"[0-9A-Za-z:+/-]{1,40}")
OVERVIEW_CALLS = 2


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--at", default="", metavar="TIME", help="Another start, as for sbatch --begin (default: 22:00).")
@click.option(
    "--exclude", "exclude", metavar="CLASS",
    help="What avoiding GPUs costs: slow (beyond submit.avoid_slow), slow=1.2, or variability classes: v4,v5.",
)  # fmt: skip
@common.json_option
@common.verbose_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[JOBID | [SBATCH OPTIONS] SCRIPT [ARGS]]")
def whatif(at: str, exclude: str | None, as_json: bool, words: tuple[str, ...]) -> None:
    """Show when a job would start now and on which GPUs: as written, and with other requests.

    Asked about are half the GPUs, other partitions, half the time limit, a start at night (or --at), and with
    --exclude the nodes without some GPUs. Nothing is submitted or changed: Slurm is asked by sbatch --test-only, once
    for each row, and once for an overview.

    \b
    Examples:
      pal whatif train.sh                      a script, as you would submit it
      pal whatif --at 18:00 -- --gpus-per-node=4 -t 60 train.sh
      pal whatif 4711                          a job that waits
      pal whatif --exclude slow 4711           what it costs it to avoid slow GPUs
      pal whatif --exclude v4,v5               how many GPUs of the cluster that gives up

    Options of sbatch follow after --.
    """
    if words[-1:] == ("--json",):  # what a script's own arguments are does not matter to when it starts
        words, as_json = words[:-1], True
    if not words and exclude is None:
        raise UsageError("name a job, a script, or --exclude CLASS: pal whatif 4711, pal whatif job.sh")
    if at and not _WHEN.fullmatch(at):
        raise UsageError(f"--at {at!r} is not a time like 18:00, 2026-12-01T18:00 or now+8hours")
    config = settings.load()
    client = connect(config)
    bound, classes = (
        what_if.classes_of(exclude, config.number("submit", "avoid_slow")) if exclude else (0.0, frozenset())
    )
    scores, now_s = snapshots.read(config.snapshot_path), time.time()
    job, calls = _job(words, config, client) if words else (None, 0)
    overview = client.overview(reservations=bool(job and job.request.reservation))
    calls += OVERVIEW_CALLS
    lost: dict[str, Any] | None = None
    if exclude is not None:
        own = job.request.partitions if job else ()
        names = own or [one.name for one in overview.partitions if job is None or one.default]
        allowed = [node for one in overview.partitions if one.name in names for node in one.nodes]
        found = what_if.capacity(overview, scores, job.sensitivity if job else "A", bound, classes, allowed)
        what = f"GPUs of class {exclude}" if classes else f"GPUs slower than {bound:g}"
        folded = fold(list(found.nodes)) if found.nodes else ""
        lost = found._asdict() | {"nodes": list(found.nodes), "node_list": folded, "what": what}
    rows: list[dict[str, Any]] = []
    if job is not None:
        asked = what_if.variants(job, overview, at, lost["nodes"] if lost else ())
        requests = [_request(job, dict(one.options)) for one in asked]
        plans, queued = what_if.Plans(job, asked, [one.name for one in overview.partitions]).read()
        calls += len(asked) + 1
        made = what_if.answers(job, asked, plans, requests, overview, scores, config, now_s, queued)
        rows = [one.shown(now_s) for one in made]
    said = [text for text in (report.cost(lost, rows), report.verdict(rows) if rows else "") if text]
    if as_json:
        body = {"verdict": said, "avoided": lost, "variants": rows, "sensitivity": job.sensitivity if job else None}
        common.print_json("whatif", body | {"slurm_commands": calls})
        return
    common.say(*(f"{text}." for text in said), *(["", *report.lines(rows)] if rows else []))
    common.say("", f"Slurm was asked by {calls} commands; nothing was changed.")


def _request(job: AskedJob, changed: dict[str, str]) -> Request:
    """The request with these options; a later start does not matter for what it asks for."""
    merged = {name: text for name, text in {**job.asker.options, **changed}.items() if name != "begin"}
    return for_class(read(merged, submitted=True), job.sensitivity, WORD)


def _job(words: tuple[str, ...], config: Config, client: SlurmClient) -> tuple[AskedJob, int]:
    """What the words name, and how many commands asked Slurm for it. Raises UsageError, SlurmError."""
    if len(words) == 1 and _JOB.fullmatch(words[0]):
        return _job_in_queue(words[0], config, client), 2 if "_" in words[0] else 1
    from slurm_pal.submit.submission import PluginOptions

    line = argv.parse(words, PluginOptions())
    if line.script is None and not line.has("wrap"):
        raise UsageError("no script is named after sbatch's options: pal whatif -- --gres=gpu:1 job.sh")
    chdir = next((value for name, value in reversed(line.options) if name == "chdir"), None)
    body = script.from_file(line.script, chdir) if line.script is not None else None
    if body is not None and body.doubt:
        raise UsageError(body.doubt)
    warnings: list[str] = []
    directives = body.pal if body else ()
    stated = choice.sensitivity(choice.choice(line), os.environ, directives, config.apps, warnings)
    verdict = known.verdict(stated, line, body, config, os.environ)
    request = for_class(options.build(line, os.environ, body), verdict.sensitivity, verdict.stage)
    try:
        merged = options.merge(line, os.environ, body)
    except Conflict as why:
        raise UsageError(f"the script cannot be asked about: {why}") from None
    return AskedJob(Asker(line.before, line.after, merged), request, verdict.sensitivity, verdict.is_measured), 1


def _job_in_queue(text: str, config: Config, client: SlurmClient) -> AskedJob:
    name = job_name(text)
    _, job, trouble = find_job(client, name)
    if job is None:
        raise UsageError(f"job {name} is unknown: {trouble or 'Slurm has forgotten it'}")
    if not (paths.has_powers() or job.user == paths.user_name()):
        raise UsageError(
            f"job {name} belongs to another user: you can ask about your own jobs (squeue --me), and admins about all "
            "of them"
        )
    found = options_of(job)
    if isinstance(found, str):
        raise UsageError(f"job {name} cannot be asked about: {found}")
    ours = in_force(job)  # a list of ours is not what its user asks for
    more = {
        "nodelist": ours.get(REQUIRED, fold(list(job.req_nodes))),
        "exclude": ours.get(EXCLUDED, fold(list(job.exc_nodes))),
        "account": job.account,
        "qos": job.qos,
    }
    merged = found | {key: value for key, value in more.items() if value not in ("", "(null)", "N/A")}
    uid = [f"--uid={job.uid}"] if os.geteuid() == 0 and job.uid > 0 else []
    before = [*uid, *(f"--{key}={value}" if value else f"--{key}" for key, value in merged.items()), "--wrap=true"]
    facts = facts_of(job, terms_of(config, appends=False))
    planned_s = job.start_s if job.state == "PENDING" else 0.0
    return AskedJob(Asker(tuple(before), (), merged), request_of(job), facts.sensitivity, facts.measured, planned_s)
