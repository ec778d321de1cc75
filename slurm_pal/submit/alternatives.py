# SPDX-License-Identifier: MIT
"""Which of several places a new job should take: its user's alternatives (#PAL alt=), or its partitions by a goal.

Slurm itself says when the job would start in each (sbatch --test-only), which earlier waits of this user correct; how
long it runs there the user says, until three earlier runs do. The choice is `decide/alternatives.py`. Without an
answer the job is submitted as its script says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from slurm_pal.base import marks
from slurm_pal.base import prices as price_list
from slurm_pal.base.errors import UsageError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.jobs import FOR_NODES
from slurm_pal.base.light import Any, NamedTuple
from slurm_pal.base.numbers import digits
from slurm_pal.decide import alternatives as places
from slurm_pal.decide.alternatives import Alternative, Goal
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark, pairs_of
from slurm_pal.decide.request import Conflict, Request
from slurm_pal.decide.room import must_boot
from slurm_pal.decide.waits import Expects, Waiting, expected_wait_s, pool, rooms, starts_now
from slurm_pal.slurm.parse import seconds, unix_s
from slurm_pal.slurm.site_conf import boots_s
from slurm_pal.submit import place_history
from slurm_pal.submit.argv import CommandLine, Option
from slurm_pal.submit.choice import Choice, variable
from slurm_pal.submit.options import build, merge
from slurm_pal.submit.processes import runner
from slurm_pal.submit.script import SHELLS, Script, interpreter

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config
    from slurm_pal.decide.near import Near
    from slurm_pal.slurm.client import Overview

OPTIONS = {
    "partition": "partition", "gres": "gres", "gpus": "gpus", "gpus-per-node": "gpus-per-node",
    "cpus": "cpus-per-task", "cpus-per-task": "cpus-per-task", "ntasks": "ntasks", "nodes": "nodes", "mem": "mem",
    "time": "time", "constraint": "constraint", "qos": "qos", "account": "account",
}  # fmt: skip
"""What an alternative may say -> sbatch's option."""
CHANGEABLE = frozenset({"partition", "gres", "cpus-per-task", "time"})
"""What a tick can change of a pending job."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_VALUE = re.compile(r"[A-Za-z0-9_.:+@%\[\]|&*()/-]+")
_PARTITION = re.compile(r"[A-Za-z0-9_.:+@-]+")
_STARTS = re.compile(r"to start at (\S+) ")
_QUEUED = ("Partition", "TimeLimit", "tres-per-node", "tres-per-job", "NumNodes", "Reason")
_ASK_S = 5.0
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


class NamedPlace(NamedTuple):
    """One place as it would be submitted."""

    name: str
    partition: str
    options: tuple[Option, ...]  # for sbatch, in force instead of the script's
    est_s: float = 0.0  # how long the user expects it to run there; 0: not said

    @property
    def words(self) -> tuple[str, ...]:
        """For sbatch's command line, after the user's own."""
        return tuple(f"--{name}={value}" for name, value in self.options)


class Choices(NamedTuple):
    """What there is to choose from, and for what."""

    goal: Goal
    places: tuple[NamedPlace, ...]
    declared: bool  # by the user, as alternatives


class Picked(NamedTuple):
    """The place chosen."""

    place: NamedPlace
    request: Request
    shown: dict[str, Any]  # for the record
    mark: dict[str, str] | None  # by which a tick chooses again (decide/place_mark.py)


def wanted(
    chosen: Choice, environment: Mapping[str, str], line: CommandLine, script: Script | None, config: Config,
    now_s: float, warnings: list[str],
) -> Choices | None:  # fmt: skip
    """What is to be chosen, None where nothing is. Raises UsageError for a wrong word on the command line.

    A wrong word elsewhere is reported, and nothing is chosen.
    """
    directives = script.pal if script else ()
    try:
        goal, stated = _goal(chosen, environment, directives, config, now_s)
    except UsageError as error:
        if chosen.goal is not None:
            raise UsageError(f"--pal-goal {error}") from None
        warnings.append(f"the goal {error}: ignored")
        goal, stated = Goal(), False
    told = chosen.alt or tuple(value for key, value in directives if key == "alt")
    if line.hetjob or (script and script.hetjob):
        if told or stated:
            warnings.append("a heterogeneous job has no choice of places: its goal and alternatives are ignored")
        return None
    if told:
        try:
            return _declared(told, line, script, environment, goal, warnings)
        except UsageError as error:
            if chosen.alt:
                raise UsageError(f"--pal-alt {error}") from None
            warnings.append(f"#PAL alt={error}: all alternatives are ignored")
            return None
    if goal.kind == places.TIME and not stated:
        return None
    try:
        merged = merge(line, environment, script)
    except Conflict:
        return None
    names = tuple(dict.fromkeys(filter(None, merged.get("partition", "").split(","))))
    if len(names) < 2:
        if stated and goal.kind != places.TIME:
            warnings.append(
                f"the goal {goal.kind} has nothing to choose from: name several partitions, or use #PAL alt="
            )
        return None
    return Choices(goal, tuple(NamedPlace(name, name, (("partition", name),)) for name in names), False)


def _goal(
    chosen: Choice, environment: Mapping[str, str], directives: Sequence[Option], config: Config, now_s: float
) -> tuple[Goal, bool]:
    """The goal, and whether the user or the site has stated one beyond the default. Raises UsageError."""
    said = (chosen.goal, dict(directives).get("goal"), variable(environment, "GOAL"))
    text = next((one for one in said if one is not None), None)
    if text is not None:
        return places.goal_of(text, now_s), True
    return Goal(config.text("submit", "goal")), config.origin("submit", "goal") != "default"


def parse(text: str) -> NamedPlace:
    """One alternative, like `gpu:partition=a100,gres=gpu:1,est=20m`. Raises UsageError."""
    name, colon, rest = text.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} does not begin with a name and a colon, like gpu:partition=a100,gres=gpu:1,est=20m")
    found: dict[str, str] = {}
    est_s = 0.0
    for part in rest.split(","):
        key, sign, value = part.partition("=")
        if key == "est":
            est_s = places.duration_s(value) or float(seconds(value) or 0 if ":" in value or "-" in value else 0)
            if est_s <= 0:
                raise UsageError(f"{text!r}: est={value} is not a time like 90 (s), 20m, 2h or 1-12:00:00")
        elif not sign or key not in OPTIONS:
            raise UsageError(f"{text!r}: {part!r} is not one of {', '.join(OPTIONS)}, est, with = and a value")
        elif not (_PARTITION if key == "partition" else _VALUE).fullmatch(value):
            raise UsageError(f"{text!r}: {part!r} has a character that no such option has")
        else:
            found[OPTIONS[key]] = value
    if "partition" not in found or not est_s:
        raise UsageError(f"{text!r} lacks {'partition' if est_s else 'est'}=: each alternative needs both")
    return NamedPlace(name, found["partition"], tuple(found.items()), est_s)


def _declared(
    told: Sequence[str], line: CommandLine, script: Script | None, environment: Mapping[str, str], goal: Goal,
    warnings: list[str],
) -> Choices | None:  # fmt: skip
    """Raises UsageError."""
    found = [parse(text) for text in told]
    for what, names in (("name", [one.name for one in found]), ("partition", [one.partition for one in found])):
        if len(set(names)) < len(names):
            raise UsageError(f"{max(names, key=names.count)!r} is the {what} of two alternatives: each needs its own")
    if len(found) > marks.PLACES:
        raise UsageError(f"{len(found)} alternatives are more than {marks.PLACES}")
    typed = dict(line.options)
    kept = [one for one in found if all(typed.get(name, value) == value for name, value in one.options)]
    if len(kept) < len(found):
        gone = ", ".join(one.name for one in found if one not in kept)
        warnings.append(f"left out, since the command line says something else: {gone}")
    if not kept:
        return None
    try:
        asked = merge(line, environment, script)
    except Conflict as reason:
        warnings.append(f"no alternative is chosen: {reason}")
        return None
    return Choices(goal, tuple(_without_gpus(one, asked) for one in kept), True)


def _without_gpus(place: NamedPlace, asked: Mapping[str, str]) -> NamedPlace:
    """An alternative that names no GPUs gets none, whatever the script's own lines ask for."""
    if any(name in _GPUS for name, _ in place.options):
        own = {name for name, _ in place.options}
        extra = [("gres", "none")] if "gres" in asked and "gres" not in own else []
        extra += [("gpus", "0")] if "gpus" in asked and "gpus" not in own else []
        return place._replace(options=(*place.options, *extra))
    extra = [("gres", "none")] if "gpu" in asked.get("gres", "") else []
    extra += [(name, "0") for name in _GPUS[1:] if name in asked]
    return place._replace(options=(*place.options, *extra))


