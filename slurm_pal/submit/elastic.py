# SPDX-License-Identifier: MIT
"""Elastic jobs: a base job that keeps its nodes, and companions of one node each that join and leave it.

One worker is one node's share. The base job is the user's job on MIN nodes; the companions are MAX - MIN jobs of the
same script and options, submitted after it. What both do in the job is in `elastic.sh`; docs/elastic.md explains it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurm_pal.base import marks
from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.light import NamedTuple
from slurm_pal.base.numbers import digits
from slurm_pal.decide.request import Conflict
from slurm_pal.slurm.rest_program import SbatchProgram
from slurm_pal.submit import checkpoint
from slurm_pal.submit.argv import CommandLine, SiteOptions, without
from slurm_pal.submit.choice import Choice, variable
from slurm_pal.submit.movable import files
from slurm_pal.submit.options import merge
from slurm_pal.submit.processes import runner
from slurm_pal.submit.script import Script

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.submit.decision import Record

MOST_WORKERS = 1000
FORKS = 8
"""Copies of a job that is forked without a number, itself among them."""
LAST_NICE = 1_000_000
"""Copies of a forked job wait behind all other jobs."""
SPACING_S = 600.0
"""Between the earliest starts of two companions: at most one of them joins in this time by itself."""
BEAT_S, STALE_S, WAIT_S = 3.0, 30.0, 120.0
"""Between two signs of life of a job; after this silence it no longer counts; how long a companion waits for its base
job's."""
SUBMIT_S = 30.0
"""For sbatch to submit one companion."""
BASE = "BASE"
"""Stands for the base job's id in a command that is only shown."""
FOLDER = ".pal-elastic-"
"""Of a job's directory, before its number."""

_REFUSED = {
    "array": "each task would need companions of its own",
    "clusters": "its companions must run in the base job's cluster",
    "cluster-constraint": "its companions must run in the base job's cluster",
    "gpus": "it is a total that Slurm does not split evenly; use --gpus-per-node",
    "nodelist": "no companion fits on the base job's nodes; use --exclude or --constraint",
    "nodefile": "no companion fits on the base job's nodes; use --exclude or --constraint",
    "licenses": "it is a total, and each companion would take as many again",
    "bb": "a burst buffer belongs to one job",
    "bbf": "a burst buffer belongs to one job",
    "burst-buffer": "a burst buffer belongs to one job",
    "resources": "Slurm derives the nodes from it; use --gpus-per-node",
    "wait": "the companions are submitted when sbatch has ended, which would be at the job's end",
    "external": "such a job runs nothing",
}  # fmt: skip
"""sbatch's options with which a job cannot be elastic, and why."""


class Elastic(NamedTuple):
    """What the user asks for: the number of workers (nodes), and how their companions are started."""

    least: int
    most: int
    partition: str = ""  # of the companions; "": that of the base job
    hook: str = ""  # a shell command, run in the base job when its size has changed
    folder: str = ""  # absolute; with the base job's id the directory in which the jobs of one elastic job meet
    spacing_s: float = SPACING_S
    beat_s: float = BEAT_S
    stale_s: float = STALE_S
    wait_s: float = WAIT_S
    tasks: int = 0  # --ntasks of one worker; 0: not stated
    comment: str = ""  # the user's own
    output: str | None = None  # the folder of the companions' output files; None: where the user's option says
    error: bool = False  # whether the user has named a file for stderr
    mail: bool = False  # whether the user wants mail
    fork: bool = False  # companions are copies that run on idle nodes only (docs/fork.md)

    @property
    def mark(self) -> dict[str, str]:
        """The base job's mark."""
        return {marks.ELASTIC: f"{self.least}:{self.most}"}

    def shown(self, line: CommandLine) -> Record:
        """The size, and how the first companion is submitted, as JSON-ready data."""
        first = companions(self, line, BASE)[:1]
        return {
            "least": self.least, "most": self.most, "spacing_s": self.spacing_s, "companions": [],
            "companion_argv": first[0] if first else None,
        }  # fmt: skip


