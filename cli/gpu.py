# SPDX-License-Identifier: MIT
"""A GPU on the command line: NODE:INDEX, or the beginning of its UUID. The same in every command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.faults import NO_UUID
from slurm_pal.base.hostlist import fold
from slurm_pal.base.numbers import digits

if TYPE_CHECKING:  # it brings sqlite3, which other commands start without
    from slurm_pal.store.database import Database

LEAST = 8
"""This many characters of a UUID, after its GPU- or MIG-, name a GPU; fewer are too easily mistyped."""
MOST_SHOWN = 5
FORMS = "NODE:INDEX like n7:0, or a UUID"
METAVAR = "NODE:INDEX|UUID"


class Place(NamedTuple):
    """A known GPU, and where it is; `uuid` is "" for one that was never measured."""

    node: str
    gpu_index: int  # Slurm's
    uuid: str

    def text(self) -> str:
        return f"{self.uuid} ({self.node}:{self.gpu_index})" if self.uuid else f"{self.node}:{self.gpu_index}"


class Gpu(NamedTuple):
    """A GPU as the user wrote it; click's type for arguments that name one: `type=Gpu, metavar=METAVAR`."""

    text: str

    def among(self, known: Iterable[Place]) -> Place:
        """The GPU meant; the first of several at one slot. Raises UsageError with the candidates."""
        places = list(known)
        node, _, number = self.text.rpartition(":")
        slot = node, digits(number)
        at_slot = [p for p in places if (p.node, p.gpu_index) == slot]
        if at_slot:
            return at_slot[0]
        begun = [p for p in places if self.text and p.uuid.startswith(self.text)]
        whole = [p for p in begun if p.uuid == self.text]
        if whole or (len(begun) == 1 and len(_bare(self.text)) >= LEAST):
            return (whole or begun)[0]
        raise UsageError(self._why_not(places, begun))

    def _why_not(self, places: Sequence[Place], begun: Sequence[Place]) -> str:
        if len(begun) > 1:
            return f"{len(begun)} GPUs begin with {self.text!r}: {_shown(begun)}; write more of it"
        if begun:
            return f"{self.text!r} is too short for a GPU, {LEAST} characters after GPU- are needed: {_shown(begun)}?"
        node, _, number = self.text.rpartition(":")
        beside = [p for p in places if p.node in (self.text, node)]
        if beside:
            at = ", ".join(f"{p.node}:{p.gpu_index}" for p in beside)
            return f"no GPU {self.text!r}: that node has {at}; write {FORMS}"
        if digits(number) is not None and node and places:
            return f"no GPU {self.text!r}: the nodes are {fold(sorted({p.node for p in places}))}; write {FORMS}"
        near = sorted(places, key=lambda p: -_alike(p.uuid, self.text))
        return f"no GPU {self.text!r}: there is {_shown(near)}; write {FORMS}" if near else f"no GPU {self.text!r} here"


def measured(database: Database) -> list[Place]:
    """Every GPU ever seen, where it was last; the one seen most recently first."""
    seen = sorted(database.conditions(valid=False), key=lambda found: -found.ts)
    return [Place(found.node, found.slot, found.uuid) for found in seen if not found.uuid.startswith(NO_UUID)]


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


def _alike(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _shown(places: Sequence[Place]) -> str:
    more = f" and {len(places) - MOST_SHOWN} more" if len(places) > MOST_SHOWN else ""
    return ", ".join(place.text() for place in places[:MOST_SHOWN]) + more
