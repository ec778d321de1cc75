# SPDX-License-Identifier: MIT
"""The lease guard takes lists back when the process that promised to do so is gone, however it ended.

    pal-rebalance --guard                       the service
    python -m slurm_pal.leases.guard JOURNAL  beside one tick, see `beside`

A process of its own, beside the daemon and not below it. While all is well it sleeps in flock(2) on
the publisher's lock, which the kernel releases as soon as its holder dies. The work is then done in a
child: this process stays small, and nothing that a job bears can end it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.base.files import locked
from slurm_pal.base.notify import ALIVE, READY, STOPPING, notify
from slurm_pal.leases import promise
from slurm_pal.store import heartbeat

if TYPE_CHECKING:
    from slurm_pal.leases.pinned import Remembered

PASSES_S = (1.3, 3.0, 6.0, 10.0)
"""Passes after the death, beside the one at once.

The filter looks for a new table once a second, and a palsub may be on its way to sbatch.
"""
AGAIN_S = 2.0  # after a pass with trouble
HELD_S = 5.0  # the lock is held no longer for a pass: a new publisher waits for it
LOOK_S = 0.25  # between looks for a new publisher, and for the end of a child
ALIVE_S = 10.0  # between words to the service manager's watchdog
LEAVE_S = 25.0  # after SIGTERM; the service manager kills it after 30 s, and calls that a failure
TIMEOUT_S = 10.0  # of one Slurm command
BESIDE_PASSES_S = (0.0, 1.3, 3.0)
"""After the death of one tick: an update that it had begun may still come through."""
NAP_S = 5.0  # between looks at leases that one tick has left
BYE, LATER = b".", b"u"
"""The last word of one tick: nothing is left; its lists stand until their time is over."""
DONE, LEFT = 0, 1
"""Exit codes of a pass: nothing of ours stands any more; something may."""


class Guard:
    """The loop over deaths of publishers for one table. `once` is one pass, in a child: its exit code."""

    def __init__(self, table: str, snapshot: str, once: Callable[[], int]) -> None:
        self._table, self._snapshot, self._once = table, snapshot, once
        self._own = f"{promise.GUARD}, pid {os.getpid()}"
        self._busy = self._leaving = False

    def run(self) -> None:
        """Run until SIGTERM: one that sleeps ends at once, one that takes lists back after its next pass, or LEAVE_S.

        Raises OSError when the lock cannot be opened.
        """
        signal.signal(signal.SIGTERM, self._leave)
        while not self._leaving:
            with self._death():
                self._busy = True
                died, broken = time.monotonic(), promise.made(self._table)
                if broken:
                    _say(f"{broken} promised to take lists back, and is gone: they are taken back now")
                    self._retire()
                    child, code = self._begun()
            if broken:
                self._clear(_ended(child) if code is None else code, died)
            self._busy = False
            if not self._leaving:
                self._await_publisher()

    def _leave(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._leaving = True
            notify(STOPPING, "STATUS=takes the lists back, then ends")
            signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self, number: int, frame: FrameType | None) -> None:
        _say("ends before all lists are taken back, since Slurm is slow: the next guard or publisher goes on")
        os._exit(0)

    @contextlib.contextmanager
    def _death(self) -> Iterator[None]:
        """Block until nobody holds the publisher's lock; hold it for the block, as its file then shows."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(promise.lock_path(self._table), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self._own.encode() + b"\n", 0)
            yield
        finally:
            _let_go(descriptor)

    def _retire(self) -> None:
        """From now on nobody sets lists: palsub follows the heartbeat, the filter the table."""
        heartbeat.end(self._snapshot)
        from slurm_pal.store.lua_table import retire

        try:
            retire(self._table, time.time())
        except PalError as error:  # no table, no promise; one that cannot be written ages
            _say(one_line(error))

    def _clear(self, code: int | None, died: float) -> None:
        """Repeat, since submissions may be on their way, until a new publisher comes and does the rest."""
        due = list(PASSES_S)
        while due or code != DONE:
            next_s = died + due.pop(0) if due else time.monotonic() + AGAIN_S
            while time.monotonic() < next_s:
                if self._published():
                    return
                time.sleep(LOOK_S)
            try:
                with _at_once(promise.lock_path(self._table)):
                    child, code = self._begun()
            except BlockingIOError:  # a new publisher has come
                return
            code = _ended(child) if code is None else code
            if self._leaving:  # the promise stands: the next guard or publisher looks again
                return
        with contextlib.suppress(BlockingIOError), _at_once(promise.lock_path(self._table)):
            if not self._published():  # one may have come, promised and gone since
                promise.kept(self._table)
                _say("all lists are taken back")

    def _begun(self) -> tuple[int, int | None]:
        """A pass, while the lock is held: what a new publisher sets meanwhile would be taken for what the old one left.

        The child, and its exit code; None while it runs on.
        """
        child = _fork(self._once)
        return child, _ended(child, time.monotonic() + HELD_S)

    def _published(self) -> bool:
        """Whether a new publisher has taken the lock since."""
        return promise.holder(self._table) != self._own

    def _await_publisher(self) -> None:
        while not self._published():
            time.sleep(LOOK_S)


