# SPDX-License-Identifier: MIT
"""GPUs that jobs were found to wait for since their last measurement, and what is done about each: STATE_DIR/late.json.

The tick writes it, and whoever publishes scores reads it. One JSON object, replaced atomically.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted, write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.store.snapshot import GpuScore

SCHEMA = "pal.late/1"
LATE = "late"
"""The flag of such a GPU."""
RELEASED, OBSERVE, ANNOTATE, AVOID, RESERVE, DRAIN = "released", "observe", "annotate", "avoid", "reserve", "drain"
RUNGS = (RELEASED, OBSERVE, ANNOTATE, AVOID, RESERVE, DRAIN)
"""What is done about a GPU, the mildest first; each rung includes those before it."""
LARGEST = 8 << 20


class Heard(NamedTuple):
    """What one job says of one GPU: its newest word."""

    job_id: int
    user: str
    factor: float  # how many times longer the job takes because of it
    sensitivity: str
    at_s: float  # Unix s
    looks: int = 1  # words of different times
    agreed: bool = False  # several users say so: it comes from the steps of their jobs


class LateGpu(NamedTuple):
    """One GPU and its rung."""

    node: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    uuid: str  # "": never measured
    rung: str
    since_s: float  # on this rung, Unix s
    heard: tuple[Heard, ...] = ()
    measured: int = 0  # how often it was measured for this reason, and late again
    reserved_s: float = 0.0  # when its node was last reserved; 0.0: never
    reserved: bool = False  # it is now
    drained: bool = False  # its node, by us

    @property
    def factor(self) -> float:
        """What jobs believe, each user with one vote."""
        votes = {one.user: one.factor for one in sorted(self.heard, key=lambda one: one.at_s)}
        ranked = sorted(votes.values())
        return ranked[(len(ranked) - 1) // 2] if ranked else 1.0

    @property
    def felt_by(self) -> frozenset[str]:
        """The classes that feel it: those of its jobs, and the more sensitive ones."""
        places = [SENSITIVITY_CLASSES.index(one.sensitivity) for one in self.heard
                  if one.sensitivity in SENSITIVITY_CLASSES]  # fmt: skip
        return frozenset(SENSITIVITY_CLASSES[: max(places, default=0) + 1])

    def at_least(self, rung: str) -> bool:
        """Whether so much, or more, is done about it."""
        return RUNGS.index(self.rung) >= RUNGS.index(rung)


def path_of(state_dir: str) -> str:
    """The file."""
    return os.path.join(state_dir, "late.json")


def read(path: str) -> tuple[LateGpu, ...]:
    """What is known; () where there is no file. Raises DataError for one that cannot be used."""
    try:
        table = json.loads(read_trusted(path, LARGEST))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise DataError(f"{path} is not {SCHEMA!r}")
    try:
        return tuple(_gpu(row) for row in table["gpus"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds a GPU that cannot be read ({error!r})") from None


def _gpu(row: dict[str, Any]) -> LateGpu:
    one = LateGpu(**{**row, "heard": tuple(Heard(**heard) for heard in row["heard"])})
    numbers = (one.since_s, one.reserved_s, *(value for heard in one.heard for value in (heard.factor, heard.at_s)))
    if one.rung not in RUNGS or not all(math.isfinite(value) for value in numbers):
        raise ValueError(f"rung {one.rung!r}")
    return one


def set_aside(path: str) -> str:
    """Keep a file that cannot be used under another name, which is returned. Raises DataError."""
    kept = f"{path}.unread"
    try:
        os.replace(path, kept)
    except OSError as error:
        raise DataError(f"{path} cannot be moved to {kept} ({error.strerror}): move it away") from None
    return kept


def write(path: str, gpus: Iterable[LateGpu]) -> None:
    """Replace the file, 0600: it shows whose job runs where. Raises DataError."""
    rows = [{**gpu._asdict(), "heard": [heard._asdict() for heard in gpu.heard]} for gpu in gpus]
    try:
        write_atomic(path, json.dumps({"schema": SCHEMA, "gpus": rows}, allow_nan=False) + "\n", 0o600)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror})") from None


def shown(scores: Iterable[GpuScore], late: Iterable[LateGpu], levels: dict[str, list[float]]) -> list[GpuScore]:
    """The scores with the flag; what is to be avoided is as slow as its jobs found it, until it is measured again."""
    held = {(one.node, one.index): one for one in late if one.rung != RELEASED}
    found = []
    for score in scores:
        one = held.get((score.node, score.index))
        if one is None or one.uuid not in ("", score.uuid) or _measured_since(score, one):
            found.append(score)
            continue
        flags = tuple(dict.fromkeys((*score.flags, LATE)))
        found.append((_slower(score, one, levels) if one.at_least(AVOID) else score)._replace(flags=flags))
    return found


def _measured_since(score: GpuScore, one: LateGpu) -> bool:
    return score.measured_s > max((heard.at_s for heard in one.heard), default=0.0)


def _slower(score: GpuScore, one: LateGpu, levels: dict[str, list[float]]) -> GpuScore:
    slowdown, bins = dict(score.slowdown), dict(score.variability_class)
    for c in one.felt_by:
        slowdown[c] = max(slowdown.get(c, 1.0), one.factor)
        if known := levels.get(c):
            bins[c] = f"v{min(range(len(known)), key=lambda k: abs(known[k] - slowdown[c]))}"
    return score._replace(slowdown=slowdown, variability_class=bins)
