# SPDX-License-Identifier: MIT
"""The user's watcher: takes leases back from jobs that have not started when waiting no longer pays.

One process for each user and cluster, started detached by palsub; it ends when no lease is
left. It reads its folder often and asks Slurm seldom: one squeue when a lease is due,
and one now and then. Nobody can take a list from a job that runs (scontrol(1)), and a requeue would pin the job
again, perhaps to a node that is down: so it is watched until it ends, unless it cannot be requeued.

    python -m slurm_pal.submit.watcher FOLDER

An heir waits for its lock, which the kernel releases when the watcher dies for any reason: then
the heir becomes the watcher, and starts its own heir.
"""

from __future__ import annotations

import os
import sys
import time

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import BusyError, PalError, SlurmError
from slurm_pal.base.files import is_temporary, locked, remove_leftovers
from slurm_pal.base.hostlist import expand
from slurm_pal.base.light import Callable, suppress
from slurm_pal.base.numbers import digits
from slurm_pal.decide import lease as leases
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_WAITING
from slurm_pal.submit import decision, lease_file
from slurm_pal.submit.lease_file import Lease

LOCK, HEIR_LOCK = "watcher.lock", "heir.lock"
HEIR = "heir"
MODULE = "slurm_pal.submit.watcher"
LOOK_S = 0.5  # between looks at the folder
SOON_S = 1.0  # a job whose GPUs are free has mostly started by then, and a short one still runs
TIDY_S = 30.0  # between looks at Slurm while nothing is due
RUNS_S = 60.0  # the same while all jobs run
LOCK_TRIES = 10
SLURM_GONE_S = 120.0  # how long after the last lease a controller that does not answer is waited for
LONG_GONE_S = 86400.0  # the same for jobs that run


def judge(lease: Lease, states: dict[int, tuple[str, str]], now_s: float, in_vain: bool = False) -> str:
    """What to do about one lease: "wait", "clear", "keep" for a job that has started, or "drop". Pure.

    `in_vain` as for `lease.verdict`. A job that cannot be judged now (see there) is left alone until the
    lease's very end, after which this watcher will not be there.
    """
    state, reason = states.get(lease.job_id, ("", ""))
    if state in JOB_ACTIVE:
        return "wait" if lease.started else "keep"
    if state not in JOB_WAITING:
        return "drop"
    if lease.started:  # it was requeued: its list has served
        return "clear" if state == "PENDING" and not leases.is_held(reason) else "wait"
    if now_s >= lease.last_s or now_s < lease.made_s - CLOCK_SKEW_S:  # the end, or the clock was set back
        return "clear"
    return leases.verdict(reason, lease.made_s, lease.until_s, lease.pass_s, now_s, in_vain)


def clear(client: SlurmClient, lease: Lease) -> None:
    """Put the user's own lists back, unless somebody has changed ours since.

    Raises SlurmError when Slurm refuses; NumNodes is never touched.
    """
    job = client.job(lease.job_id)
    if job is None or job.state != "PENDING":
        return
    fields: dict[str, str] = {}
    if lease.pinned and set(job.req_nodes) == set(expand(lease.pinned)):
        fields["ReqNodeList"] = lease.user_req
    if lease.excluded and set(job.exc_nodes) == set(expand(lease.excluded)):
        fields["ExcNodeList"] = lease.user_exc
    if fields:
        client.update_job(lease.job_id, **fields)


