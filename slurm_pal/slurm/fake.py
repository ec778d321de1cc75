# SPDX-License-Identifier: MIT
"""A small Slurm in memory that speaks through Slurm's own commands and text forms.

`CliClient(FakeSlurm(...))` is the fake backend of the unit tests. Programs that start
sbatch themselves use it through `write_shims`, which puts sbatch, scontrol, squeue,
scancel and sdiag on PATH, all working on one state file. It keeps the rules that slurm-pal
depends on (docs/slurm.md): the smallest run of fitting neighbours, lowest free GPU index
first, hard node lists that do not change while a job runs, Reason=Resources for what does not
fit, requeued jobs that complete first and then wait for a delay; it has no priorities, memory
or time limits.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.parse import unix_s

_ON_NODES = ("RUNNING", "COMPLETING")
_REQUEUED_HELD = "job_requeued_in_held_state"
_HOLDS = {"hold": "JobHeldAdmin", "uhold": "JobHeldUser", "release": ""}
"""Which command leaves which reason on a job; for SlurmUser, whose plain hold is an administrator's."""
_LONG = {"w": "nodelist", "x": "exclude", "N": "nodes", "G": "gpus", "J": "job-name", "o": "output", "p": "partition",
         "t": "time", "n": "ntasks", "Q": "quiet", "c": "cpus-per-task", "C": "constraint", "H": "hold"}  # fmt: skip
_BARE = {"parsable", "exclusive", "no-requeue", "quiet", "test-only", "wait", "hold"}
REQUEUE_DELAY_S = 121.0
"""A requeued job waits this long, unless StartTime=now: Slurm's default cred_expire and a second."""


@dataclass
class FakeNode:
    """One node; `gpu_type` "" means untyped GPUs."""

    name: str
    gpus: int = 4
    gpu_type: str = ""
    state: str = "IDLE"
    features: str = ""
    weight: int = 1
    cpus: int = 16
    full: bool = False  # of something that Slurm counts and does not show: it starts no job


@dataclass
class FakeJob:
    """One job; `placed` maps nodes to GPU indexes once it runs."""

    job_id: int
    name: str
    options: dict[str, str]
    script: str
    state: str = "PENDING"
    reason: str = "None"
    placed: dict[str, list[int]] = field(default_factory=dict)
    submit_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    req: str = ""
    exc: str = ""
    comment: str = ""
    admin_comment: str = ""
    restarts: int = 0
    begin_s: float = 0.0  # it does not start earlier, Unix s
    completing: int = 0  # commands left until its run has ended
    then: str = ""  # its state after that
    signals: list[str] = field(default_factory=list)  # that its batch shell got


