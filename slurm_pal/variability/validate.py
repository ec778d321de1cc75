# SPDX-License-Identifier: MIT
"""Type and text checks of a record that came over a shared directory.

`records.from_json` checks the structure and the values that are divided by; here every
field must be of its declared type, finite and printable, so that nothing a node wrote
can break the classification of the others or the snapshot's text columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from slurm_pal.base.errors import DataError
from slurm_pal.variability.records import MOST_NUMBER, Record

MAX_TEXT = 2000
MAX_LIST = 100_000
MOST_DEPTH = 8
LEAST_VALUE, MOST_VALUE = 1e-9, 1e15
"""Of a valid run, in any unit: far beyond every device, and the ratio of two such numbers is still a number."""


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_NUMBER  # no NaN either


def _storable(value: object, depth: int = 0) -> bool:
    """Whether a value from JSON can be written as JSON again, and read by whoever sums it up."""
    if depth > MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_text(key) and _storable(inner, depth + 1) for key, inner in value.items())
    if isinstance(value, list):
        return len(value) <= MAX_LIST and all(_storable(inner, depth + 1) for inner in value)
    return value is None or isinstance(value, bool) or _text(value) or _number(value)


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(_text(k) and _text(v) for k, v in value.items())


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (_text, f"a printable text of at most {MAX_TEXT} characters"),
    "str | None": (lambda v: v is None or _text(v), "a printable text or null"),
    "int": (_whole, "a whole number"),
    "int | None": (lambda v: v is None or _whole(v), "a whole number or null"),
    "float": (_number, "a finite number"),
    "float | None": (lambda v: v is None or _number(v), "a finite number or null"),
    "bool": (lambda v: isinstance(v, bool), "true or false"),
    "dict[str, str]": (_texts, "a table of texts"),
    "dict[str, Any]": (lambda v: isinstance(v, dict) and _storable(v), "a table of texts and finite numbers"),
    "tuple[str, ...]": (lambda v: len(v) <= MAX_LIST and all(_text(x) for x in v), "a list of texts"),
    "tuple[float, ...]": (lambda v: len(v) <= MAX_LIST and all(_number(x) for x in v), "a list of finite numbers"),
}


def check_types(record: Record) -> None:
    """Raises DataError naming the first field that is not of its declared type, and its value."""
    check_fields(record)
    value = record.result.value
    if record.valid and not LEAST_VALUE <= value <= MOST_VALUE:
        raise DataError(f"result.value = {value:g} must be from {LEAST_VALUE:g} to {MOST_VALUE:g}")
    if not record.sweep_id:
        raise DataError("sweep_id is empty")


def check_fields(part: Any, prefix: str = "") -> None:  # noqa: ANN401 - a dataclass of the types above
    """Raises DataError naming the first field that is not of its declared type, and its value."""
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            check_fields(value, f"{prefix}{field.name}.")
            continue
        fits, wanted = _CHECKS[str(field.type)]
        if not fits(value):
            raise DataError(f"{prefix}{field.name} = {str(value)[:60]!r} must be {wanted}")
