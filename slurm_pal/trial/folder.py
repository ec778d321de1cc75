# SPDX-License-Identifier: MIT
"""The folder of a trial: its plan, its traces, and one file for each arm that was finished."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from slurm_pal.base.errors import BusyError, DataError, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.placement.occupancy import Table
from slurm_pal.simulate.inputs import own, read
from slurm_pal.simulate.trace import Trace
from slurm_pal.trial.live import ArmResult
from slurm_pal.trial.ran import from_row
from slurm_pal.trial.strain import Strain

PLAN, PLAN_SCHEMA, ARM_SCHEMA = "plan.json", "pal.trial-plan/1", "pal.trial-arm/1"


class TrialPlan(NamedTuple):
    """What a trial runs, but for its traces. Times are s of the trace where not said otherwise."""

    traces: tuple[str, ...]  # names
    nodes: int
    gpus: int  # per node
    compress: float
    arms: tuple[str, ...]
    seed: int
    true: Mapping[str, Table]  # class -> [node][index]
    profile: str  # what the GPUs are, in words
    edits: tuple[tuple[str, str], ...]  # of slurm.conf
    settings: Mapping[str, str]  # of pal.toml in compressed time, as SECTION.KEY
    locality_penalty: float
    move_cost_s: float
    notes: tuple[str, ...]


class TrialFolder:
    """One folder; the traces in it are fitted to the lab already."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def make(self, plan: TrialPlan, traces: tuple[Trace, ...]) -> None:
        """Raises UsageError if it cannot be made or holds something."""
        try:
            os.makedirs(self.path, exist_ok=True)
            if os.listdir(self.path):
                raise UsageError(f"{self.path} is not empty: give a new --out, or --resume a trial that is there")
            for number, trace in enumerate(traces):
                write_atomic(self._trace(number), own.as_text(trace))
            self.write_plan(plan)
        except OSError as error:
            raise UsageError(f"--out {self.path}: {error.strerror}: name another folder") from None

    def write_plan(self, plan: TrialPlan) -> None:
        """Write or replace the plan. Raises OSError."""
        write_atomic(os.path.join(self.path, PLAN), json.dumps({"schema": PLAN_SCHEMA, **plan._asdict()}) + "\n")

    def load(self) -> tuple[TrialPlan, tuple[Trace, ...]]:
        """Raises UsageError where there is no trial, DataError for one that cannot be read."""
        path = os.path.join(self.path, PLAN)
        if not os.path.exists(path):
            raise UsageError(f"--resume {self.path}: there is no trial (no {PLAN} in it); begin one with --out")
        row = _json(path, PLAN_SCHEMA)
        try:
            values = {name: row[name] for name in TrialPlan._fields}
            for name in ("traces", "arms", "notes"):
                values[name] = tuple(values[name])
            plan = TrialPlan(**{**values, "edits": tuple((a, b) for a, b in values["edits"])})
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error!r}") from None
        return plan, tuple(read(self._trace(number), "pal") for number in range(len(plan.traces)))

    def keep(self, trace: int, result: ArmResult) -> None:
        """Write a finished arm. Raises OSError."""
        row = result._asdict() | {"strain": result.strain._asdict(), "jobs": [job._asdict() for job in result.jobs]}
        write_atomic(self._arm(trace, result.name), json.dumps({"schema": ARM_SCHEMA, **row}) + "\n")

    def kept(self, trace: int, arm: str, jobs: int) -> ArmResult | None:
        """A finished arm, None where there is none. Raises DataError."""
        path = self._arm(trace, arm)
        if not os.path.exists(path):
            return None
        row = _json(path, ARM_SCHEMA)
        try:
            found = ArmResult(
                arm, tuple(from_row(one) for one in row["jobs"]), Strain(**row["strain"]), float(row["lasted_s"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: cannot be read: {error!r}; delete it, and the arm is run again") from None
        if len(found.jobs) != jobs:
            raise DataError(
                f"{path}: {len(found.jobs)} jobs, the trace has {jobs}; delete it, and the arm is run again"
            )
        return found

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep another run of this trial out. Raises BusyError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise BusyError(f"the trial in {self.path} is running already") from None
        finally:
            os.close(descriptor)

    def _trace(self, number: int) -> str:
        return os.path.join(self.path, f"trace-{number}.csv")

    def ticks(self, trace: int, arm: str) -> str:
        """The folder in which the ticks of an arm are kept."""
        return os.path.join(self.path, f"ticks-{trace}-{arm}")

    def _arm(self, trace: int, arm: str) -> str:
        return os.path.join(self.path, f"arm-{trace}-{arm}.json")


def _json(path: str, schema: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            row = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if not isinstance(row, dict) or row.get("schema") != schema:
        found = row.get("schema") if isinstance(row, dict) else None
        raise DataError(f"{path}: schema {found!r}, this version reads {schema!r}")
    return row