def line_for(line: CommandLine, place: NamedPlace) -> CommandLine:
    """The command line with the options of a place in force."""
    return line._replace(options=(*line.options, *place.options), before=(*line.before, *place.words))


# -- choosing -------------------------------------------------------------------------------


class Asking:
    """When Slurm would start the job in each place: asked all at once, read when wanted."""

    def __init__(self, wanted: Choices, line: CommandLine, script: Script | None) -> None:
        """Raises SlurmError where sbatch cannot be started."""
        self._run = runner(_ASK_S)
        self._queue = self._run.start(queue_argv(place.partition for place in wanted.places), "")
        stdin = "" if line.script is not None or line.has("wrap") else _stub(script)
        self._answers = [
            self._run.start(
                ["sbatch", "--test-only", *line.before, *place.words, *line.after], stdin, dict(os.environ)
            )
            for place in wanted.places
        ]  # fmt: skip

    def starts(self) -> list[tuple[float, str]]:
        """Of each place: the start as Unix s, or 0 and why Slurm would not take it. Raises SlurmError."""
        return [_start(answer()) for answer in self._answers]

    def queued(self) -> dict[str, list[Waiting]]:
        """Partition -> the jobs that wait for nodes there. Raises SlurmError."""
        return waiting_in(self._queue().stdout)

    def end(self) -> None:
        """The answers are no longer wanted."""
        self._run.end()


