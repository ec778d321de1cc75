# SPDX-License-Identifier: MIT
"""Forked jobs (HadarE): copies of one job train on idle nodes, each at its own speed, and are merged round by round.

The base job's call of `pal fork next` ends a round: it waits for the copies, has what they saved merged by their
steps, and gives out the next quotas by their measured speeds (hadar.md 6). What is shared lies in one directory:

    state.json             the base job's: version, steps done, paces, the round that runs
    round.json             the same for the copies: who does how many steps, from which version
    round_N/ID/            what copy ID saves; round_N/ID.json says that it is complete
    version_N/             what the copies of a round were merged into
    finished.json          all steps are done

Only what a round says counts: a copy that is late, or comes from an earlier round, adds nothing to it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import DataError, PalError, UsageError, one_line
from slurm_pal.base.files import read_plain, write_atomic
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.client import Runner

SCHEMA = "pal.fork/1"
BASE = "base"
FOLDER = ".pal-fork-"
ROUND_S = 360.0
LATE = 1.5
"""A round ends for the copies after this many times its length."""
FIRST = 1 / 200
"""A job of unknown speed begins with this part of all its steps."""
PROBE, UNKNOWN = 0.125, 0.5
"""A round with a copy of unknown speed is so much shorter; that copy gets so much of the least quota of the others."""
UNLIKE = 2.0
"""Two parts of a copy whose steps differ by this factor show what a part takes besides its steps."""
MOST_FIXED = 0.75
"""At most this share of a part's time is taken for that: so a quota is at most four times the one before."""
POLL_S = 0.2
MERGE_S = 600.0


class MergeFailed(PalError):
    """The copies of a round could not be merged."""


class ForkPlace(NamedTuple):
    """Which copy this process is, and where the copies meet."""

    copy: str  # BASE or a job id
    base: str  # the base job's id
    run: str  # of this job's script: it changes when that is started anew
    folder: str
    meeting: str  # of the elastic job: who is there (elastic.sh)


class Task(NamedTuple):
    """What a copy is to do next."""

    steps: int
    source: str  # directory to start from; "" for the first version, which the program makes itself
    target: str  # directory to save into; it is there


def place(environment: Mapping[str, str]) -> ForkPlace:
    """Raises UsageError outside a forked job."""
    role, base = environment.get("SLURM_PAL_ROLE", ""), environment.get("SLURM_PAL_BASE", "")
    counts, own = environment.get("SLURM_PAL_WORKERS_FILE", ""), environment.get("SLURM_JOB_ID", "")
    if role not in ("base", "companion") or digits(base) is None or digits(own) is None or not counts:
        raise UsageError("this is no forked job: submit it with palsub --pal-fork N, or #PAL fork=N in its script")
    meeting = os.path.dirname(counts)
    above = os.getcwd() if os.path.basename(meeting) == "alone" else os.path.dirname(meeting)
    run = environment.get("SLURM_PAL_RUN", "")
    return ForkPlace(BASE if role == "base" else own, base, run, os.path.join(above, FOLDER + base), meeting)


# -- quotas ---------------------------------------------------------------------------------


class CopyPace(NamedTuple):
    """How fast a copy is, by its last parts."""

    steps: int
    seconds: float
    fixed_s: float = 0.0  # what a part takes besides its steps: to start the program, to load, to save

    @property
    def speed(self) -> float:
        """Steps/s, while it does steps."""
        return self.steps / (self.seconds - self.fixed_s)

    def then(self, steps: int, seconds: float) -> CopyPace:
        """After one part more."""
        fixed_s = self.fixed_s
        if max(steps, self.steps) >= UNLIKE * min(steps, self.steps):
            each_s = max(0.0, (seconds - self.seconds) / (steps - self.steps))
            fixed_s = max(0.0, seconds - steps * each_s)
        return CopyPace(steps, seconds, min(fixed_s, MOST_FIXED * seconds))