class FakeSlurm:
    """A runner for `CliClient`: interprets argv lists against nodes and jobs in memory.

    With `execute`, the script of a job that starts is run at once, to its end, in a
    child process with the variables of a real job. Otherwise jobs run until `finish`.
    `down` makes every command fail as with a dead controller. A requeued job is
    COMPLETING during the next `completing` commands.
    """

    def __init__(
        self, nodes: Sequence[FakeNode] = (), execute: bool = False, version: str = "22.05.8",
        clock: Callable[[], float] = time.time, completing: int = 0,
    ) -> None:  # fmt: skip
        self.nodes = {node.name: node for node in nodes or [FakeNode(f"n{i}") for i in range(4)]}
        self.jobs: dict[int, FakeJob] = {}
        self.execute = execute
        self.version = version
        self.clock, self.completing = clock, completing
        self.down = False
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        self.calls.append(list(argv))
        command = os.path.basename(argv[0])
        handler = {"sbatch": self._sbatch, "scontrol": self._scontrol, "squeue": self._squeue,
                   "scancel": self._scancel, "sdiag": self._sdiag}  # fmt: skip
        if command not in handler:
            raise SlurmError(f"{command} is not in PATH: apt-get install slurm-client, or load your site's Slurm")
        if self.down:
            return Completed(1, "", f"{command}: error: Unable to contact slurm controller (connect failure)\n")
        done = handler[command](list(argv[1:]), stdin)
        if command != "squeue":  # run beside scontrol, it sees the same moment
            self._complete()
            self.schedule()
        return done

    def finish(self, job_id: int, state: str = "COMPLETED") -> None:
        """End a running job and let the next ones start."""
        job = self.jobs[job_id]
        job.state, job.reason, job.end_s = state, "None", self.clock()
        self.schedule()

    def _complete(self) -> None:
        """Count down the commands until stopped runs have ended."""
        for job in self.jobs.values():
            if job.state == "COMPLETING":
                job.completing -= 1
                if job.completing < 0:
                    job.state, job.then, job.placed = job.then, "", {}

    def schedule(self) -> None:
        """Start what fits, in order of submission."""
        for job in sorted(self.jobs.values(), key=lambda j: j.job_id):
            if job.state == "PENDING" and self._eligible(job):
                placed = self._fit(job)
                if placed is None:
                    job.reason = "Resources"
                else:
                    job.placed, job.state, job.reason, job.start_s = placed, "RUNNING", "None", self.clock()
                    if self.execute:
                        self._execute(job)

    def _eligible(self, job: FakeJob) -> bool:
        if job.begin_s and not _held(job):
            job.reason = "BeginTime" if self.clock() < job.begin_s else "None"
            job.begin_s = job.begin_s if job.reason == "BeginTime" else 0.0
        return not _held(job) and not job.reason.startswith(("Dependency", "BeginTime"))

    def _free(self, node: FakeNode) -> list[int]:
        used = {k for job in self.jobs.values() if job.state in _ON_NODES for k in job.placed.get(node.name, [])}
        return [k for k in range(node.gpus) if k not in used]

    def _busy(self, node: FakeNode) -> bool:
        return any(job.state in _ON_NODES and node.name in job.placed for job in self.jobs.values())

    def _fit(self, job: FakeJob) -> dict[str, list[int]] | None:
        required, excluded = set(expand(job.req)), set(expand(job.exc))
        per_node, total, n_nodes = _gpu_request(job.options)
        exclusive = "exclusive" in job.options
        placed: dict[str, list[int]] = {}
        names = self._order(required, excluded, per_node, n_nodes)
        for name in names:
            node, free = self.nodes[name], self._free(self.nodes[name])
            if node.state != "IDLE" or node.full or name in excluded or (exclusive and self._busy(node)):
                continue
            count = per_node if per_node is not None else min(len(free), total - sum(map(len, placed.values())))
            if len(free) >= count and (count or not total) and len(placed) < n_nodes:
                placed[name] = free if exclusive else free[:count]
        complete = sum(map(len, placed.values())) >= total if per_node is None else len(placed) == n_nodes
        return placed if complete and required <= set(placed) else None

    def _order(self, required: set[str], excluded: set[str], per_node: int | None, n_nodes: int) -> list[str]:
        """Nodes as Slurm tries them: required ones, the smallest run of fitting neighbours, the rest."""
        runs: list[list[str]] = [[]]
        for name, node in self.nodes.items():
            if name not in excluded and node.state == "IDLE" and len(self._free(node)) >= (per_node or 1):
                runs[-1].append(name)
            else:
                runs.append([])
        enough = [run for run in runs if per_node is not None and len(run) >= n_nodes]
        best = min(enough, key=lambda run: sum(self._cpus_free(name) for name in run), default=[])
        return sorted(self.nodes, key=lambda n: (n not in required, self.nodes[n].weight, n not in best))

    def _cpus_free(self, name: str) -> int:
        jobs = (job for job in self.jobs.values() if job.state in _ON_NODES and name in job.placed)
        return self.nodes[name].cpus - sum(self.nodes[name].cpus if "exclusive" in job.options else 1 for job in jobs)

    def _execute(self, job: FakeJob) -> None:
        node, indexes = next(iter(job.placed.items()))
        listed = ",".join(map(str, indexes))
        env = dict(
            os.environ, SLURM_JOB_ID=str(job.job_id), SLURMD_NODENAME=node, SLURM_JOB_NODELIST=fold(list(job.placed))
        )
        env |= {"SLURM_JOB_GPUS": listed, "CUDA_VISIBLE_DEVICES": listed, "SLURM_JOB_NUM_NODES": str(len(job.placed))}
        shell = job.script.partition("\n")[0].removeprefix("#!").strip() or "/bin/sh"
        done = subprocess.run([*shell.split(), "-"] if shell.endswith("sh") else [shell], input=job.script.encode(),
                              env=env, capture_output=True, check=False)  # fmt: skip
        output = job.options.get("output")
        if output:
            write_atomic(output.replace("%j", str(job.job_id)), done.stdout + done.stderr, 0o644)
        job.state, job.end_s = ("COMPLETED" if done.returncode == 0 else "FAILED"), self.clock()

    def _sbatch(self, argv: list[str], stdin: str) -> Completed:
        options, rest = _options(argv)
        script = stdin
        if rest and "wrap" not in options:
            try:
                with open(rest[0], encoding="utf-8", errors="surrogateescape") as stream:
                    script = stream.read()
            except OSError:
                return Completed(1, "", f"sbatch: error: Unable to open file {rest[0]}\n")
        elif "wrap" in options:
            script = f"#!/bin/sh\n{options['wrap']}\n"
        if not script.startswith("#!"):
            return Completed(1, "", "sbatch: error: This does not look like a batch script.\n")
        directives = [w for line in script.splitlines() if line.startswith("#SBATCH") for w in line.split()[1:]]
        options = _options(directives)[0] | options
        unknown = set(expand(options.get("nodelist", ""))) - set(self.nodes)
        if unknown:
            text = "sbatch: error: Batch job submission failed: Invalid node name specified\n"
            return Completed(1, "", text)
        number = max(self.jobs, default=0) + 1
        default_name = os.path.basename(rest[0]) if rest else "wrap" if "wrap" in options else "sbatch"
        self.jobs[number] = FakeJob(
            job_id=number,
            name=options.get("job-name", default_name),
            options=options,
            script=script,
            req=options.get("nodelist", ""),
            exc=options.get("exclude", ""),
            comment=options.get("comment", ""),
            reason="JobHeldUser" if "hold" in options else "None",
            submit_s=self.clock(),
        )
        if "quiet" in options:
            return Completed(0, "", "")
        return Completed(0, f"{number}\n" if "parsable" in options else f"Submitted batch job {number}\n", "")

    def _scancel(self, argv: list[str], stdin: str) -> Completed:
        pending_only = "--state=PENDING" in argv
        if "-s" in argv:
            return self._signal(int(argv[-1]), argv[argv.index("-s") + 1])
        for word in argv:
            job = self.jobs.get(int(word)) if word.isdigit() else None
            if job and job.state in ("PENDING", *([] if pending_only else ["RUNNING"])):
                job.state, job.end_s = "CANCELLED", self.clock()
            elif job and job.state == "COMPLETING" and not pending_only:
                job.then = "CANCELLED"
        return Completed(0, "", "")

    def _signal(self, job_id: int, name: str) -> Completed:
        job = self.jobs.get(job_id)
        if job is None or job.state != "RUNNING":
            return Completed(1, "", f"scancel: error: Kill job error on job id {job_id}: Invalid job id specified\n")
        job.signals.append(name)
        return Completed(0, "", "")

    def _sdiag(self, argv: list[str], stdin: str) -> Completed:
        return Completed(0, "Server thread count:  3\nAgent queue size:     0\nJobs pending:   0\n", "")

    def _squeue(self, argv: list[str], stdin: str) -> Completed:
        if "-O" in argv:
            return self._fields(argv[argv.index("-O") + 1])
        form = argv[argv.index("-o") + 1] if "-o" in argv else "%A %T"
        ids = argv[argv.index("-j") + 1].split(",") if "-j" in argv else None
        lines = []
        for job in self.jobs.values():
            if (ids is None or str(job.job_id) in ids) and ("all" in argv or job.state in ("PENDING", *_ON_NODES)):
                values = {
                    "%A": str(job.job_id),
                    "%i": str(job.job_id),
                    "%T": job.state,
                    "%t": {"PENDING": "PD", "RUNNING": "R"}.get(job.state, "CD"),
                    "%r": job.reason,
                    "%j": job.name,
                    "%N": fold(list(job.placed)),
                }
                line = form
                for mark, text in values.items():
                    line = line.replace(mark, text)
                lines.append(line + "\n")
        return Completed(0, "".join(lines), "")

    def _fields(self, form: str) -> Completed:
        """squeue(1), --Format: each field in full width, then the text that is to follow it."""
        asked = [field.split(":", 1) for field in form.split(",")]
        lines = []
        for job in self.jobs.values():
            per_node, total, _ = _gpu_request(job.options)
            known = {
                "jobid": str(job.job_id), "userid": str(os.getuid()), "state": job.state, "reason": job.reason,
                "name": job.name, "nodelist": fold(list(job.placed)), "allocnodes": "login",
                "comment": job.comment or "(null)", "admin_comment": job.admin_comment or "(null)",
                "tres-per-node": f"gres:gpu:{per_node}" if per_node else "N/A",
                "tres-per-job": f"gres:gpu:{total}" if total and not per_node else "N/A",
            }  # fmt: skip
            lines.append("".join(known.get(field, "(null)") + suffix for field, suffix in asked) + "\n")
        return Completed(0, "".join(lines), "")

    def _scontrol(self, argv: list[str], stdin: str) -> Completed:
        words = [w for w in argv if w not in ("-d", "-o", "-a", "-Q")]
        if not words:
            outputs = [self._show(line.split()[1:]) for line in stdin.splitlines() if line.startswith("show")]
            return Completed(0, "".join(done.stdout for done in outputs), "".join(done.stderr for done in outputs))
        if words == ["--version"]:
            return Completed(0, f"slurm {self.version}\n", "")
        if words[0] == "update":
            pairs = dict(w.split("=", 1) for w in words[1:])
            return self._update_nodes(pairs) if "NodeName" in pairs else self._update(pairs)
        if words[0] in ("requeue", "requeuehold"):
            return self._requeue(int(words[-1]), "Incomplete" in words, words[0] == "requeuehold")
        if words[0] in ("hold", "uhold", "release"):
            return self._hold(int(words[-1]), _HOLDS[words[0]])
        if words[0] == "ping":
            return Completed(0, "Slurmctld(primary) at fake is UP\n", "")
        return self._show(words[1:])

    def _update(self, pairs: dict[str, str]) -> Completed:
        job = self.jobs.get(int(pairs.get("JobId", "0")))
        if job is None or job.state not in ("PENDING", *_ON_NODES):
            return Completed(1, "", "slurm_update error: Invalid job id specified\n")
        req, exc = pairs.get("ReqNodeList", job.req), pairs.get("ExcNodeList", job.exc)
        changed = set(expand(req)) != set(expand(job.req)) or "ExcNodeList" in pairs
        if not set(expand(req)) <= set(self.nodes) or (changed and job.state == "RUNNING"):
            return Completed(1, "", f"Invalid node name specified for job {job.job_id}\n")
        job.req, job.exc = req, exc
        job.comment = pairs.get("Comment", job.comment)
        job.admin_comment = pairs.get("AdminComment", job.admin_comment)
        if "StartTime" in pairs and job.state == "PENDING":
            now, plus, seconds = pairs["StartTime"].partition("+")
            job.begin_s = unix_s(now) if now != "now" else self.clock() + float(seconds) if plus else 1.0
        return Completed(0, "", "")

    def _update_nodes(self, pairs: dict[str, str]) -> Completed:
        names = expand(pairs["NodeName"])
        if not set(names) <= set(self.nodes):
            return Completed(1, "", "slurm_update error: Invalid node name specified\n")
        for node in (self.nodes[name] for name in names):
            node.features = pairs.get("ActiveFeatures", pairs.get("AvailableFeatures", node.features))
            node.weight = int(pairs.get("Weight", node.weight))
            node.state = {"RESUME": "IDLE"}.get(state := pairs.get("State", node.state), state)
        return Completed(0, "", "")

    def _requeue(self, job_id: int, incomplete: bool, hold: bool) -> Completed:
        """As scontrol(1) says: without Incomplete, also a job that has ended runs again."""
        job = self.jobs.get(job_id)
        if job is None:
            return Completed(1, "", f"Invalid job id specified for job {job_id}\n")
        if "no-requeue" in job.options:
            return Completed(1, "", f"Requested operation is presently disabled for job {job_id}\n")
        if incomplete and job.state != "RUNNING":
            return Completed(0, "", "")
        if job.state == "PENDING" or job.then == "PENDING":
            return Completed(1, "", f"Job is pending execution for job {job_id}\n")
        job.completing = self.completing if job.state == "RUNNING" else 0
        job.state, job.then, job.reason = "COMPLETING", "PENDING", _REQUEUED_HELD if hold else "None"
        job.restarts += 1
        job.begin_s = self.clock() + REQUEUE_DELAY_S
        return Completed(0, "", "")

    def _hold(self, job_id: int, reason: str) -> Completed:
        job = self.jobs.get(job_id)
        if job is None or job.state not in ("PENDING", "COMPLETING"):
            return Completed(1, "", f"Job is no longer pending execution for job {job_id}\n")
        if not reason or not _held(job):
            job.reason = reason or "None"
        return Completed(0, "", "")

    def _show(self, words: list[str]) -> Completed:
        kind = words[0] if words else ""
        if kind in ("job", "jobs"):
            jobs = [j for j in self.jobs.values() if len(words) < 2 or str(j.job_id) == words[1]]
            if len(words) > 1 and not jobs:
                return Completed(1, "", "slurm_load_jobs error: Invalid job id specified\n")
            return Completed(0, "".join(self._job_line(j) for j in jobs) or "No jobs in the system\n", "")
        if kind in ("node", "nodes"):
            return Completed(0, "".join(self._node_line(n) for n in self.nodes.values()), "")
        if kind in ("partition", "partitions"):
            nodes = fold(list(self.nodes))
            line = f"PartitionName=gpu Default=YES DefaultTime=NONE MaxTime=UNLIMITED Nodes={nodes} State=UP"
            return Completed(0, line + "\n", "")
        if kind == "topology":
            return Completed(0, "", "scontrol: error: No topology information available\n")
        if kind == "hostnames":
            return Completed(0, words[1] + "\n", "")
        if kind == "config":
            return Completed(0, "ClusterName             = fake\nSlurmUser               = root(0)\n", "")
        return Completed(0, "No reservations in the system\n", "")

    def _node_line(self, node: FakeNode) -> str:
        free = len(self._free(node))
        used, busy = node.gpus - free, self._busy(node)
        kind = f"gpu:{node.gpu_type}:" if node.gpu_type else "gpu:"
        state = node.state if not busy or node.state != "IDLE" else "MIXED" if free else "ALLOCATED"
        features, busy_cpus = node.features or "(null)", node.cpus - self._cpus_free(node.name)
        return (
            f"NodeName={node.name} Arch=x86_64 CPUAlloc={busy_cpus} CPUEfctv={node.cpus} CPUTot={node.cpus} "
            f"AvailableFeatures={features} ActiveFeatures={features} Gres={kind}{node.gpus} GresDrain=N/A "
            f"GresUsed={kind}{used} RealMemory=64000 AllocMem={500 * used} State={state} "
            f"Weight={node.weight} Partitions=gpu\n"
        )

    def _job_line(self, job: FakeJob) -> str:
        def stamp(when_s: float) -> str:
            return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when_s)) if when_s else "Unknown"

        layout = "".join(
            f"  Nodes={n} CPU_IDs=0 Mem=500 GRES=gpu:{len(k)}(IDX:{','.join(map(str, k))})"
            for n, k in job.placed.items()
        )
        per_node, total, _ = _gpu_request(job.options)
        request = f" TresPerNode=gres:gpu:{per_node}" if per_node else f" TresPerJob=gres:gpu:{total}" if total else ""
        user = f"{os.environ.get('USER', 'user')}({os.getuid()})"
        minutes = job.options.get("time", "")
        limit = f"{int(minutes) // 60:02d}:{int(minutes) % 60:02d}:00" if minutes.isdecimal() else "UNLIMITED"
        return (
            f"JobId={job.job_id} JobName={job.name} UserId={user} GroupId=g(0) "
            f"Priority={0 if _held(job) else 1000} JobState={job.state} Reason={job.reason} "
            f"Requeue={int('no-requeue' not in job.options)} Restarts={job.restarts} BatchFlag=1 TimeLimit={limit} "
            f"SubmitTime={stamp(job.submit_s)} StartTime={stamp(job.start_s)} EndTime={stamp(job.end_s)} Partition=gpu "
            f"ReqNodeList={job.req or '(null)'} ExcNodeList={job.exc or '(null)'} "
            f"NodeList={fold(list(job.placed))}{layout} MinCPUsNode=1 Features=(null) OverSubscribe=OK Contiguous=0 "
            f"Licenses=(null) Network=(null) Command=x WorkDir=/"
            f"{' AdminComment=' + job.admin_comment if job.admin_comment else ''}"
            f"{' Comment=' + job.comment if job.comment else ''}{request}\n"
        )