def queue_argv(partitions: Iterable[str]) -> list[str]:
    """The command that shows what waits in these partitions, for `waiting_in`."""
    return ["squeue", "-h", "-t", "PD", "-p", ",".join(partitions), "-O", ",".join(f"{name}:|" for name in _QUEUED)]


def waiting_in(stdout: str) -> dict[str, list[Waiting]]:
    """Partition -> the jobs that wait for nodes there, by what squeue showed."""
    found: dict[str, list[Waiting]] = {}
    for line in stdout.splitlines():
        row = [cell.strip() for cell in line.split("|")]
        if len(row) > len(_QUEUED) and row[5].startswith(FOR_NODES):
            each, whole = _last_number(row[2]), _last_number(row[3])
            nodes = max(1, digits(row[4].partition("-")[0]) or 1)
            one = Waiting(whole or each * nodes, float(seconds(row[1]) or 0), nodes)
            for name in row[0].split(","):
                found.setdefault(name, []).append(one)
    return found


def _last_number(text: str) -> int:
    """The GPUs of what squeue shows as gres:gpu:2, gres/gpu:a100=2 and the like; 0 without any."""
    if "gpu" not in text:
        return 0
    number = digits(re.split(r"[:=]", text)[-1])
    return 1 if number is None else number


def _stub(script: Script | None) -> str:
    """The directives of a script that comes by stdin: sbatch tests only what it asks for."""
    lines = script.body.split(b"\n") if script else []
    kept = [os.fsdecode(line) for line in lines if line.startswith(b"#SBATCH")]
    return "\n".join(["#!/bin/sh", *kept, ":", ""])[:32768]


def _start(done: Any) -> tuple[float, str]:
    match = _STARTS.search(done.stderr)
    at_s = unix_s(match[1]) if match else 0.0
    if done.returncode or not at_s:
        said = [text.strip() for text in done.stderr.splitlines() if text.strip()]
        return 0.0, (said[-1].removeprefix("sbatch: ").removeprefix("error: ") if said else "sbatch said nothing")
    return at_s, ""