def asked(chosen: Choice, environment: Mapping[str, str], script: Script | None, guest: str = "") -> Elastic | None:
    """What command line, environment and script ask for, in this order; None for a job that is not elastic.

    `guest` is the site's partition for companions. Raises UsageError for a value that is not allowed, wherever it
    stands: the script of an elastic job counts on its variables.
    """
    named = dict(script.pal) if script else {}

    def said(option: str | None, name: str) -> tuple[str, str | None]:
        key = name.upper().replace("-", "_")
        sources = (
            (f"--pal-{name}", option),
            (f"$SLURM_PAL_{key}", variable(environment, key)),
            (f"#PAL {name}", named.get(name)),
        )
        return next(((where, value.strip()) for where, value in sources if value is not None), ("", None))

    origin, size = said(chosen.elastic, "elastic")
    fork_from, copies = said(chosen.fork, "fork")
    partition_from, partition = said(chosen.elastic_partition, "elastic-partition")
    hook_from, hook = said(chosen.elastic_hook, "elastic-hook")
    if copies is not None and size is not None:
        raise UsageError(f"{fork_from} and {origin}: a job is forked or elastic, not both")
    if copies is not None:
        origin, size = fork_from, _fork(fork_from, copies)
    if size is None:
        for where, value in ((partition_from, partition), (hook_from, hook)):
            if value is not None and where.startswith("--"):
                raise UsageError(f"{where} is for elastic jobs: add --pal-elastic MIN:MAX")
        return None
    for where, value in ((partition_from, partition), (hook_from, hook)):
        if value == "":
            raise UsageError(f"{where} lacks its value: see palsub --pal-help")
    if partition is not None and not re.fullmatch(r"[^\s,=]+(,[^\s,=]+)*", partition):
        raise UsageError(f"{partition_from} {partition!r} is not a partition, or several with commas between them")
    least, most = _size(origin, size)
    spacing_s = 1.0 if copies is not None else SPACING_S  # a copy that joins restarts nothing
    return Elastic(
        least, most, partition or guest, hook or "", environment.get("SLURM_PAL_ELASTIC_DIR", ""),
        spacing_s=_time(environment, "SPACING", spacing_s), beat_s=_time(environment, "BEAT", BEAT_S),
        stale_s=_time(environment, "STALE", STALE_S), wait_s=_time(environment, "WAIT", WAIT_S),
        fork=copies is not None,
    )  # fmt: skip


def _fork(origin: str, text: str) -> str:
    """MIN:MAX of a forked job. Raises UsageError."""
    most = FORKS if text == "on" else digits(text)
    if most is None or not 1 <= most <= MOST_WORKERS:
        raise UsageError(f"{origin} {text!r} is neither on nor a number of copies from 1 to {MOST_WORKERS}, such as 5")
    return f"1:{most}"


def _size(origin: str, text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    least, most = digits(low), digits(high)
    if least is None or most is None:
        raise UsageError(f"{origin} {text!r} is not MIN:MAX, two numbers of nodes, such as 2:6")
    if not 1 <= least <= most <= MOST_WORKERS:
        raise UsageError(f"{origin} {text!r}: allowed is 1 <= MIN <= MAX <= {MOST_WORKERS}, such as 2:6")
    return least, most


def _time(environment: Mapping[str, str], name: str, usual: float) -> float:
    text = environment.get(f"SLURM_PAL_ELASTIC_{name}_S", "")
    if not text:
        return usual
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text) or not float(text):
        raise UsageError(
            f"$SLURM_PAL_ELASTIC_{name}_S = {text!r} is not a number of seconds above 0, such as {usual:g}"
        )
    return float(text)


def checked(
    wanted: Elastic, line: CommandLine, environment: Mapping[str, str], script: Script | None
) -> tuple[Elastic, CommandLine]:
    """The same with what the submission says, and the base job's command line. Raises UsageError for what cannot be
    elastic."""
    if line.hetjob or (script and script.hetjob):
        raise UsageError("a heterogeneous job cannot be elastic")
    try:
        if line.unsure or (script and script.doubt):
            raise Conflict(line.unsure or (script.doubt if script else ""))
        merged = merge(line, environment, script)
    except Conflict as reason:
        raise UsageError(f"the job cannot be elastic: {reason}") from None
    if environment.get("SBATCH_WAIT") is not None:
        merged.setdefault("wait", "")
    _check(merged, line, script)
    nodes = merged.get("nodes")
    if nodes is not None and nodes not in (str(wanted.least), f"{wanted.least}-{wanted.least}"):
        raise UsageError(
            f"--nodes={nodes}, but the base job of an elastic job has MIN={wanted.least} nodes: leave --nodes out"
        )
    tasks = digits(merged.get("ntasks", "0"))
    if tasks is None or tasks % wanted.least:
        raise UsageError(
            f"--ntasks={merged['ntasks']} is not a multiple of MIN={wanted.least}: each worker gets the same share"
        )
    if nodes is None:
        word = f"--nodes={wanted.least}"
        line = line._replace(before=(*line.before, word), options=(*line.options, ("nodes", str(wanted.least))))
    out, err = files(line, environment, script)
    return wanted._replace(
        folder=_folder(wanted.folder, merged.get("chdir", "")), tasks=tasks // wanted.least,
        comment=merged.get("comment", ""), output=_output(out), error=bool(err), mail="mail-type" in merged,
    ), line  # fmt: skip