def quotas(
    paces: Mapping[str, CopyPace | None], left: int, total: int, round_s: float, overhead_s: float
) -> dict[str, int]:
    """Copy -> steps of the next round, of those that are left; a pace may not be known. Pure.

    Where the round does all that is left, it is divided so that all end together. A round too short for what waiting
    and merging take, or for what a part takes besides its steps, is made longer, to work as long as that takes: else
    ever fewer steps would be done by each.
    """
    length_s = (round_s if all(paces.values()) else PROBE * round_s) - overhead_s
    known = {
        copy: max(1, int(pace.speed * max(length_s - pace.fixed_s, overhead_s, pace.fixed_s)))
        for copy, pace in paces.items()
        if pace is not None
    }
    least = max(1, int(UNKNOWN * min(known.values()))) if known else max(1, int(FIRST * total))
    wanted = {copy: known.get(copy, least) for copy in paces}
    whole = sum(wanted.values())
    if whole <= left:
        return wanted
    exact = {copy: steps * left / whole for copy, steps in wanted.items()}
    found = {copy: int(steps) for copy, steps in exact.items()}
    for copy in sorted(exact, key=lambda copy: found[copy] - exact[copy])[: left - sum(found.values())]:
        found[copy] += 1
    return {copy: steps for copy, steps in found.items() if steps}


# -- files ----------------------------------------------------------------------------------