def pick(
    wanted: Choices, asking: Asking, line: CommandLine, script: Script | None, config: Config, overview: Overview,
    name: str, speeds: Mapping[str, float], slowdown: Any, default_run_s: float, data: Near | None, now_s: float,
    warnings: list[str],
) -> Picked | None:  # fmt: skip
    """The place by the goal, None where Slurm would take the job in none of them.

    `name` is the job's, for what earlier runs took; `speeds` partition -> throughput, where known; `slowdown` gives for
    a request the slowdown x locality of the GPUs that it would get now, or 1.0. Raises SlurmError.
    """
    starts, queued = asking.starts(), asking.queued()
    known = place_history.read()
    prices = price_list.current(config, overview.partitions, now_s)
    warnings += prices.complaints
    expects = Expects(config.number("submit", "expected_run_share"), config.number("submit", "expected_run_s"))
    by_partition_s = boots_s(slurm_conf(), overview.partitions, config.number("submit", "boot_s"))
    rows: list[dict[str, Any]] = []
    could: list[tuple[NamedPlace, Request, Alternative, dict[str, Any]]] = []
    for place, (at_s, refused) in zip(wanted.places, starts, strict=True):
        request = build(line_for(line, place), os.environ, script)
        row: dict[str, Any] = {"name": place.name, "partition": place.partition, "refused": refused}
        rows.append(row)
        if refused:
            continue
        planned_s, waits_by = max(0.0, at_s - now_s), "Slurm's plan"
        boot_s = by_partition_s.get(place.partition, 0.0)
        boots = planned_s < boot_s and must_boot(overview, request, place.partition)
        if boots:
            planned_s, waits_by = boot_s, "a node that boots"
        elif planned_s and request.shape and not request.leave:
            planned_s, waits_by = _played(overview, request, place, queued, expects, now_s, planned_s)
        certain = not planned_s and waits_by == "Slurm's plan"
        wait_s, seen = (0.0, 0) if certain else place_history.corrected(known, place.partition, planned_s)
        waits_by += f" and {seen} earlier waits" if seen else ""
        seen_s = place_history.run_s(known, name, place.name) if wanted.declared else None
        base_s = seen_s or place.est_s or _limited(default_run_s, request, config)
        speed = speeds.get(place.partition, 0.0)
        if not place.est_s and speed > 0:  # the limit holds in the slowest of them
            slowest = min(value for value in speeds.values() if value > 0)
            base_s *= slowest / speed
        run_s = base_s * (slowdown(request) if not seen_s and request.shape else 1.0)
        per_hour, stage_in_s = (
            prices.per_hour(place.partition, places.usage(request)),
            _stage_in_s(data, overview, place),
        )
        one = Alternative(
            place.name, place.partition, wait_s, run_s, per_hour, stage_in_s, min(boot_s, wait_s) if boots else 0.0
        )
        row |= {
            "planned_s": round(planned_s), "wait_s": round(wait_s), "wait_from": waits_by,
            "run_s": round(run_s), "run_from": "earlier runs" if seen_s else "est" if place.est_s else "time limit",
            "stage_in_s": round(stage_in_s), "cost": None if one.per_hour is None else round(one.cost, 4),
        }  # fmt: skip
        could.append((place, request, one, row))
    if not could:
        said = "; ".join(f"{row['name']}: {row['refused']}" for row in rows)
        warnings.append(f"no place is chosen, since Slurm would take the job in none: {said}")
        return None
    made = places.best([one for _, _, one, _ in could], wanted.goal, now_s)
    place, request, _, row = could[made.at]
    until_s = wanted.goal.until_s if wanted.goal.kind == places.DEADLINE else None
    shown = {
        "goal": wanted.goal.kind, "until_s": until_s, "chosen": place.name, "why": made.why,
        "declared": wanted.declared, "of": rows, "job_name": name,
    }  # fmt: skip
    count = any("cpus-per-task" in dict(one.options) for one in wanted.places)
    marked = [_marked(one, row, max(1, there.cpus_per_task) if count else 0) for one, there, _, row in could]
    return Picked(place, request, shown, _mark(wanted, marked, place, request, script, now_s))