@contextlib.contextmanager
def _at_once(path: str) -> Iterator[None]:
    """Hold a lock for a moment and write nothing into its file. Raises BlockingIOError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        _let_go(descriptor)


def _let_go(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closed here alone, a child would hold it on
    os.close(descriptor)


def _fork(work: Callable[[], int]) -> int:
    """A child that does `work` and ends with what it returns, or with LEFT; its process id."""
    child = os.fork()
    if child:
        return child
    code = LEFT
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = work()
    except BaseException as error:  # the parent tries again
        _say(f"{type(error).__name__}: {one_line(error)}")
    finally:
        os._exit(code)


def _ended(child: int, until_s: float | None = None) -> int | None:
    """The exit code of a child; None while it runs on at `until_s` (monotonic)."""
    while True:
        ended, status = os.waitpid(child, 0 if until_s is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if until_s is not None and time.monotonic() >= until_s:
            return None
        time.sleep(0.01)


def one_pass(config: Config, journal_path: str) -> int:
    """Take back the lists that stand now; returns the exit code."""
    known, trouble = _remembered(journal_path)
    return _take_back(known, trouble)


def _remembered(path: str) -> tuple[Remembered, list[str]]:
    """What the journal holds, and why it cannot be read ("" where it can)."""
    from slurm_pal.journal.journal import open_journal
    from slurm_pal.leases import pinned

    if not os.path.exists(path):
        return pinned.Remembered(), []
    try:
        with open_journal(path, write=False) as journal:
            return pinned.remembered(journal), []
    except PalError as error:  # those of palsub and the filter stand on the jobs themselves
        return pinned.Remembered(), [one_line(error)]


def _take_back(known: Remembered, trouble: list[str]) -> int:
    from slurm_pal.leases import pinned
    from slurm_pal.slurm.cli import CliClient

    started = time.monotonic()
    ended = pinned.take_back(CliClient(timeout_s=TIMEOUT_S), known, time.time())
    trouble += ended.trouble
    for line in trouble:
        _say(line)
    if ended.lists:
        ids = " ".join(str(update.job_id) for update in ended.lists[:20])
        more = " ..." if len(ended.lists) > 20 else ""
        took_s = time.monotonic() - started
        _say(f"lists taken back from {len(ended.lists)} jobs in {took_s:.1f} s: {ids}{more}")
    return LEFT if trouble else DONE


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"pal-rebalance: {promise.GUARD}: {line}\n".encode(errors="replace"))


def keep_watch(config: Config, journal_path: str) -> None:
    """Guard this site until a signal comes. Raises BusyError when there is a guard already, OSError."""

    def beat(number: int, frame: FrameType | None) -> None:
        notify(ALIVE)

    with locked(promise.guard_path(config.table_path), "a lease guard"):
        signal.signal(signal.SIGALRM, beat)
        signal.setitimer(signal.ITIMER_REAL, ALIVE_S, ALIVE_S)
        notify(READY, "STATUS=watches over the publisher of this site")
        Guard(config.table_path, config.snapshot_path, lambda: one_pass(config, journal_path)).run()


@contextlib.contextmanager
def beside(journal_path: str) -> Iterator[Callable[[bytes], None]]:
    """Start a child in a session of its own for a single tick: if that is killed, its lists end nevertheless.

    Returns a function that takes the last word, BYE or LATER; without one the child takes all of the journal's
    lists back. Where no child can be started the function does nothing.
    """
    import subprocess

    argv = [sys.executable, "-P", "-m", "slurm_pal.leases.guard", journal_path]
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/", bufsize=0
        )
    except OSError as error:
        _say(f"no child can be started ({error.strerror}): if this tick is killed, its lists stay")
        yield lambda word: None
        return
    assert child.stdin is not None
    channel = child.stdin

    def say(word: bytes) -> None:
        with contextlib.suppress(OSError):
            channel.write(word)

    try:
        yield say
    finally:
        channel.close()  # a child that stays is init's once we are gone
        child.returncode = 0


def stand_by(journal_path: str, wait: Callable[[float], None] = time.sleep) -> int:
    """The child's part: wait for the last word or the end of the tick, then act on it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it only shows that we are there
            stack.enter_context(locked(promise.child_path(journal_path), "a child of a tick", shared=True))
        return _stand_by(journal_path, wait)