def _read(path: str) -> dict[str, Any] | None:
    """One of our files, None where it is not there. Raises DataError for one that makes no sense."""
    try:
        found = json.loads(read_plain(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise DataError(f"{path} is not {SCHEMA!r}: remove {os.path.dirname(path)} to start anew")
    return found


def _write(path: str, **body: object) -> None:
    write_atomic(path, json.dumps({"schema": SCHEMA, **body}) + "\n", 0o600)


def result(where: ForkPlace) -> tuple[bool, str]:
    """Whether all steps are done, and the directory of the newest version, "" before the first. Raises DataError."""
    state = _read(os.path.join(where.folder, "state.json")) or {}
    return os.path.exists(os.path.join(where.folder, "finished.json")), str(state.get("source", ""))


# -- a copy ---------------------------------------------------------------------------------


class Fork:
    """One copy's calls of `pal fork next`."""

    def __init__(
        self, where: ForkPlace, say: Callable[[str], None], *, clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.where, self._say, self._clock, self._sleep = where, say, clock, sleep

    def _path(self, *names: str) -> str:
        return os.path.join(self.where.folder, *names)

    def _reported(self) -> int:
        """Say that this copy's last task is done, if this run of the script had one; the number of its round.

        Where the script was started anew meanwhile, the round may be done once more. Raises UsageError.
        """
        own = self._path(f"{self.where.copy}.json")
        task = _read(own)
        if task is None:
            return -1
        number, steps = int(task["round"]), int(task["steps"])
        os.unlink(own)
        if task["run"] != self.where.run:
            self._say(f"round {number} was interrupted here: its {steps} steps are done again")
            return number - 1
        current = _read(self._path("round.json"))
        if current is None or current["round"] != number:
            self._say(f"round {number} is over: its {steps} steps here do not count")
            return number
        target = self._path(f"round_{number}", self.where.copy)
        if not os.listdir(target):
            raise UsageError(f"nothing was saved in {target} ($PAL_FORK_TO): save there before the next pal fork next")
        seconds = max(1e-3, self._clock() - float(task["at_s"]))
        _write(self._path(f"round_{number}", f"{self.where.copy}.json"), steps=steps, seconds=seconds)
        return number

    def follow(self) -> Task | None:
        """A copy's next task, once there is one; None when all are done. Raises DataError, UsageError, OSError."""
        number = self._reported()
        while not os.path.exists(self._path("finished.json")):
            current = _read(self._path("round.json"))
            if current is not None and current["round"] > number and self.where.copy in current["steps"]:
                return self._begin(current)
            self._sleep(POLL_S)
        return None

    def _begin(self, current: Mapping[str, Any]) -> Task:
        steps, number = int(current["steps"][self.where.copy]), int(current["round"])
        target = self._path(f"round_{number}", self.where.copy)
        shutil.rmtree(target, ignore_errors=True)  # of a run of the script that was interrupted
        os.makedirs(target, mode=0o700)
        _write(self._path(f"{self.where.copy}.json"), round=number, steps=steps, at_s=self._clock(), run=self.where.run)
        return Task(steps, str(current["source"]), target)

    # -- the base job

    def lead(
        self, total: int, round_s: float, merge: str, leave: Callable[[Sequence[str]], Sequence[str]]
    ) -> Task | None:
        """The base job's next task, after the round that runs; None when all steps are done.

        `merge` is a shell command; `leave` gets the copies, the slowest first, and returns those that have to make way.
        Raises DataError, UsageError, OSError.
        """
        os.makedirs(self.where.folder, mode=0o700, exist_ok=True)
        state = _read(self._path("state.json")) or {
            "round": 0, "done": 0, "source": "", "paces": {}, "overhead_s": 0.0, "open": None,
        }  # fmt: skip
        if state["open"] is not None:
            self._end_round(state, round_s, merge)
            self._keep(state)
        left = total - int(state["done"])
        if left <= 0:
            _write(self._path("finished.json"), done=state["done"], source=state["source"])
            return None
        copies = self._present()
        kept = state.get("paces", {})  # one of an older release has none
        paces = {copy: CopyPace(*kept[copy]) if copy in kept else None for copy in (BASE, *copies)}
        for gone in leave(sorted(copies, key=lambda copy: pace.speed if (pace := paces[copy]) else 0.0)):
            paces.pop(gone, None)
        number = int(state["round"]) + 1
        steps = quotas(paces, left, total, round_s, float(state["overhead_s"]))
        state |= {"round": number, "open": {"steps": steps, "at_s": self._clock()}}
        self._keep(state)
        _write(self._path("round.json"), round=number, source=state["source"], steps=steps)
        self._forget(number, str(state["source"]))
        if BASE not in steps:  # a last step or two for others
            return self.lead(total, round_s, merge, leave)
        return self._begin({"round": number, "source": state["source"], "steps": steps})

    def _keep(self, state: Mapping[str, Any]) -> None:
        _write(self._path("state.json"), **{key: value for key, value in state.items() if key != "schema"})

    def _present(self) -> list[str]:
        """Copies that have joined this run of the base job (elastic.sh)."""

        def first(name: str) -> bytes:
            try:
                return read_plain(os.path.join(self.where.meeting, name)).partition(b" ")[0].strip()
            except (OSError, DataError):
                return b""

        run = first("base")
        names = os.listdir(self.where.meeting) if run and os.path.isdir(self.where.meeting) else []
        some = [name for name in sorted(names) if name.startswith("c.") and digits(name[2:]) is not None]
        return [name[2:] for name in some if first(name) == run]

    def _end_round(self, state: dict[str, Any], round_s: float, merge: str) -> None:
        """Wait for the copies, and merge what they have saved into the next version."""
        number, open_ = int(state["round"]), state["open"]
        self._reported()
        reports = self._reports(number, open_, round_s)
        state["open"] = None
        if not reports:
            return
        if reports.keys() == open_["steps"].keys():
            slowest_s = max(float(one["seconds"]) for one in reports.values())
            state["overhead_s"] = max(0.0, self._clock() - float(open_["at_s"]) - slowest_s)
        paces = state.setdefault("paces", {})
        for copy, one in reports.items():
            part = int(one["steps"]), float(one["seconds"])
            paces[copy] = CopyPace(*paces[copy]).then(*part) if copy in paces else CopyPace(*part)
        try:
            state["source"] = self._merged(number, reports, merge)
        except MergeFailed as error:
            kept = BASE if BASE in reports else max(reports, key=lambda copy: int(reports[copy]["steps"]))
            lost = sum(int(one["steps"]) for copy, one in reports.items() if copy != kept)
            self._say(f"round {number}: {error}; goes on with what {kept} saved, {lost} steps of others do not count")
            reports = {kept: reports[kept]}
            state["source"] = self._path(f"round_{number}", kept)
        state["done"] = int(state["done"]) + sum(int(one["steps"]) for one in reports.values())

    def _reports(self, number: int, open_: Mapping[str, Any], round_s: float) -> dict[str, dict[str, Any]]:
        """Copy -> its report, of those that are complete in time."""
        length_s = max(round_s, self._clock() - float(open_["at_s"]))
        until_s, wanted = float(open_["at_s"]) + LATE * length_s, set(open_["steps"])
        while True:
            found = {copy: one for copy in wanted if (one := self._complete(number, copy)) is not None}
            missing = wanted - found.keys() - {BASE}
            if not missing & {*self._present()} or self._clock() >= until_s:
                if missing:
                    names = ", ".join(sorted(missing))
                    self._say(f"round {number}: no result of {names}: these steps are done again by others")
                return found
            self._sleep(POLL_S)

    def _complete(self, number: int, copy: str) -> dict[str, Any] | None:
        """A copy's report, if there is one and something saved."""
        try:
            found = _read(self._path(f"round_{number}", f"{copy}.json"))
            if found is None or float(found["seconds"]) <= 0 or int(found["steps"]) <= 0:
                return None
            return found if os.listdir(self._path(f"round_{number}", copy)) else None
        except (DataError, OSError, KeyError, TypeError, ValueError):
            return None

    def _merged(self, number: int, reports: Mapping[str, Mapping[str, Any]], merge: str) -> str:
        """The directory of the next version. Raises MergeFailed."""
        parts = [(int(one["steps"]), self._path(f"round_{number}", copy)) for copy, one in sorted(reports.items())]
        if len(parts) == 1:
            return parts[0][1]
        made = self._path(f"version_{number}")
        shutil.rmtree(made, ignore_errors=True)
        os.makedirs(made, mode=0o700)
        words = [made, *(word for steps, path in parts for word in (str(steps), path))]
        # A shell command of the user's, as for --pal-checkpoint; what we add are its arguments. What it prints must not
        # come between what the script's shell is to evaluate.
        merging = subprocess.Popen(
            ["/bin/bash", "-c", f'{merge} "$@"', "pal-merge", *words], stdin=subprocess.DEVNULL, stdout=2,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = merging.wait(MERGE_S)
        except subprocess.TimeoutExpired:
            raise MergeFailed(f"the merge has not ended after {MERGE_S:g} s") from None
        finally:
            if merging.returncode is None:
                os.killpg(merging.pid, signal.SIGKILL)
                merging.wait()
        if status:
            raise MergeFailed(f"the merge failed with status {status}")
        if not os.listdir(made):
            raise MergeFailed("the merge has written nothing")
        return made

    def _forget(self, number: int, source: str) -> None:
        """Remove what no round needs any more."""
        used = os.path.relpath(source, self.where.folder).partition("/")[0] if source else ""
        for name in os.listdir(self.where.folder):
            kind, _, text = name.partition("_")
            old = digits(text)
            if kind in ("round", "version") and old is not None and old < number - 1 and name != used:
                shutil.rmtree(self._path(name), ignore_errors=True)


# -- other jobs -----------------------------------------------------------------------------


def making_way(run: Runner, copies: Sequence[str]) -> list[str]:
    """Put back into the queue as many copies, the first ones, as jobs wait for what they hold; those that went.

    Copies are on idle nodes only: they were submitted with the lowest priority, and wait behind all others there.
    """
    if not copies:
        return []
    held = run(["squeue", "-h", "-j", ",".join(copies), "-o", "%i|%P"], "")
    rows = [line.split("|") for line in held.stdout.splitlines() if line.count("|") == 1]
    partitions = sorted({name for _, name in rows})
    if held.returncode or not partitions:
        return []
    waits = run(["squeue", "-h", "-t", "PENDING", "-p", ",".join(partitions), "-o", "%r|%j"], "")
    rows = [line.split("|", 1) for line in waits.stdout.splitlines() if "|" in line]
    # Copies and companions of other jobs have no better claim to idle nodes.
    wanting = [name for why, name in rows if why in ("Resources", "Priority") and not name.startswith("pal-elastic-")]
    left = []
    for copy in copies[: len(wanting)]:
        if run(["scontrol", "requeue", copy], "").returncode == 0:
            left.append(copy)
    return left
