"""The command-line backend: scontrol, squeue, sbatch and scancel (22.05 and later)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurm_pal.cluster import Node, Partition
from slurm_pal.errors import NotNowError, SlurmError, UsageError
from slurm_pal.hostlist import fold
from slurm_pal.jobs import SlurmJob
from slurm_pal.slurm import parse, releases
from slurm_pal.slurm.client import Completed, Overview, Runner
from slurm_pal.slurm.states import job_state

NOT_IN_PATH = "apt-get install slurm-client, or load your site's Slurm"
_NOT_NOW = "Resource temporarily unavailable"  # EAGAIN: from 24.11 on of a pending job that a scheduling cycle looks at
_PROMPT = "scontrol: "
_TASK = re.compile(r"JobId=\d+ ArrayJobId=")
_FOREIGN = ("SQUEUE_", "SINFO_", "SBATCH_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
"""Variables that change what Slurm's commands print or do; never meant for our own calls."""


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: this process's) for our own Slurm calls: the user's display settings left out."""
    kept = {k: v for k, v in (os.environ if environ is None else environ).items() if not k.startswith(_FOREIGN)}
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def subprocess_runner(timeout_s: float = 30.0, environ: Mapping[str, str] | None = None) -> Runner:
    """A runner that starts real processes, in `environ` or our own environment, and gives each `timeout_s` seconds.

    The runner raises SlurmError when the command is missing or does not answer in time.
    """

    def run(argv: Sequence[str], stdin: str) -> Completed:
        import subprocess

        try:
            done = subprocess.run(
                list(argv),
                input=stdin.encode(),
                capture_output=True,
                timeout=timeout_s,
                env=clean_environment(environ),
                check=False,
            )
        except FileNotFoundError:
            raise SlurmError(f"{argv[0]} is not in PATH: {NOT_IN_PATH}") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{argv[0]} did not answer within {timeout_s:g} s: see scontrol ping") from None
        except OSError as error:
            raise SlurmError(f"{argv[0]} cannot be started: {error.strerror}") from None
        return Completed(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    return run


class CliClient:
    """`SlurmClient` over Slurm's own commands. See slurm.client for the contract."""

    def __init__(self, runner: Runner | None = None, timeout_s: float = 30.0) -> None:
        self._run = runner or subprocess_runner(timeout_s)

    def overview(self, reservations: bool = False, marked: bool = False) -> Overview:
        # One interactive scontrol answers all questions: half the processes, and the
        # answers lie milliseconds apart.
        # Jobs come last: their lines hold texts of users, see `_records`.
        return self._ask("node", "partition", *(["reservation"] if reservations else []), "job", marked=marked)

    def _ask(self, *kinds: str, marked: bool = False) -> Overview:
        """What one interactive scontrol shows of these kinds. Raises SlurmError when it is nothing."""
        done = self._show(kinds)
        nodes: list[Node] = []
        partitions: list[Partition] = []
        jobs: list[SlurmJob] = []
        queued: set[tuple[str, str]] = set()
        reserved: dict[str, tuple[str, ...]] = {}
        records = _records(done.stdout)
        for line in self._own_records(records):
            if parse.holds_or_claims(line, marked):
                jobs.append(parse.job(line))
            elif marked and (waits := parse.queued(line)) is not None:
                queued.add(waits)
        for line in records:
            if line.startswith("NodeName="):
                nodes.append(parse.node(line))
            elif line.startswith("PartitionName="):
                partitions.append(parse.partition(line))
            elif line.startswith("ReservationName="):
                reserved.update(filter(None, [parse.reservation(line)]))
        if not partitions or ("node" in kinds and not nodes):
            raise SlurmError(f"scontrol shows no nodes: {_complaint(done) or 'the cluster is empty'}")
        return Overview(tuple(nodes), tuple(jobs), tuple(partitions), reserved, frozenset(queued))

    def nodes(self) -> tuple[Node, ...]:
        done = self._checked(["scontrol", "show", "node", "-d", "-o"])
        return tuple(parse.node(line) for line in _records(done.stdout) if line.startswith("NodeName="))

    def jobs(self) -> tuple[SlurmJob, ...]:
        done = self._checked(["scontrol", "show", "job", "-d", "-o"])
        return tuple(parse.job(line) for line in self._own_records(_records(done.stdout)))

    def job(self, job_id: int) -> SlurmJob | None:
        done = self._run(["scontrol", "show", "job", "-d", "-o", str(int(job_id))], "")
        found = [parse.job(line) for line in _records(done.stdout) if line.startswith("JobId=")]
        if not found and done.returncode != 0 and "Invalid job id" not in done.stderr:
            raise SlurmError(f"scontrol show job {job_id} failed: {_complaint(done)}")
        return found[0] if found else None

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        if not job_ids:
            return {}
        return {job_id: parse.job(line) for job_id, line in self._records_of(job_ids).items()}

    def _own_records(self, records: Sequence[str]) -> list[str]:
        """Of the records those of jobs, each job's own. Raises SlurmError.

        A job's name may hold a line end and what looks like another job's record: where an id
        comes twice, that job is asked for by itself.
        """
        found: dict[int, str] = {}
        twice: set[int] = set()
        for job_id, line in _jobs(records):
            if job_id in found:
                twice.add(job_id)
            found[job_id] = line
        if twice:
            own = self._records_of(sorted(twice))
            found = {job_id: line for job_id, line in found.items() if job_id not in twice} | own
        return list(found.values())

    def _records_of(self, job_ids: Sequence[int]) -> dict[int, str]:
        """The own records of these jobs, as far as slurmctld knows them, in one process. Raises SlurmError.

        A word that nobody can guess parts the answers. What stands behind the job's own record
        is a text of its user, or another task of an array.
        """
        mark = f"pal{os.urandom(8).hex()}"
        done = self._show([what for job_id in job_ids for what in (f"job {int(job_id)}", f"hostnames {mark}")])
        complaints = [line for line in done.stderr.splitlines() if line.strip() and "Invalid job id" not in line]
        if complaints or (done.returncode != 0 and not done.stderr):
            raise SlurmError(f"scontrol show job failed: {_complaint(done._replace(stderr=''.join(complaints[:1])))}")
        answers = re.split(rf"^(?:{re.escape(_PROMPT)})*{mark}\n", done.stdout, flags=re.MULTILINE)
        found: dict[int, str] = {}
        for job_id, answer in zip(job_ids, answers, strict=False):
            lines = _jobs(_records(answer))
            mine = [line for number, line in lines if number == job_id][:1]
            if mine and not _TASK.match(mine[0]):
                mine = [line for _, line in lines]
            if mine:
                found[job_id] = " ".join(mine)
        return found

    def job_states(self, name_prefix: str = "", user: str = "") -> dict[int, tuple[str, str]]:
        # A name may hold a line end and what looks like another job's line: only one's own are asked for theirs.
        form = ["%A|%T|%r|%j", "--me"] if name_prefix else ["%A|%T|%r"]
        argv = ["squeue", "-h", "-a", "-t", "all", "-o", *form, *(["-u", user] if user else [])]
        states: dict[int, tuple[str, str]] = {}
        for line in self._checked(argv).stdout.splitlines():
            job_id, state, reason, name = (*line.split("|", 3), "", "", "")[:4]
            if job_id.isdigit() and name.startswith(name_prefix):
                states[int(job_id)] = (job_state(state), reason)
        return states

    def submit(self, argv: Sequence[str], script: str) -> int:
        done = self._checked(["sbatch", "--parsable", *argv], script)
        job_id = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
        if not job_id.isdigit():
            raise SlurmError(f"sbatch printed no job id but {done.stdout.strip()!r}")
        return int(job_id)

    def update_job(self, job_id: int, **fields: str) -> None:
        self._checked(["scontrol", "update", f"JobId={int(job_id)}", *_assignments(fields)])

    def cancel(self, job_ids: Sequence[int], pending_only: bool = False) -> None:
        if not job_ids:
            return
        argv = ["scancel", "-Q", *(["--state=PENDING"] if pending_only else []), *(str(int(j)) for j in job_ids)]
        done = self._run(argv, "")
        if done.returncode != 0 and "Invalid job id" not in done.stderr and "already completing" not in done.stderr:
            raise SlurmError(f"scancel failed: {_complaint(done)}")

    def signal_batch(self, job_id: int, name: str) -> None:
        self._checked(["scancel", "-b", "-s", name, str(int(job_id))])

    def requeue(self, job_id: int) -> None:
        # Without "Incomplete" a job that has just ended would come back and run twice.
        self._checked(["scontrol", "requeue", "Incomplete", str(int(job_id))])

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        if names:
            self._checked(["scontrol", "update", f"NodeName={fold(list(names))}", *_assignments(fields)])

    def statistics(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in self._checked(["sdiag"]).stdout.splitlines():
            key, colon, text = line.partition(":")
            if colon and text.strip():
                pairs.setdefault(key.strip(), text.strip())
        return pairs

    def version(self) -> tuple[int, int]:
        return releases.printed(self._checked(["scontrol", "--version"]).stdout, "scontrol --version")

    def config(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in self._checked(["scontrol", "show", "config"]).stdout.splitlines():
            key, sign, text = line.partition("=")
            if sign:
                pairs.setdefault(key.strip(), text.strip())
        return pairs

    def _show(self, what: Sequence[str]) -> Completed:
        """One interactive scontrol that shows all of this, one line for each record."""
        return self._run(["scontrol", "-d", "-o"], "\n".join([*(f"show {kind}" for kind in what), "quit", ""]))

    def _checked(self, argv: Sequence[str], stdin: str = "") -> Completed:
        done = self._run(argv, stdin)
        if done.returncode != 0:
            kind = NotNowError if _NOT_NOW in done.stderr else SlurmError
            raise kind(f"{argv[0]} failed: {_complaint(done)}")
        return done


def _assignments(fields: Mapping[str, str]) -> list[str]:
    """Words for `scontrol update`. Raises UsageError for a control character, which could be read as another word."""
    for key, text in fields.items():
        if not text.isprintable():
            raise UsageError(f"{key}={text!r} holds a control character")
    return [f"{key}={text}" for key, text in fields.items()]


def _records(stdout: str) -> list[str]:
    """The records in Slurm's output: one for each line, but a job's goes on to where the next job begins.

    A job's name, comment and (from 26.05 on) command line may hold line ends. What stands
    after them is still the job's, and does not become a node or a reservation by beginning
    like one; a blank takes the place of the line end. An interactive scontrol may put its
    prompt before a line, and echo its input.
    """
    records: list[str] = []
    for line in stdout.split("\n"):
        text = line
        while text.startswith(_PROMPT):
            text = text[len(_PROMPT) :]
        in_job = bool(records) and records[-1].startswith("JobId=")
        if text.startswith("JobId=") or not in_job:
            records.append(text)
        elif text and not line.startswith(_PROMPT):
            records[-1] += f" {line}"
    return records


def _jobs(records: Sequence[str]) -> list[tuple[int, str]]:
    """Those of jobs, each with its id as it will be read."""
    return [(parse.whole(line[len("JobId=") :]), line) for line in records if line.startswith("JobId=")]


def _complaint(done: Completed) -> str:
    """The first line of what a command said on stderr, else its exit code."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[0] if lines else f"exit code {done.returncode}"