def _stand_by(journal_path: str, wait: Callable[[float], None]) -> int:
    from slurm_pal.base import config as settings
    from slurm_pal.leases import pinned

    word = os.read(0, 1)
    if word == BYE:
        return DONE
    pass_s = settings.load().number("submit", "lease_pass_s")
    if not word:
        begun, code = time.monotonic(), LEFT
        for after_s in BESIDE_PASSES_S:
            wait(max(0.0, begun + after_s - time.monotonic()))
            known, trouble = _remembered(journal_path)
            code = _tried(known._replace(marks=False), trouble)
        return code
    _leave_stderr()
    last_s = _last_tick_s(journal_path)
    while _last_tick_s(journal_path) == last_s:  # else another tick has come, with a child of its own
        known, _ = _remembered(journal_path)
        now_s = time.time()
        ends_s = [lease.until_s + pass_s for lists in known.leases.values() for lease in lists]
        ends_s += [one.until_s + pass_s for one in known.lists]
        over = pinned.due(known, now_s, pass_s)
        if over.leases or over.lists:
            _tried(over, [])
        if not ends_s or max(ends_s) < now_s - NAP_S:
            return DONE
        later = [end_s - now_s for end_s in ends_s if end_s > now_s]
        wait(min([NAP_S, *later]) + 0.1 if not (over.leases or over.lists) else 1.0)
    return DONE


def _leave_stderr() -> None:
    """Close stderr: the tick is over, and cron, or another reader, waits for the end of it."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)


def _tried(known: Remembered, trouble: list[str]) -> int:
    try:
        return _take_back(known, trouble)
    except PalError as error:
        _say(one_line(error))
        return LEFT


def _last_tick_s(path: str) -> float:
    from slurm_pal.journal.journal import open_journal

    try:
        with open_journal(path, write=False) as journal:
            return journal.last_tick_s()
    except PalError:
        return -1.0


def main() -> int:
    """pal-rebalance --guard, without all that a tick needs; the exit code."""
    from slurm_pal.base import config as settings
    from slurm_pal.base.become import slurm_user

    try:
        slurm_user()
        config = settings.load()
        keep_watch(config, os.path.join(config.state_dir, "rebalance.db"))
    except KeyboardInterrupt:
        return 130
    except (PalError, OSError) as error:
        print(f"pal-rebalance: error: {one_line(error)}", file=sys.stderr)
        return int(error.exit_code) if isinstance(error, PalError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(stand_by(sys.argv[1]))