def _held(job: FakeJob) -> bool:
    return job.reason.startswith(("JobHeld", _REQUEUED_HELD))


def _options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """sbatch's options as a dict, and the words after them."""
    found: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, sign, text = word[2:].partition("=")
        else:
            name, sign, text = _LONG.get(word[1], word[1]), word[2:3], word[2:].removeprefix("=")
        if not sign and name not in _BARE and words:
            text = words.pop(0)
        found[name] = text
    return found, words


def _gpu_request(options: dict[str, str]) -> tuple[int | None, int, int]:
    """(GPUs per node or None, GPUs in total, number of nodes)."""
    n_nodes = int(options.get("nodes", "1").split("-")[0])
    per_node = options.get("gpus-per-node") or options.get("gres", "").removeprefix("gpu")
    if per_node:
        count = int(per_node.rpartition(":")[2] or 1)
        return count, count * n_nodes, n_nodes
    total = int(options.get("gpus", "0").rpartition(":")[2] or 0)
    return (None, total, n_nodes if "nodes" in options else 10**6) if total else (0, 0, n_nodes)


def write_shims(directory: str, state_file: str, nodes: Sequence[FakeNode] = ()) -> None:
    """Put sbatch, scontrol, squeue, scancel and sdiag into `directory`, working on `state_file`.

    Raises OSError when a file cannot be written.
    """
    _save(FakeSlurm(nodes), state_file)
    for command in ("sbatch", "scontrol", "squeue", "scancel", "sdiag"):
        path = os.path.join(directory, command)
        lines = [
            "#!" + sys.executable,
            "import sys",
            "from slurm_pal.slurm.fake import shim",
            f"sys.exit(shim({command!r}, {state_file!r}))",
        ]
        write_atomic(path, "\n".join(lines) + "\n", 0o755)


