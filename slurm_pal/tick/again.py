# SPDX-License-Identifier: MIT
"""Decide a kept tick again, by the Decider itself, and compare: pure but for what it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from slurm_pal.base.errors import one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.tick.coding import coded
from slurm_pal.tick.deciding import Decided, Decider
from slurm_pal.tick.hearing import NeverAskedError, Repeating, trouble_of
from slurm_pal.tick.kept import KeptTick

SEEN = frozenset({"scores"})
"""Fields of `Decided` that only repeat what was given."""
_SHOWN = 160  # characters of a value in a difference
_ABSENT = "nothing"


class Again(NamedTuple):
    """One kept tick, decided again."""

    kept: KeptTick
    decided: Decided | None  # now; None where it fails
    differences: tuple[str, ...]  # one line each; none: identical

    @property
    def identical(self) -> bool:
        return not self.differences


def outcome(decided: Decided) -> dict[str, Any]:
    """A decision as JSON has it, field by field; of the jobs in it the numbers."""
    return {
        name: coded(value, _number) for name, value in zip(decided._fields, decided, strict=True) if name not in SEEN
    }


def _number(value: object) -> object:
    """The number of a job in place of the job, or of what is only about it."""
    job = getattr(value, "job", None) if isinstance(value, tuple) else None
    found = value if isinstance(value, SlurmJob) else job
    return found.job_id if isinstance(found, SlurmJob) else value


def again(kept: KeptTick) -> Again:
    """Decide it again, and compare. Never raises for what a file may hold."""
    source = Repeating(kept.heard, {one.path: one for one in kept.reads})
    decided, now, failed = None, {}, ("", "")
    try:
        decider = Decider(**kept.made, journal=source.journal, reader=source.read)
        if kept.past is not None:
            decider.take_over(kept.past, kept.given["overview"])
        decided = decider.decide(**kept.given)
        now = json.loads(json.dumps(outcome(decided)))
    except NeverAskedError as error:
        failed = "", one_line(error)
    except Exception as error:
        failed = trouble_of(error)
    return Again(kept, decided, tuple(_compared(kept, now, failed)))


def _compared(kept: KeptTick, now: dict[str, Any], failed: tuple[str, str]) -> Iterator[str]:
    if failed[1] and not failed[0]:
        yield f"it asks for what was not asked then: {failed[1]}"
    elif failed[0] != kept.failed[0]:
        yield f"it {_ended(kept.failed, 'was decided')}, now it {_ended(failed, 'is decided')}"
    elif not failed[0]:
        for name in (*kept.decided, *(name for name in now if name not in kept.decided)):
            yield from _differ(name, _plain(kept.decided.get(name)), _plain(now.get(name)))


def _ended(failed: tuple[str, str], otherwise: str) -> str:
    return f"failed ({failed[0]}: {failed[1]})" if failed[0] else otherwise


def _plain(found: Any) -> Any:  # noqa: ANN401  # JSON
    """A coded value for reading: named tuples as objects."""
    if not isinstance(found, dict) or "kinds" not in found:
        return found
    return _read(found["value"], [row[1:] for row in found["kinds"]])


def _read(value: Any, kinds: list[list[str]]) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, list):
        return [_read(one, kinds) for one in value]
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((form, body),) = value.items()
    if form == "t":
        return dict(zip(kinds[body[0]], (_read(one, kinds) for one in body[1:]), strict=False))
    if form == "m":
        return {json.dumps(_read(key, kinds)).strip('"'): _read(one, kinds) for key, one in body}
    if form in ("l", "s"):
        return [_read(one, kinds) for one in body]
    return body[1] if form == "e" else body


def _differ(place: str, before: Any, now: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    """Where two values differ, one line for each place."""
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for key in (*before, *(key for key in now if key not in before)):
            yield from _differ(f"{place}, {key}", before.get(key, _ABSENT), now.get(key, _ABSENT))
    elif isinstance(before, list) and isinstance(now, list):
        yield from _differ_in_rows(place, before, now)
    else:
        yield f"{place}: was {_shown(before)}, is {_shown(now)}"


def _differ_in_rows(place: str, before: list[Any], now: list[Any]) -> Iterator[str]:
    was, found = _by_job(before), _by_job(now)
    if was.keys() == found.keys() and all(was[key] == found[key] for key in was):
        yield f"{place}: in another order"
        return
    for key in (*was, *(key for key in found if key not in was)):
        yield from _differ(f"{place}, {key}", was.get(key, _ABSENT), found.get(key, _ABSENT))


def _by_job(rows: list[Any]) -> dict[str, Any]:
    """Rows by the job that they are about, else by their place."""
    found: dict[str, Any] = {}
    for place, row in enumerate(rows):
        name = f"job {row['job_id']}" if isinstance(row, dict) and "job_id" in row else f"number {place + 1}"
        while name in found:
            name += "'"
        found[name] = row
    return found


def _shown(value: Any) -> str:  # noqa: ANN401  # JSON
    text = value if value == _ABSENT else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
