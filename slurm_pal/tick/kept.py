# SPDX-License-Identifier: MIT
"""Kept ticks: what each of them saw and decided, in a folder, to be decided again.

    tick-0000000042.gz   a line of JSON about the tick, then a line with all that it was decided from, and what was
    part-<hash>.gz       what many ticks have in common, once: a published snapshot, finished moves, settings

The first line has the schema, `pal.tick/1`. Nobody but the owner may read the folder: it shows everybody's jobs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.config import KEYS, Config, Value
from slurm_pal.base.errors import ConfigError, DataError
from slurm_pal.base.files import read_trusted
from slurm_pal.base.numbers import digits
from slurm_pal.base.prices import Rates
from slurm_pal.tick import coding
from slurm_pal.tick.hearing import Heard, Read

SCHEMA = "pal.tick/1"
MOST_BYTES, HEAD_BYTES = 1 << 30, 1 << 16
"""No file, and no first line, is larger once it is unpacked."""
_TICK = re.compile(r"tick-(\d{10})\.gz")


class KeptSettings(NamedTuple):
    """The settings in force, with where each came from."""

    values: tuple[tuple[str, str, Value, str], ...]  # section, name, value, origin; of all settings
    apps: dict[str, str]
    prices: dict[str, Rates] = {}


class KeptHead(NamedTuple):
    """What the first line of a kept tick says."""

    number: int
    at_s: float  # Unix s
    release: str  # of slurm-pal
    parts: tuple[str, ...]


class KeptTick(NamedTuple):
    """One tick: all that its decision depends on, and the decision."""

    head: KeptHead
    made: dict[str, Any]  # what the decider was made with, but for journal and files
    given: dict[str, Any]  # what it was given
    past: Any  # what it took over from the tick before; None: nothing
    heard: tuple[Heard, ...]  # what it asked the journal
    reads: tuple[Read, ...]
    decided: dict[str, Any]  # field of `deciding.Decided` -> it, as `again.outcome` has it; {} where that failed
    failed: tuple[str, str]  # kind and text of the error; ("", "") where there was none
    tick: dict[str, Any]  # what else there is to know of the tick


def kept_settings(config: Config) -> KeptSettings:
    """Settings as a noun."""
    rows = tuple((s, n, config[s, n], config.origin(s, n)) for s, names in KEYS.items() for n in names)
    return KeptSettings(rows, dict(config.apps), dict(config.prices))


def settings_again(kept: KeptSettings) -> Config:
    """The same as settings. A setting that this release does not have is left out. Raises DataError."""
    config = Config()
    config.apps.update(kept.apps)
    config.prices.update(kept.prices)
    try:
        for section, name, value, origin in kept.values:
            if name in KEYS.get(section, {}):
                config.set(section, name, value, origin)
    except (ConfigError, ValueError, TypeError) as error:
        raise DataError(f"settings that this release does not take: {error}") from None
    return config


def tick_name(number: int) -> str:
    return f"tick-{number:010d}.gz"


def part_name(content: str) -> str:
    return f"part-{content}.gz"


def hash_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]


def numbers(folder: str) -> list[int]:
    """The kept ticks of a folder, oldest first. Raises DataError where it cannot be read."""
    try:
        return sorted(int(found[1]) for name in os.listdir(folder) if (found := _TICK.fullmatch(name)))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}: name the folder that rebalance.keep_ticks names") from None


def read_head(folder: str, number: int) -> KeptHead:
    """The first line of a tick. Raises DataError."""
    path = os.path.join(folder, tick_name(number))
    return _head(path, _unpacked(path, HEAD_BYTES, whole=False).partition(b"\n")[0])


def read_tick(folder: str, number: int) -> KeptTick:
    """A tick. Raises DataError for one that is damaged or not of this release's schema."""
    path = os.path.join(folder, tick_name(number))
    first, _, second = _unpacked(path).partition(b"\n")
    head = _head(path, first)
    try:
        body = json.loads(second)
        pieces = _Pieces(folder)
        made = {name: pieces.value(one) for name, one in body["made"].items()}
        return KeptTick(
            head,
            {name: settings_again(one) if isinstance(one, KeptSettings) else one for name, one in made.items()},
            {name: pieces.value(one) for name, one in body["given"].items()},
            pieces.value(body["past"]),
            tuple(pieces.value(one) for one in body["heard"]),
            tuple(pieces.read(one) for one in body["reads"]),
            dict(body["decided"]),
            (str(body["failed"][0]), str(body["failed"][1])),
            dict(body["tick"]),
        )
    except DataError as error:
        raise DataError(f"{path} cannot be decided again: {error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def at(folder: str, wanted_s: float) -> int:
    """The last tick that was not later than that, Unix s; the first where all were later. Raises DataError."""
    found = numbers(folder)
    if not found:
        raise DataError(f"{folder} has no kept tick: pal-rebalance --keep-ticks {folder}, or rebalance.keep_ticks")
    earlier = [number for number in found if read_head(folder, number).at_s <= wanted_s]
    return earlier[-1] if earlier else found[0]


def ticks(folder: str, wanted: Sequence[int]) -> Iterator[KeptTick]:
    """These ticks, one after the other. Raises DataError."""
    for number in wanted:
        yield read_tick(folder, number)


class _Pieces:
    """Values of one tick, those of its own and those that it has in common with others."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def value(self, piece: dict[str, Any]) -> Any:  # noqa: ANN401  # whatever was encoded
        return coding.decoded(piece["own"] if "own" in piece else json.loads(self._part(piece["part"])))

    def read(self, row: dict[str, Any]) -> Read:
        trouble = row["trouble"] and (str(row["trouble"][0]), str(row["trouble"][1]))
        return Read(row["path"], b"" if trouble else self._part(row["part"]), trouble)

    def _part(self, content: str) -> bytes:
        path = os.path.join(self._folder, part_name(re.sub("[^0-9a-f]", "", str(content))))
        raw = _unpacked(path)
        if hash_of(raw) != content:
            raise DataError(f"{path} is damaged (its content is not what its name says)")
        return raw


def _unpacked(path: str, most: int = MOST_BYTES, whole: bool = True) -> bytes:
    """The content of a packed file, or with `whole` false at least its beginning."""
    try:
        packed = read_trusted(path)
        machine = zlib.decompressobj(wbits=31)
        raw = machine.decompress(packed, most)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: delete the ticks that need it") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from None
    except zlib.error as error:
        raise _damaged(path, str(error)) from None
    if whole and not machine.eof:
        raise _damaged(path, "it is cut short" if not machine.unconsumed_tail else "it is too large")
    return raw


def _head(path: str, line: bytes) -> KeptHead:
    try:
        row = json.loads(line)
        kind, _, version = str(row["schema"]).partition("/")
        number = digits(version)
        if kind != SCHEMA.partition("/")[0] or number is None:
            raise DataError(f"{path} is not a kept tick (schema {row['schema']!r:.60})")
        if row["schema"] != SCHEMA:
            age = "newer" if number > int(SCHEMA.partition("/")[2]) else "older"
            cure = f"use the release that wrote it, {row.get('release', '?')!s:.20}"
            raise DataError(f"{path} has schema {row['schema']!r:.60}, {age} than {SCHEMA!r} known here: {cure}")
        parts = tuple(str(one) for one in row["parts"])
        return KeptHead(int(row["number"]), float(row["at_s"]), str(row["release"]), parts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def _damaged(path: str, why: str) -> DataError:
    return DataError(f"{path} is damaged ({why}): delete it, and the others can be read")
