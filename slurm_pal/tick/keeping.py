# SPDX-License-Identifier: MIT
"""Keep ticks: write down all that a decision depends on while it is made, and what was decided."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import zlib
from collections import Counter
from typing import Any

from slurm_pal import __version__
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import locked, remove_leftovers, write_atomic
from slurm_pal.tick import kept
from slurm_pal.tick.again import outcome
from slurm_pal.tick.coding import encode
from slurm_pal.tick.deciding import Decided, Decider
from slurm_pal.tick.hearing import Listening, trouble_of

OWN_BYTES = 4096
"""What is larger may be the same at other ticks, and is kept once."""
LEVEL = 3  # of packing: 1.3 times the size of the best in a fifth of its time
MIB = 1 << 20
_ELSEWHERE = frozenset({"self", "journal", "reader"})
"""What a decider is made with and is not kept as a value: what it hears from them is."""
_FORM, _DECIDE = inspect.signature(Decider.__init__), inspect.signature(Decider.decide)


class NotedDecider(Decider):
    """Decides as a Decider, by its very code, and notes what the last decision depended on."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401  # as Decider takes them
        bound = _FORM.bind(self, *given, **named)
        bound.apply_defaults()
        self.made = {name: value for name, value in bound.arguments.items() if name not in _ELSEWHERE}
        self.notes = Listening(bound.arguments["journal"])
        super().__init__(**self.made, journal=self.notes.journal, reader=self.notes.read)
        self.forget()

    def forget(self) -> None:
        """Nothing was decided yet."""
        self.given: dict[str, Any] = {}
        self.before: Any = None
        self.decided: Decided | None = None
        self.failed = "", ""

    def decide(self, *given: Any, **named: Any) -> Decided:  # noqa: ANN401  # as Decider takes them
        """As `Decider.decide`."""
        bound = _DECIDE.bind(self, *given, **named)
        bound.apply_defaults()
        self.given = {name: value for name, value in bound.arguments.items() if name != "self"}
        self.before, self.decided, self.failed = self.past, None, ("", "")
        self.notes.begin()
        try:
            self.decided = super().decide(**self.given)
        except Exception as error:
            self.failed = trouble_of(error)
            raise
        return self.decided

    @property
    def taken_over(self) -> Any:  # noqa: ANN401  # None or what `past` was
        """What the last decision took over from the one before; None where it looked anew."""
        after = self.past
        return self.before if after and self.before and after.made_s == self.before.made_s else None


class Keeper:
    """The kept ticks of one folder, and who writes them: one process at a time."""

    def __init__(self, folder: str, most_mib: float, now_s: float) -> None:
        """Raises DataError where nothing can be kept there, BusyError beside another writer."""
        self._folder, self._most = os.path.abspath(folder), int(most_mib * MIB)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._lock = locked(os.path.join(self._folder, "lock"), "a pal-rebalance that keeps its ticks here")
            self._lock.__enter__()
        except OSError as error:
            raise DataError(f"no ticks can be kept in {self._folder} ({error.strerror}): name another folder") from None
        remove_leftovers(self._folder, now_s)
        self._sizes: dict[str, int] = {}  # of all files
        self._uses: Counter[str] = Counter()  # part -> ticks that need it
        self._ticks: dict[int, tuple[str, ...]] = {}  # number -> parts, oldest first
        self._find()

    def _find(self) -> None:
        """What is there already."""
        whole = True
        for number in kept.numbers(self._folder):
            try:
                parts = kept.read_head(self._folder, number).parts
            except DataError:
                parts, whole = (), False
            self._ticks[number] = parts
            self._uses.update(parts)
        for name in os.listdir(self._folder):
            if name.startswith(("tick-", "part-")):
                self._sizes[name] = os.stat(os.path.join(self._folder, name)).st_size
        if whole:
            for name in [name for name in self._sizes if name.startswith("part-")]:
                if not self._uses[name.removeprefix("part-").removesuffix(".gz")]:
                    self._remove(name)  # of a writer that was killed

    def keep(self, by: NotedDecider, at_s: float, tick: dict[str, Any]) -> None:
        """Write down the last decision; `tick` is what else there is to know. Raises DataError."""
        if not by.given:
            return
        try:
            self._keep(by, at_s, tick)
        except OSError as error:
            raise DataError(f"{self._folder}: this tick is not kept ({error.strerror})") from None
        except (TypeError, ValueError) as error:
            raise DataError(f"{self._folder}: this tick is not kept ({error})") from None
        finally:
            by.forget()

    def _keep(self, by: NotedDecider, at_s: float, tick: dict[str, Any]) -> None:
        number = max(self._ticks, default=0) + 1
        parts: dict[str, None] = {}
        reads = [
            {"path": one.path, "trouble": one.trouble, "part": "" if one.trouble else self._part(one.raw, parts)}
            for one in by.notes.reads.values()
        ]
        body = {
            "made": _object({name: self._piece(value, parts) for name, value in by.made.items()}),
            "given": _object({name: f'{{"own":{encode(value)}}}' for name, value in by.given.items()}),
            "past": self._piece(by.taken_over, parts),
            "heard": f"[{','.join(self._piece(one, parts) for one in by.notes.heard)}]",
            "reads": json.dumps(reads),
            "decided": json.dumps(outcome(by.decided) if by.decided is not None else {}),
            "failed": json.dumps(by.failed),
            "tick": json.dumps(tick),
        }
        head = {"schema": kept.SCHEMA, "release": __version__, "number": number, "at_s": at_s, "parts": [*parts]}
        name = kept.tick_name(number)
        self._write(name, f"{json.dumps(head)}\n{_object(body)}\n".encode())
        self._ticks[number] = tuple(parts)
        self._uses.update(self._ticks[number])
        self._trim()

    def _piece(self, value: object, parts: dict[str, None]) -> str:
        text = encode(kept.kept_settings(value) if isinstance(value, Config) else value)
        if len(text) < OWN_BYTES:
            return f'{{"own":{text}}}'
        return json.dumps({"part": self._part(text.encode(), parts)})

    def _part(self, raw: bytes, parts: dict[str, None]) -> str:
        """The name of a part with this content, which is written if it is new."""
        content = kept.hash_of(raw)
        parts[content] = None
        if kept.part_name(content) not in self._sizes:
            self._write(kept.part_name(content), raw)
        return content

    def _write(self, name: str, raw: bytes) -> None:
        machine = zlib.compressobj(LEVEL, wbits=31)
        packed = machine.compress(raw) + machine.flush()
        write_atomic(os.path.join(self._folder, name), packed, 0o600)
        self._sizes[name] = len(packed)

    def _trim(self) -> None:
        """The oldest ticks go where all together are too large; the newest stays."""
        while sum(self._sizes.values()) > self._most and len(self._ticks) > 1:
            number = next(iter(self._ticks))
            parts = self._ticks.pop(number)
            self._uses.subtract(parts)
            self._remove(kept.tick_name(number))
            for content in [content for content in parts if self._uses[content] <= 0]:
                del self._uses[content]
                self._remove(kept.part_name(content))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))
        self._sizes.pop(name, None)

    def close(self) -> None:
        """Let another process keep its ticks here."""
        self._lock.__exit__()


def _object(texts: dict[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items()) + "}"
