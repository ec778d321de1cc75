# SPDX-License-Identifier: MIT
"""Many runs side by side: a pool of processes, progress while they run, and an end on request."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from slurm_pal.base.errors import PalError

Task = TypeVar("Task")
Result = TypeVar("Result")
TaskIn = TypeVar("TaskIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)

Progress = Callable[[int, int], bool]
"""Called with (jobs done, jobs in all) inside a run; False ends the run."""
Watch = Callable[[int], None]
"""Called with the jobs done in all runs together."""

POLL_S = 0.2


class Work(Protocol[TaskIn, ResultOut]):
    """What does one task. It is sent to the worker processes once, so it must be picklable."""

    def run(self, task: TaskIn, progress: Progress) -> ResultOut: ...


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(
    work: Work[Task, Result], tasks: Sequence[Task], workers: int, watch: Watch = lambda done: None
) -> Generator[tuple[Task, Result], None, None]:
    """Yield (task, result) as they finish, by up to `workers` processes; with one worker, here and in order.

    On KeyboardInterrupt, or when the caller stops iterating, runs that are under way are
    ended and lost. Raises what a run raises; PalError when a process was killed.
    """
    if workers == 1 or len(tasks) < 2:
        return _here(work, tasks, watch)
    return _Pool(work, tasks, min(workers, len(tasks))).results(watch)


def _here(work: Work[Task, Result], tasks: Sequence[Task], watch: Watch) -> Generator[tuple[Task, Result], None, None]:
    done = [0] * len(tasks)
    for number, task in enumerate(tasks):

        def progress(jobs: int, of: int, number: int = number) -> bool:
            done[number] = jobs
            watch(sum(done))
            return True

        yield task, work.run(task, progress)


class _Shared(NamedTuple):
    """Memory that all processes see. No locks: one writer for each cell."""

    done: Any  # jobs done, by task
    stop: Any


class _Pool(Generic[Task, Result]):
    """One pool for one sequence of tasks."""

    def __init__(self, work: Work[Task, Result], tasks: Sequence[Task], workers: int) -> None:
        self._tasks = tasks
        self._shared = _Shared(RawArray("q", len(tasks)), RawValue("b", 0))
        # A fork of a process with threads (numpy has some) may hang: take the server's clean children.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([type(work).__module__])
        with _safe_path():  # its locks start a process that keeps track of them
            self._executor = ProcessPoolExecutor(workers, context, _begin, (work, self._shared))

    def results(self, watch: Watch) -> Generator[tuple[Task, Result], None, None]:
        with _interrupts_noted() as came:
            yield from self._results(watch, came)

    def _results(self, watch: Watch, came: list[int]) -> Generator[tuple[Task, Result], None, None]:
        try:
            with _safe_path(), _interrupt_held():
                waiting: dict[Future[Any], Task] = {
                    self._executor.submit(_work, number, task): task for number, task in enumerate(self._tasks)
                }
            while waiting:
                if came:
                    raise KeyboardInterrupt
                ended, _ = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                watch(sum(self._shared.done))
                for future in ended:
                    yield waiting.pop(future), future.result()
        except PalError as error:
            raise error from None  # without the worker's traceback, which is its cause
        except BrokenProcessPool:
            if came:  # SIGTERM to all processes of a group ended it
                raise KeyboardInterrupt from None
            raise PalError(
                "a worker process was killed, perhaps for lack of memory; try fewer at a time with --jobs"
            ) from None
        finally:
            self._shared.stop.value = 1
            self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted in the list, and raised at the end of the block if nothing else is.

    A second one in the middle of shutting the pool down would leave processes that wait for each other for ever.
    Outside the main thread, where Python has no handlers, nothing is noted.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Ctrl-C waits until the end of the block: half-started processes would print tracebacks.

    The mask is for the processes that are started, which inherit it; this process has more
    threads, any of which may take the signal, so it needs a handler as well. Outside the main
    thread, where Python has no handlers, nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    resource_tracker.ensure_running()  # it unblocks the signal when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes started in the block do not import from the working directory, which is not ours to trust."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


# -- in the worker ------------------------------------------------------------------------

_work_here: Work[Any, Any] | None = None
_shared_here: _Shared | None = None


def _begin(work: Work[Any, Any], shared: _Shared) -> None:
    global _work_here, _shared_here
    # Ctrl-C reaches all processes of the terminal; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work_here, _shared_here = work, shared


def _work(number: int, task: Any) -> Any:  # noqa: ANN401  # whatever the caller's work is
    assert _work_here is not None and _shared_here is not None
    done, stop = _shared_here

    def progress(jobs: int, of: int) -> bool:
        done[number] = jobs
        return not stop.value

    try:
        return _work_here.run(task, progress)
    except KeyboardInterrupt:  # SIGTERM, which a run may catch to clear up; it ends this process as it always does
        os._exit(128 + signal.SIGTERM)