def _marked(place: NamedPlace, row: Mapping[str, Any], cpus: int) -> MarkedPlace | None:
    """The place, None where a pending job cannot be changed to it."""
    options = dict(place.options)
    if not options.keys() <= CHANGEABLE:
        return None
    return MarkedPlace(
        place.name,
        place.partition,
        options.get("gres", ""),
        cpus,
        options.get("time", ""),
        row["run_s"] + row["stage_in_s"],
    )


def _mark(
    wanted: Choices, marked: Sequence[MarkedPlace | None], place: NamedPlace, request: Request, script: Script | None,
    now_s: float,
) -> dict[str, str] | None:  # fmt: skip
    """None where no tick can choose again, or the job could not learn what was chosen."""
    kept = tuple(one for one in marked if one is not None)
    told = not wanted.declared or (script is not None and runs_in_shell(script.body))
    one_task = request.tasks == 1 or not any(one.cpus for one in kept)
    if not told or not one_task or len(kept) < 2 or place.name not in [one.name for one in kept]:
        return None
    return pairs_of(PlaceMark(place.name, wanted.goal, now_s, max(1, request.cpus_per_task), kept)) or None


def _played(
    overview: Overview, request: Request, place: NamedPlace, queued: Mapping[str, Sequence[Waiting]], expects: Expects,
    now_s: float, planned_s: float,
) -> tuple[float, str]:  # fmt: skip
    """Nothing where backfill has room for the job; else how long it would wait if running and waiting jobs took the
    times expected of them; Slurm's plan where that says nothing."""
    from slurm_pal.decide import steering

    gpus = request.shape.total if request.shape else 0
    nodes = max(1, (request.shape.nodes if request.shape else 0) or request.nodes_min)
    ahead = queued.get(place.partition, ())
    room = rooms(overview, place.partition, now_s)
    if starts_now(gpus, nodes, room, ahead) and steering.places(overview, request).get(place.partition, False):
        return 0.0, "backfill"
    free, running = pool(overview, place.partition, now_s)
    wait_s = expected_wait_s(gpus, free, running, ahead, expects)
    return (planned_s, "Slurm's plan") if wait_s == float("inf") else (wait_s, "the queue")


def _stage_in_s(data: Near | None, overview: Overview, place: NamedPlace) -> float:
    """To bring the job's input to the nearest node of a partition."""
    nodes = next((one.nodes for one in overview.partitions if one.name == place.partition), ())
    return min((data.seconds((name,)) for name in nodes), default=0.0) if data else 0.0


def _limited(default_run_s: float, request: Request, config: Config) -> float:
    limit_s = request.time_limit_s
    return limit_s * config.number("submit", "expected_run_share") if limit_s else default_run_s


def runs_in_shell(body: bytes) -> bool:
    """Whether the script can be given a line of ours."""
    return body.startswith(b"#!") and interpreter(body) in SHELLS


# -- in the job -----------------------------------------------------------------------------


def with_name(body: bytes, wanted: Choices) -> bytes:
    """The script with PAL_ALT set by the partition where it runs. Raises CannotWrap where no shell runs it."""
    from slurm_pal.submit.observing import with_observer

    cases = " ".join(f"{place.partition}) {_words_of(place)};;" for place in wanted.places)
    return with_observer(body, f'case "$SLURM_JOB_PARTITION" in {cases} esac; export PAL_ALT')


def _words_of(place: NamedPlace) -> str:
    """What a shell is to do in a place. A job that was changed to it while it waited has its CPUs, but Slurm's word
    for them is still that of its submission."""
    cpus = dict(place.options).get("cpus-per-task", "")
    told = f" SLURM_CPUS_PER_TASK={cpus} SRUN_CPUS_PER_TASK={cpus}; export SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK"
    return f"PAL_ALT={place.name}{told if cpus.isdigit() else ''}"