class Watcher:
    """The loop; the caller supplies clock and sleep."""

    def __init__(
        self, folder: str, client: SlurmClient, clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep, begin: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`begin` is called once the lock is held."""
        self._begin = begin
        self._folder, self._client, self._clock, self._sleep = folder, client, clock, sleep
        self._asked_s = self._answered_s = 0.0  # when Slurm was last asked, and when it answered (Unix s)
        self._rests_ns = 0  # when the folder, in which all jobs run, was last changed; 0: not all of them run
        self._pause_s = 1.0  # Slurm is not asked again sooner
        self._nodes: dict[str, Node] = {}  # in this step
        self._refused = False  # Slurm has not taken an update of the last step

    def run(self) -> None:
        """Watch until no lease is left, under the lock. Raises BusyError if another watcher does."""
        for attempt in range(LOCK_TRIES):
            try:
                return self._run()
            except BusyError:  # a palsub that checks for a watcher holds the lock for a moment
                if attempt == LOCK_TRIES - 1:
                    raise
                self._sleep(0.1)

    def _run(self) -> None:
        while True:
            with locked(os.path.join(self._folder, LOCK), "a watcher"):
                self._begin()
                while self.step():
                    self._sleep(LOOK_S)
            # A palsub that found the lock held has left its lease to us: look once more without it.
            if not lease_file.read_all(self._folder):
                return

    def step(self) -> bool:
        """One look; whether leases are left."""
        now_s, changed_ns = self._clock(), os.stat(self._folder).st_mtime_ns
        if changed_ns == self._rests_ns and self._asked_s <= now_s < self._asked_s + RUNS_S and not _removed():
            return True
        found = lease_file.read_all(self._folder)
        self._sweep_prepared()
        if not found:
            return bool(self._prepared())
        self._answered_s = self._answered_s or now_s
        all_run = all(item.started for item in found.values()) and not self._prepared()
        self._rests_ns = changed_ns if all_run else 0
        if all_run and _removed():
            self._give_up(found, now_s)
        if self._asked_s <= now_s < self._next_s(found):
            return True
        started, self._nodes, self._refused = time.monotonic(), {}, False
        try:
            states = self._client.job_states(user="" if os.getuid() == 0 else str(os.getuid()))
            for path, item in found.items():
                self._settle(path, item, states, now_s)
            self._answered_s = now_s
        except (SlurmError, OSError):
            self._give_up(found, now_s)
        self._asked_s = now_s
        self._pause_s = min(TIDY_S, max(1.0, 5 * (time.monotonic() - started)))
        return True

    def _next_s(self, found: dict[str, Lease]) -> float:
        """When to ask Slurm again: soon and one pass after a job's submission, then ever later, when a lease ends, and
        now and then."""
        due = [self._asked_s + (RUNS_S if all(item.started for item in found.values()) else TIDY_S)]
        for item in found.values():
            if item.started:
                continue
            pass_s = max(item.pass_s, 1.0)
            look_s = min(SOON_S, item.pass_s)
            while item.made_s + look_s <= self._asked_s:
                look_s = pass_s if look_s < pass_s else 2 * look_s
            due.append(min(item.made_s + look_s, item.until_s))
        return self._asked_s + self._pause_s if self._refused else max(self._asked_s + self._pause_s, min(due))

    def _settle(self, path: str, item: Lease, states: dict[int, tuple[str, str]], now_s: float) -> None:
        verdict = judge(item, states, now_s)
        looked_at = states.get(item.job_id, ("", ""))[1].startswith(("Resources", "Priority"))
        if verdict == "wait" and item.pinned and looked_at and judge(item, states, now_s, in_vain=True) == "clear":
            verdict = "clear" if self._in_vain(item.job_id, now_s) else "wait"
        if verdict == "clear":
            stays = item.avoid_until_s > now_s and not item.started and now_s < item.last_s
            try:
                clear(self._client, item._replace(excluded="") if stays else item)
                if stays:
                    lease_file.without_pin(path, item)
                else:
                    lease_file.drop(path)
            except SlurmError:  # it may just have started, or Slurm has it in its hands; the next look will show
                self._refused = True
        elif verdict == "keep":
            job = self._client.job(item.job_id)
            if job is not None:
                with suppress(PalError, OSError):  # for `pal explain` after its end
                    decision.started(os.path.basename(self._folder), item.job_id, job.gpus, job.start_s)
            if job is None or not job.may_requeue:
                lease_file.drop(path)
            else:
                lease_file.has_started(path, item)
        elif verdict == "drop":
            lease_file.drop(path)

    def _in_vain(self, job_id: int, now_s: float) -> bool:
        """Whether Slurm passes a job over although the GPUs that it is pinned to are free. Raises SlurmError."""
        from slurm_pal.decide.offers import named_in_vain

        if not self._nodes:
            self._nodes = {node.name: node for node in self._client.nodes()}
        job = self._client.job(job_id)
        return job is not None and named_in_vain(job, self._nodes, now_s)

    def _give_up(self, found: dict[str, Lease], now_s: float) -> None:
        """Slurm does not answer: wait for it, but not for ever, and not for a cluster that was removed."""
        for path, item in found.items():
            patient_s = self._answered_s + LONG_GONE_S if item.started else item.last_s + SLURM_GONE_S
            if _removed() or now_s > patient_s:
                lease_file.drop(path)

    def _prepared(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if _is_prepared(name)]

    def _sweep_prepared(self) -> None:
        """Forget leases whose palsub died before its job existed, and files that other writers left."""
        for name in self._prepared():
            pid = name[4:-5].partition("-")[0]
            if digits(pid) is None or not os.path.exists(f"/proc/{pid}"):
                lease_file.drop(os.path.join(self._folder, name))
        # By now another process may have its pid.
        remove_leftovers(self._folder, self._clock(), lambda name: is_temporary(name) or _is_prepared(name))


def _removed() -> bool:
    """Whether the cluster is no more: its slurm.conf, which the environment names, is gone."""
    conf = os.environ.get("SLURM_CONF", "")
    return bool(conf) and not os.path.exists(conf)


def _is_prepared(name: str) -> bool:
    return name.startswith("new-") and name.endswith(".json")


def running(folder: str) -> bool:
    """Whether a watcher holds the folder's lock."""
    try:
        with locked(os.path.join(folder, LOCK), "a watcher"):
            return False
    except BusyError:
        return True


def start(folder: str) -> None:
    """Start a watcher for a folder, detached from terminal, session and descriptors, unless there is one.

    Raises OSError when no process can be made.
    """
    if not running(folder):
        _spawn(folder)


def _spawn(*words: str) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                os.closerange(3, 65536)
                os.execve(sys.executable, _program(*words), os.environ)
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def _program(*words: str) -> list[str]:
    """The command of a watcher, in a Python that the user's environment cannot change: their jobs wait for it."""
    path = [place for place in sys.path if place]
    start = f"import sys; sys.path = {path!r}; from {MODULE} import main; sys.exit(main(sys.argv[2:]))"
    return [sys.executable, "-I", "-S", "-c", start, MODULE, *words]


def inherit(folder: str) -> bool:
    """Wait until no watcher lives; whether it has left leases. Raises BusyError if there is another heir, OSError."""
    with locked(os.path.join(folder, HEIR_LOCK), "an heir"):
        descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)
    return bool(lease_file.read_all(folder))


def own_client() -> SlurmClient:
    """Who takes this user's leases back: as palsub asks Slurm, and by its commands where that is not to be known."""
    from slurm_pal.slurm.cli import CliClient

    try:
        from slurm_pal.base.config import load

        config = load()
        if config.text("slurm", "backend") == "rest":
            from slurm_pal.slurm.backend import connect

            return connect(config)
    except (PalError, OSError):  # the settings have been damaged since
        pass
    return CliClient()


def main(argv: list[str]) -> int:
    """Run as a process."""
    os.umask(0o077)
    folder = os.path.abspath(argv[0])
    os.chdir("/")

    def begin() -> None:
        with suppress(OSError):  # without an heir, leases are watched only as long as this process lives
            _spawn(folder, HEIR)

    with suppress(BusyError, OSError):
        if argv[1:] != [HEIR] or inherit(folder):
            Watcher(folder, own_client(), begin=begin).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
