# SPDX-License-Identifier: MIT
"""What readers need to know and no trace says."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.simulate.throughput_file import Throughputs

CLASSES = (*SENSITIVITY_CLASSES, "D", UNKNOWN_CLASS)
"""What a job of a trace may have; D (memory-bound) is a class of its own in the published traces."""

OTHERS = "*"
"""The name in an application table that stands for every model that has no row of its own."""


class App(NamedTuple):
    """What is known of an application; None: not given here."""

    iteration_s: float | None = None  # on median GPUs of one node
    sensitivity: str | None = None


class ReaderOptions(NamedTuple):
    """All options of all readers; each takes what concerns it."""

    apps: Mapping[str, App] = {}  # sia, shockwave: model -> application
    site_apps: Mapping[str, str] = {}  # sacct: [apps] of pal.toml
    patterns: tuple[tuple[str, str], ...] = ()  # sacct: (glob over job names, application or class)
    processors_per_gpu: int = 1  # swf
    throughputs: Throughputs | None = None  # gavel: steps/s by model and GPU type


def app_of(model: str, own: Mapping[str, App], built_in: Mapping[str, App]) -> App:
    """What is known of a model: the user's table, then the built-in one, then the user's `*` row."""
    rows = [table[model] for table in (own, built_in) if model in table]
    rows += [own[OTHERS]] if OTHERS in own else []
    return App(
        next((row.iteration_s for row in rows if row.iteration_s is not None), None),
        next((row.sensitivity for row in rows if row.sensitivity is not None), None),
    )


def load_apps(path: str) -> dict[str, App]:
    """An application table: TOML, or JSON where the name ends so; model -> {iteration_s, class}.

    Raises UsageError with file, model and what is allowed.
    """
    try:
        with open(path, "rb") as stream:
            table = json.load(stream) if path.endswith(".json") else tomllib.load(stream)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # both parsers' errors and UnicodeDecodeError are ValueErrors
        raise UsageError(f"{path}: cannot be read as an application table: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: an application table maps models to {{iteration_s, class}}, not {table!r:.60}")
    return {model: _app(f"{path}: {model}", row) for model, row in table.items()}


def _app(where: str, row: object) -> App:
    if not isinstance(row, dict) or row.keys() - {"iteration_s", "class"}:
        raise UsageError(f"{where} = {row!r:.60} must be a table with iteration_s and class, either optional")
    iteration_s, sensitivity = row.get("iteration_s"), row.get("class")
    if iteration_s is not None and (
        isinstance(iteration_s, bool) or not isinstance(iteration_s, int | float) or not 0 < iteration_s < math.inf
    ):
        raise UsageError(f"{where}: iteration_s = {iteration_s!r} must be seconds above 0")
    if sensitivity is not None and sensitivity not in CLASSES:
        raise UsageError(f"{where}: class = {sensitivity!r} is not one of {', '.join(CLASSES)}")
    return App(None if iteration_s is None else float(iteration_s), sensitivity)


def parse_patterns(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """`GLOB=APP` or `GLOB=CLASS` words. Raises UsageError for one without a glob or a name."""
    pairs = []
    for text in texts:
        glob, _, name = text.rpartition("=")
        if not glob or not name:
            raise UsageError(f"application pattern {text!r} must be GLOB=APP or GLOB=CLASS, like 'train-*=resnet50'")
        pairs.append((glob, name))
    return tuple(pairs)
