# SPDX-License-Identifier: MIT
"""Times of pairs of nodes, from the spool into STATE_DIR/network.jsonl, and what they say of each network level.

Each node of a pair drops SPOOL/incoming/<sweep_id>.<node>.<job>.pair.json by rename. The file in the state
directory has their lines, the newest last. Levels are computed when scores are published: a network that was
rebuilt since gives them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from statistics import fmean, median

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import MOST_BYTES, open_trusted, read_trusted, write_atomic
from slurm_pal.store.ingest import Complaint, move, names, spool_directories
from slurm_pal.store.snapshot import LevelRatio
from slurm_pal.variability.pair_times import PairTimes, from_json
from slurm_pal.variability.params import DAY_S

FILE_NAME = "network.jsonl"
SUFFIX = ".pair.json"
MOST_LINES = 4000
MAX_BYTES = 1 << 16

Level = Callable[[Collection[str]], int | None]
"""The level at which nodes are together; None: unknown."""


def file_name(sweep_id: str, node: str, job_id: int) -> str:
    """Of what one node measured in one job."""
    return f"{sweep_id}.{node}.{job_id}{SUFFIX}"


def path_of(state_dir: str) -> str:
    return os.path.join(state_dir, FILE_NAME)


def present(spool_dir: str, state_dir: str) -> bool:
    """Whether any pair was ever measured here."""
    return os.path.exists(path_of(state_dir)) or bool(names(spool_directories(spool_dir)[0], SUFFIX))


def read(state_dir: str) -> list[PairTimes]:
    """All that was taken in; [] where nothing was. Raises DataError."""
    path, found = path_of(state_dir), []
    try:
        lines = read_trusted(path, MOST_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        try:
            found.append(from_json(line))
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}; move it away, and measure again") from None
    return found


def read_drop(path: str) -> PairTimes:
    """What one node dropped. Raises FileNotFoundError, or DataError where it is not to be believed."""
    try:
        with os.fdopen(open_trusted(path, follow=False), "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        found = from_json(raw[:MAX_BYTES].decode())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError("is not UTF-8") from None
    name = file_name(found.sweep_id, found.node, found.slurm_job_id)
    if os.path.basename(path) != name:
        raise DataError(f"has the times of {name[:200]!r}")
    return found


def take_in(spool_dir: str, state_dir: str) -> list[Complaint]:
    """Take in what nodes have dropped; what is wrong with the rest. One writer only. Raises DataError."""
    incoming, ingested, rejected = spool_directories(spool_dir)
    complaints: list[Complaint] = []
    good: list[tuple[str, PairTimes]] = []
    for name in names(incoming, SUFFIX):
        try:
            good.append((name, read_drop(os.path.join(incoming, name))))
        except FileNotFoundError:
            continue
        except DataError as error:
            complaints.append(Complaint(name, 0, str(error)))
            move(incoming, name, rejected)
    if good:
        rows = sorted(dict.fromkeys((*read(state_dir), *(row for _, row in good))), key=lambda row: row.ts)
        try:
            write_atomic(path_of(state_dir), "".join(f"{row.to_json()}\n" for row in rows[-MOST_LINES:]))
        except OSError as error:
            raise DataError(f"{path_of(state_dir)} cannot be written: {error.strerror}") from None
    for name, _ in good:
        move(incoming, name, ingested)
    return complaints


def level_ratios(rows: Iterable[PairTimes], level: Level, now_s: float, oldest_s: float) -> dict[int, LevelRatio]:
    """What the newest measurement of each pair says of its level. Pure.

    A large message counts by the bytes that cross each link, so that the number of GPUs does not matter: 2 (n - 1) / n
    times the message over n GPUs. Measurements from before `oldest_s` are forgotten. Emulated and real ones never mix:
    those of the newest one's backend count.
    """
    newest: dict[frozenset[str], tuple[PairTimes, PairTimes]] = {}
    for pair in _complete(row for row in rows if oldest_s <= row.ts <= now_s + DAY_S):
        known = newest.get(frozenset(pair[0].nodes))
        if known is None or known[0].ts <= pair[0].ts:
            newest[frozenset(pair[0].nodes)] = pair
    last = max(newest.values(), key=lambda pair: pair[0].ts, default=None)
    at: dict[int, list[tuple[PairTimes, PairTimes]]] = {}
    for nodes, pair in newest.items():
        found = level(nodes)
        if found and last and pair[0].backend == last[0].backend:
            at.setdefault(found, []).append(pair)
    return {
        number: LevelRatio(
            ratio=round(median(_large(pair) for pair in pairs), 4),
            small_ratio=round(median(_small(pair) for pair in pairs), 4),
            pairs=len(pairs),
            measured_s=max(pair[0].ts for pair in pairs),
        )
        for number, pairs in sorted(at.items())
    }


def _complete(rows: Iterable[PairTimes]) -> Iterator[tuple[PairTimes, PairTimes]]:
    """Measurements of which both nodes have told their part."""
    halves: dict[tuple[object, ...], dict[str, PairTimes]] = {}
    for row in rows:
        halves.setdefault((row.sweep_id, row.slurm_job_id, row.nodes, row.gpus, row.backend), {})[row.node] = row
    for found in halves.values():
        if len(found) == 2:
            one, other = found.values()
            yield one, other


def _large(pair: tuple[PairTimes, PairTimes]) -> float:
    n = pair[0].gpus
    links = (2.0 * (2 * n - 1) / (2 * n)) / (2.0 * (n - 1) / n)  # traffic of each link, between over within
    return max(row.large_between_s for row in pair) / fmean(row.large_within_s for row in pair) / links


def _small(pair: tuple[PairTimes, PairTimes]) -> float:
    return max(row.small_between_s for row in pair) / fmean(row.small_within_s for row in pair)
