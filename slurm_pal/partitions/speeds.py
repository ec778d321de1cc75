# SPDX-License-Identifier: MIT
"""What the tick knows of throughputs: the site's table and past runs, kept while both stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.allocation import throughputs
from slurm_pal.allocation.throughputs import Entry, Model, ThroughputKey
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import Reader, read_trusted
from slurm_pal.journal.journal import Journal, Observation
from slurm_pal.partitions import throughput_table as store
from slurm_pal.partitions.claimants import Known, partition_types
from slurm_pal.partitions.history import heard, spellings, types_of
from slurm_pal.sensitivity.catalogue import APPLICATIONS
from slurm_pal.slurm.client import Overview

KEPT_S = 600.0
"""Past runs are looked at again this often: the completion of a large table takes a good part of a second."""

MOST_AT_ONCE = 8
"""Tables of single users that one tick completes; the jobs of other users wait for theirs with what is known to all."""


class Past(NamedTuple):
    """Past runs as they were looked at last: for KEPT_S they count as they were then."""

    made_s: float  # Unix s
    observations: tuple[Observation, ...]
    completed: tuple[str, ...]  # users whose tables have been completed since: they count for no tick's share


class _Own(Mapping[str, Model]):
    """User -> throughputs with what their own jobs reported, completed when first asked for."""

    def __init__(
        self, tables: Sequence[Mapping[ThroughputKey, Entry]], own: Mapping[str, Mapping[ThroughputKey, Entry]],
        types: Sequence[str], completed: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self._tables, self._own, self._types = tables, own, types
        self._made: dict[str, Model] = {}
        self.left = MOST_AT_ONCE
        for user in completed:
            self._made[user] = self._model(user)

    @property
    def completed(self) -> tuple[str, ...]:
        return tuple(self._made)

    def __getitem__(self, user: str) -> Model:
        if user not in self._made:
            if user not in self._own or not self.left:
                raise KeyError(user)
            self.left -= 1
            self._made[user] = self._model(user)
        return self._made[user]

    def _model(self, user: str) -> Model:
        try:
            return throughputs.model(throughputs.merge([*self._tables, self._own[user]]), self._types)
        except (DataError, ArithmeticError, ValueError):  # what one user's jobs reported must not stop anybody else's
            return throughputs.model(throughputs.merge(self._tables), self._types)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class Speeds:
    """Throughputs for one configuration."""

    def __init__(self, config: Config, journal: Journal, reader: Reader = read_trusted) -> None:
        """`reader` reads files."""
        self._path, self._apps, self._journal = config.text("rebalance", "throughputs"), config.apps, journal
        self._reader = reader
        self._seen: tuple[object, ...] = ()
        self._looked: Past | None = None
        self._known: Known | None = None

    @property
    def past(self) -> Past | None:
        """What the next tick takes over from this one."""
        own = self._known.own if self._known is not None else None
        return self._looked and self._looked._replace(completed=own.completed if isinstance(own, _Own) else ())

    def take_over(self, past: Past, overview: Overview) -> None:
        """Go on as the process that had this `past`, and saw these nodes and partitions. Raises as `known` does."""
        self._looked, self._seen = past, self._kinds(overview)
        self._known = self._model(overview, past)

    def known(self, overview: Overview, now_s: float) -> Known:
        """What is known now. Raises DataError for a table that cannot be read or a journal that cannot be used."""
        seen, looked = self._kinds(overview), self._looked
        if self._known is None or looked is None or seen != self._seen or not 0 <= now_s - looked.made_s < KEPT_S:
            looked = Past(now_s, tuple(self._journal.observations(0.0)), ())
            self._known, self._seen, self._looked = self._model(overview, looked), seen, looked
        if isinstance(self._known.own, _Own):
            self._known.own.left = MOST_AT_ONCE
        return self._known

    def _kinds(self, overview: Overview) -> tuple[object, ...]:
        """What makes the tables old where it changes, besides time."""
        partitions = tuple((partition.name, partition.nodes) for partition in overview.partitions)
        return _stamp(self._path), types_of(overview.nodes), partitions

    def _model(self, overview: Overview, past: Past) -> Known:
        stated = store.read(self._path, past.made_s, self._reader) if self._path else {}
        names = spellings([*(key.application for key in stated), *self._apps, *APPLICATIONS])
        told, own = heard(past.observations, types_of(overview.nodes), names, past.made_s)
        table = throughputs.merge([stated, told])
        type_of = partition_types(overview, (key.type for rows in (table, *own.values()) for key in rows))
        types = sorted(set(type_of.values()))
        return Known(throughputs.model(table, types), type_of, names, _Own((stated, told), own, types, past.completed))


def _stamp(path: str) -> tuple[float, int] | None:
    """What changes when the table is replaced; None where there is none to read."""
    if not path:
        return None
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_mtime, info.st_ino
