# SPDX-License-Identifier: MIT
"""The command-line backend: scontrol, squeue, sbatch and scancel (22.05 and later)."""

from __future__ import annotations

from slurm_pal.base.cluster import Counting, Node
from slurm_pal.base.errors import NotNowError, SlurmError, UsageError
from slurm_pal.base.files import slurm_conf
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import Callable, Mapping, Sequence, pattern
from slurm_pal.base.numbers import digits
from slurm_pal.slurm import parse, question, releases, told, topology
from slurm_pal.slurm.client import Completed, Overview, Runner
from slurm_pal.slurm.question import NOT_IN_PATH
from slurm_pal.slurm.sealed import PROMPT, Sealed
from slurm_pal.slurm.site_conf import site_counting
from slurm_pal.slurm.states import job_state

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    import subprocess

NOT_NOW = "Resource temporarily unavailable"  # EAGAIN: from 24.11 on, for a pending job that is in a scheduling cycle
_VERSION = pattern(r" Version=([0-9]{1,4})\.([0-9]{1,4})")
_TASK = pattern(r"JobId=[0-9]+ (?:Array|Het)JobId=")


class Processes:
    """A runner that starts real processes. It raises SlurmError if one is missing or does not answer in time."""

    def __init__(self, timeout_s: float, environ: Mapping[str, str] | None) -> None:
        self._timeout_s, self._environ = timeout_s, environ

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        return self._answer(self._process(argv), argv, stdin)

    def start(self, argv: Sequence[str], stdin: str) -> Callable[[], Completed]:
        """Start a command and read its answer while others run; call the returned function to wait for the answer."""
        import threading

        process = self._process(argv)
        found: list[Completed] = []
        failed: list[SlurmError] = []

        def collect() -> None:
            try:
                found.append(self._answer(process, argv, stdin))
            except SlurmError as error:
                failed.append(error)

        # A pipe holds 64 kB: unless it is read, the command blocks.
        reader = threading.Thread(target=collect, daemon=True)
        reader.start()

        def wait() -> Completed:
            try:
                reader.join()
            except BaseException:
                process.kill()
                raise
            if failed:
                raise failed[0]
            return found[0]

        return wait

    def _process(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        import subprocess

        pipe = subprocess.PIPE
        try:
            env = told.clean_environment(self._environ)
            return subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        except FileNotFoundError:
            raise SlurmError(f"{argv[0]} is not in PATH: {NOT_IN_PATH}") from None
        except OSError as error:
            raise SlurmError(f"{argv[0]} cannot be started: {error.strerror}") from None

    def _answer(self, process: subprocess.Popen[bytes], argv: Sequence[str], stdin: str) -> Completed:
        import subprocess

        try:
            out, err = process.communicate(stdin.encode(), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{argv[0]} did not answer within {self._timeout_s:g} s: see scontrol ping") from None
        finally:
            if process.returncode is None:
                process.kill()
                process.communicate()
        return Completed(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def subprocess_runner(timeout_s: float = 30.0, environ: Mapping[str, str] | None = None) -> Processes:
    """A runner of real processes, in `environ` or our own environment, with `timeout_s` seconds for each."""
    return Processes(timeout_s, environ)


class CliClient:
    """`SlurmClient` over Slurm's own commands. See slurm.client for the contract."""

    def __init__(
        self, runner: Runner | None = None, timeout_s: float = 30.0, asked: question.Question | None = None,
        conf: str = "",
    ) -> None:  # fmt: skip
        """`asked`: commands started in advance, for the first overview. `conf`: the slurm.conf whose defaults count;
        "": the one in force, with a runner of the caller's own none."""
        self._run = runner or subprocess_runner(timeout_s)
        self._own, self._timeout_s = runner, timeout_s
        self._asked = asked
        self._conf = conf or ("" if runner else slurm_conf())

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        kinds, fields = told.kinds(reservations), told.ALL if marked else told.FEW
        asked, self._asked = self._asked, None
        if asked is None or (asked.kinds, asked.fields) != (kinds, fields):
            asked = question.begin(self._run, kinds, fields)
        try:
            done = asked.scontrol()
            texts = sections(kinds, asked.part, done)
            seen = self._clear_of_jobs(texts, done)  # while squeue may still be at work
        finally:
            listed = asked.squeue()
        if "job" not in texts:
            raise SlurmError(f"scontrol ended before it had shown all jobs: {_complaint(done)}")
        rows = self._rows(listed, fields, asked.word)
        jobs, queued = Sealed(texts["job"], rows, self._answers).counting(marked, whole)
        return seen._replace(jobs=fitting(jobs, seen.nodes), queued=queued)

    def _rows(self, listed: Completed, fields: Sequence[str], word: str) -> dict[int, dict[str, str]]:
        if listed.returncode != 0:
            raise SlurmError(f"squeue failed: {_complaint(listed)}")
        return told.rows(listed.stdout, fields, word)

    def _clear_of_jobs(self, sections: Mapping[str, str], done: Completed) -> Overview:
        """Nodes, partitions and reservations, which only administrators write. Raises SlurmError if there are none."""
        lines = {kind: _lines(text) for kind, text in sections.items() if kind != "job"}
        nodes = [parse.node(line) for line in lines.get("node", ()) if line.startswith("NodeName=")]
        site = site_counting(self._conf) if self._conf else Counting()
        found = [parse.partition(line) for line in lines.get("partition", ()) if line.startswith("PartitionName=")]
        found = [partition._replace(counting=partition.counting.over(site)) for partition in found]
        reserved: dict[str, tuple[str, ...]] = {}
        for line in lines.get("reservation", ()):
            if line.startswith("ReservationName="):
                reserved.update(filter(None, [parse.reservation(line)]))
        if not found or ("node" in sections and not nodes):
            raise SlurmError(f"scontrol shows no nodes: {_complaint(done) or 'the cluster is empty'}")
        network = topology.parse(sections.get("topology", ""))
        if network.kind == topology.BLOCK:  # slurmctld is never older than a slurmd
            versions = _VERSION.findall(sections.get("node", ""))
            network = network._replace(release=max(((int(y), int(m)) for y, m in versions), default=(0, 0)))
        return Overview(tuple(nodes), (), tuple(found), reserved, network=network)

    def nodes(self) -> tuple[Node, ...]:
        done = self._checked(["scontrol", "show", "node", "-d", "-o"])
        return tuple(parse.node(line) for line in _lines(done.stdout) if line.startswith("NodeName="))

    def jobs(self) -> tuple[SlurmJob, ...]:
        word = told.mark()
        squeue = question.started(self._run, told.argv(told.ALL, word), "")
        try:
            done = self._checked(["scontrol", "show", "job", "-d", "-o"])
        finally:
            listed = squeue()
        rows = self._rows(listed, told.ALL, word)
        records = Sealed(done.stdout, rows, self._answers)
        return tuple(records.job(job_id) for job_id in sorted(rows))

    def job(self, job_id: int) -> SlurmJob | None:
        return self.jobs_of([job_id]).get(job_id)

    def jobs_of(self, job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        if not job_ids:
            return {}
        return {job_id: parse.job(line) for job_id, line in self._records_of(job_ids).items()}

    def _records_of(self, job_ids: Sequence[int]) -> dict[int, str]:
        """The jobs' own records, of those jobs that slurmctld knows, from one process. Raises SlurmError."""
        found: dict[int, str] = {}
        for job_id, answer in self._answers(job_ids).items():
            lines = _jobs(_records(answer))
            mine = [line for number, line in lines if number == job_id][:1]
            if mine and not _TASK.match(mine[0]):
                mine = [line for _, line in lines]
            if mine:
                found[job_id] = " ".join(mine)
        return found

    def _answers(self, job_ids: Sequence[int]) -> dict[int, str]:
        """What scontrol shows of each of these jobs, from one process. Raises SlurmError.

        A word that nobody can guess separates the answers. What follows the job's own record
        is text of its user, another task of an array, or part of a heterogeneous job.
        """
        part = told.mark()
        done = self._show([what for job_id in job_ids for what in (f"job {int(job_id)}", f"hostnames {part}")])
        complaints = [line for line in done.stderr.splitlines() if line.strip() and "Invalid job id" not in line]
        if complaints or (done.returncode != 0 and not done.stderr):
            raise SlurmError(f"scontrol show job failed: {_complaint(done._replace(stderr=''.join(complaints[:1])))}")
        parts = _parted(part, done)[:-1]
        if len(parts) < len(job_ids):  # a job without an answer is not a job that is gone
            raise SlurmError(f"scontrol ended before it had shown {len(job_ids)} jobs: {_complaint(done)}")
        return dict(zip(job_ids, parts, strict=True))

    def tasks(self, array_id: int, indexes: Sequence[int]) -> dict[int, int]:
        fields, word = ("jobid", "arrayjobid", "arraytaskid"), told.mark()
        done = self._run(told.argv(fields, word, "-j", str(int(array_id))), "")
        if done.returncode != 0:
            if "Invalid job id" in done.stderr:
                return {}
            raise SlurmError(f"squeue failed: {_complaint(done)}")
        rows = told.rows(done.stdout, fields, word).items()
        tasks = {
            job_id: row["arraytaskid"].strip() for job_id, row in rows if digits(row["arrayjobid"].strip()) == array_id
        }
        own = {task: job_id for job_id, text in reversed(tasks.items()) if (task := digits(text)) is not None}
        waiting = tasks.get(array_id, "")
        found = {index: own[index] for index in indexes if index in own}
        return found | {i: array_id for i in indexes if i not in own and parse.has_task(waiting, i)}

    def job_states(self, name_prefix: str = "", user: str = "") -> dict[int, tuple[str, str]]:
        fields, word = ("jobid", "state", "reason", "name"), told.mark()
        filters = [*(["--me"] if name_prefix else []), *(["-u", user] if user else [])]
        rows = told.rows(self._checked(told.argv(fields, word, *filters)).stdout, fields, word)
        return {
            job_id: (job_state(row["state"]), parse.reason(row["reason"]))
            for job_id, row in rows.items()
            if row["name"].startswith(name_prefix)
        }

    def submit(self, argv: Sequence[str], script: str) -> int:
        run = self._own or subprocess_runner(self._timeout_s, told.job_environment())
        done = self._checked(["sbatch", "--parsable", *argv], script, run)
        job_id = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
        number = digits(job_id)
        if number is None:
            raise SlurmError(f"sbatch printed no job id but {done.stdout.strip()!r}")
        return number

    def update_job(self, job_id: int, **fields: str) -> None:
        self._checked(["scontrol", "update", f"JobId={int(job_id)}", *_assignments(fields)])

    def update_jobs(self, job_ids: Sequence[int], **fields: str) -> None:
        if job_ids:
            self._checked(
                ["scontrol", "update", f"JobId={','.join(str(int(j)) for j in job_ids)}", *_assignments(fields)]
            )

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

    def unhold(self, job_id: int) -> None:
        self._checked(["scontrol", "release", str(int(job_id))])

    def update_nodes(self, names: Sequence[str], **fields: str) -> None:
        if names:
            self._checked(["scontrol", "update", f"NodeName={fold(list(names))}", *_assignments(fields)])

    def update_partition(self, name: str, **fields: str) -> None:
        self._checked(["scontrol", "update", *_assignments({"PartitionName": name, **fields})])

    def reserve(self, name: str, node: str, minutes: int, user: str) -> None:
        fields = {
            "ReservationName": name,
            "StartTime": "now",
            "Duration": str(int(minutes)),
            "Nodes": node,
            "Users": user,
        }
        self._checked(["scontrol", "create", "reservation", *_assignments(fields)])

    def fence(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float, user: str) -> None:
        fields = {
            "ReservationName": name,
            "StartTime": f"now+{after_s:.0f}seconds",
            "EndTime": f"now+{after_s + lasts_s:.0f}seconds",
            "Nodes": fold(list(nodes)),
            "Users": user,
            "Flags": "IGNORE_JOBS",  # running jobs may last longer
        }
        self._checked(["scontrol", "create", "reservation", *_assignments(fields)])

    def release(self, name: str) -> None:
        done = self._run(["scontrol", "delete", *_assignments({"ReservationName": name})], "")
        if done.returncode != 0 and "invalid" not in done.stderr.lower():
            raise SlurmError(f"scontrol delete failed: {_complaint(done)}")

    def node_reason(self, name: str) -> str:
        text = self._checked(["scontrol", "show", "node", "-o", name]).stdout
        return next((parse.value(parse.fields(line), "Reason") for line in _lines(text)), "")

    def site_factors(self) -> dict[int, int]:
        rows = (line.split("|") for line in self._checked(["sprio", "-h", "-o", "%i|%S|"]).stdout.splitlines())
        pairs = ((digits(row[0].strip()), row[1].strip()) for row in rows if len(row) == 3)
        return {job_id: parse.signed(text) for job_id, text in pairs if job_id is not None}

    def statistics(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in self._checked(["sdiag"]).stdout.splitlines():
            key, colon, text = line.partition(":")
            if colon and text.strip():
                pairs.setdefault(key.strip(), text.strip())
        return pairs

    def version(self) -> tuple[int, int]:
        return releases.printed(self._checked(["scontrol", "--version"]).stdout, "scontrol --version")

    def cluster(self) -> str:
        return self.config().get("ClusterName", "")

    def config(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for line in self._checked(["scontrol", "show", "config"]).stdout.splitlines():
            key, sign, text = line.partition("=")
            if sign:
                pairs.setdefault(key.strip(), text.strip())
        return pairs

    def _show(self, what: Sequence[str]) -> Completed:
        """One interactive scontrol that shows all of this, one line for each record."""
        return self._run([*told.SCONTROL], told.shown(what))

    def _checked(self, argv: Sequence[str], stdin: str = "", run: Runner | None = None) -> Completed:
        done = (run or self._run)(argv, stdin)
        if done.returncode != 0:
            kind = NotNowError if NOT_NOW in done.stderr else SlurmError
            raise kind(f"{argv[0]} failed: {_complaint(done)}")
        return done


def _assignments(fields: Mapping[str, str]) -> list[str]:
    """Words for `scontrol update`. Raises UsageError for a control character, which could start another word."""
    for key, text in fields.items():
        if not text.isprintable():
            raise UsageError(f"{key}={text!r} holds a control character")
    return [f"{key}={text}" for key, text in fields.items()]


def sections(kinds: Sequence[str], part: str, done: Completed) -> dict[str, str]:
    """What an interactive scontrol showed of each of these kinds, without those whose end is missing."""
    return dict(zip(kinds, _parted(part, done)[:-1], strict=False))


def _parted(part: str, done: Completed) -> list[str]:
    """The text before each line that is this word, and after the last. scontrol may echo the word behind others."""
    found = [""]
    *pieces, last = done.stdout.split(f"{part}\n")
    for piece in pieces:
        text = found.pop() + piece
        bare = text[: _prompts_at(text)]
        found += [bare, ""] if not bare or bare.endswith("\n") else [f"{text}{part}\n"]
    return [*found[:-1], found[-1] + last]


def _prompts_at(text: str) -> int:
    """Where the prompts at the end of a text begin."""
    end = len(text)
    while text.endswith(PROMPT, 0, end):
        end -= len(PROMPT)
    return end


def fitting(jobs: Sequence[SlurmJob], nodes: Sequence[Node]) -> tuple[SlurmJob, ...]:
    """The jobs, without GPU indexes on nodes where they contradict the node's own count.

    Then only the count is believed: the answers are milliseconds apart, and only administrators
    write a node's texts.
    """
    room = {node.name: (node.n_gpus, node.gpus_used) for node in nodes}
    used: dict[str, list[int]] = {}
    for job in jobs:
        for name, indexes in job.gpus.items():
            used.setdefault(name, []).extend(indexes)
    wrong = {
        name
        for name, indexes in used.items()
        if indexes and (len(indexes) > room.get(name, (0, 0))[1] or max(indexes) >= room[name][0])
    }
    if not wrong:
        return tuple(jobs)
    return tuple(
        job._replace(gpus={name: () if name in wrong else row for name, row in job.gpus.items()})
        if not wrong.isdisjoint(job.gpus)
        else job
        for job in jobs
    )


def _lines(text: str) -> list[str]:
    """Lines without the prompt that an interactive scontrol may put before them."""
    return [line.removeprefix(PROMPT) if line.startswith(PROMPT) else line for line in text.split("\n")]


def _records(stdout: str) -> list[str]:
    """The records in the answer for one job: one per line, but a job's record runs to where the next job's begins.

    A job's name, comment and (from 26.05 on) command line may hold line ends; each becomes
    a blank. An interactive scontrol may put its prompt before a line, and echo its input.
    """
    records: list[str] = []
    for line in stdout.split("\n"):
        text = line
        while text.startswith(PROMPT):
            text = text[len(PROMPT) :]
        in_job = bool(records) and records[-1].startswith("JobId=")
        if text.startswith("JobId=") or not in_job:
            records.append(text)
        elif text and not line.startswith(PROMPT):
            records[-1] += f" {line}"
    return records


def _jobs(records: Sequence[str]) -> list[tuple[int, str]]:
    """The records of jobs, each with the id that will be read from it."""
    return [(parse.whole(line[len("JobId=") :]), line) for line in records if line.startswith("JobId=")]


def _complaint(done: Completed) -> str:
    """The first line of what a command said on stderr, else its exit code."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[0] if lines else f"exit code {done.returncode}"