def _check(merged: Mapping[str, str], line: CommandLine, script: Script | None) -> None:
    for name, why in _REFUSED.items():
        if name in merged:
            raise UsageError(f"a job with --{name} cannot be elastic: {why}")
    if merged.get("distribution", "").startswith("arbitrary"):
        raise UsageError("a job with --distribution=arbitrary cannot be elastic: it lays out the tasks of fixed nodes")
    if set("[*") & set(merged.get("constraint", "")):
        raise UsageError(
            f"a job with --constraint={merged['constraint']} cannot be elastic: a companion has one node only"
        )
    if digits(merged.get("export-file", "")) is not None:
        raise UsageError(
            "a job with --export-file=FD cannot be elastic: a descriptor can be read only once; name a file"
        )
    if "hold" in merged and not line.has("hold"):
        raise UsageError("#SBATCH --hold would hold each companion, too: use --hold on the command line")


def _folder(stated: str, chdir: str) -> str:
    """The name of its directory, without the base job's id at its end; all nodes must see it."""
    if stated and not os.path.isabs(stated):
        raise UsageError(f"$SLURM_PAL_ELASTIC_DIR = {stated!r} is not an absolute path")
    return os.path.join(stated, "") if stated else os.path.join(os.getcwd(), chdir, FOLDER)


def _output(own: str) -> str | None:
    """The folder of the companions' output files: that of the base job's, whose name may be of one file only."""
    if own.startswith("/dev/"):
        return None
    folder = os.path.dirname(own)
    return "" if set("%\\") & set(folder) else folder  # it would depend on the job, or replace nothing in the name


def part(wanted: Elastic, base: int | None) -> bytes:
    """What the job does beside its script (`elastic.sh`): in the base job (None), or in a companion of that job.

    Raises OSError if it cannot be read.
    """
    with open(os.path.join(os.path.dirname(__file__), "elastic.sh"), "rb") as stream:
        template = stream.read()
    filled = {
        "ROLE": "base" if base is None else "companion", "BASE": "" if base is None else str(base),
        "MIN": str(wanted.least), "MAX": str(wanted.most), "FOLDER": wanted.folder,
        "HOOK": wanted.hook if base is None else "", "BEAT": f"{wanted.beat_s:g}", "STALE": f"{wanted.stale_s:g}",
        "WAIT": f"{wanted.wait_s:g}",
    }  # fmt: skip
    return re.sub(rb"@([A-Z]+)@", lambda place: checkpoint.quoted(os.fsencode(filled[place[1].decode()])), template)


def companions(wanted: Elastic, line: CommandLine, base: int | str) -> list[list[str]]:
    """The commands that submit the companions of a base job, the earliest first. `line` names what sbatch gets."""
    mark = {marks.COMPANION: str(base)}
    words = [
        "sbatch", *without(without(line.before, "hold"), "nodes"), "--parsable", "--nodes=1",
        *([f"--ntasks={wanted.tasks}"] if wanted.tasks else []), "--requeue", "--open-mode=append",
        f"--job-name=pal-elastic-{base}", f"--comment={marks.put(wanted.comment, mark) or marks.word(mark)}",
        f"--dependency=after:{base}",
    ]  # fmt: skip
    if wanted.output is not None:
        output = os.path.join(wanted.output, f"slurm-{base}-companion-%j.out")
        words += [f"--output={output}", *([f"--error={output}"] if wanted.error else [])]
    if wanted.fork:
        words.append(f"--nice={LAST_NICE}")
    if wanted.partition:
        words.append(f"--partition={wanted.partition}")
    if wanted.mail:
        words.append("--mail-type=NONE")
    return [
        [*words, f"--begin=now+{wanted.spacing_s * number:.0f}seconds", *line.after]
        for number in range(1, wanted.most - wanted.least + 1)
    ]


def wrapped(
    wanted: Elastic, line: CommandLine, script: Script | None, base: int, site: SiteOptions
) -> tuple[str, bytes, CommandLine]:
    """As `checkpoint.wrapped`, for the companions of a base job. Raises CannotWrap or OSError."""
    return checkpoint.wrapped(line, script, "", site, part(wanted, base))


def submit(program: SbatchProgram, commands: Sequence[Sequence[str]]) -> tuple[list[int], str]:
    """Run these commands of sbatch until one fails: (ids of the jobs, why no more; "" for all)."""
    run, made = runner(SUBMIT_S), list[int]()
    for words in commands:
        try:
            done = run.start([program.path, *program.argv(list(words))[1:]], "", os.environ)()
        except SlurmError as error:
            return made, str(error)
        job_id = digits(done.stdout.strip().partition(";")[0])
        if done.returncode or job_id is None:
            said = done.stderr.strip().splitlines() or [f"sbatch ended with {done.returncode}"]
            return made, said[-1].strip()
        made.append(job_id)
    return made, ""