def shim(command: str, state_file: str) -> int:
    """One command of the fake Slurm, as a process of its own."""
    takes_stdin = command == "sbatch" or (command == "scontrol" and len(sys.argv) < 4)
    stdin = sys.stdin.read if takes_stdin and not sys.stdin.isatty() else str
    done = answer(state_file, [command, *sys.argv[1:]], stdin)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def answer(state_file: str, argv: Sequence[str], stdin: Callable[[], str]) -> Completed:
    """Carry out one command on the state in a file; simultaneous commands take turns."""
    with open(state_file + ".lock", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        slurm = load(state_file)
        done = slurm(argv, stdin())
        _save(slurm, state_file)
    return done


def load(state_file: str) -> FakeSlurm:
    """The fake Slurm of a state file. Raises UsageError when it cannot be read."""
    try:
        with open(state_file, encoding="utf-8") as stream:
            table = json.load(stream)
    except (OSError, ValueError) as error:
        raise UsageError(f"fake Slurm state {state_file} cannot be read: {error}") from None
    slurm = FakeSlurm([FakeNode(**node) for node in table["nodes"]], version=table["version"])
    slurm.jobs = {job["job_id"]: FakeJob(**job) for job in table["jobs"]}
    slurm.down = table["down"]
    return slurm


def _save(slurm: FakeSlurm, state_file: str) -> None:
    table = {
        "version": slurm.version,
        "down": slurm.down,
        "nodes": [asdict(node) for node in slurm.nodes.values()],
        "jobs": [asdict(job) for job in slurm.jobs.values()],
    }
    write_atomic(state_file, json.dumps(table, indent=1), 0o644)
