# SPDX-License-Identifier: MIT
"""What a decision takes from journal and files: noted while it is made, and given again when it is made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from slurm_pal.base import errors
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.base.files import read_trusted
from slurm_pal.journal.journal import Journal
from slurm_pal.tick.coding import encode

TOGETHER = "together"


class Heard(NamedTuple):
    """One question to the journal, or one word to it, with what came back."""

    name: str  # the method
    given: tuple[object, ...]
    named: dict[str, object]
    answer: object = None
    trouble: tuple[str, str] | None = None  # kind and text of the error that it raised


class Read(NamedTuple):
    """One file, as it was when it was last read."""

    path: str
    raw: bytes = b""
    trouble: tuple[str, str] | None = None


class NeverAskedError(Exception):
    """The decision asks for what was not asked when it was made: it is another decision."""


def trouble_of(error: Exception) -> tuple[str, str]:
    """An error as two words."""
    if isinstance(error, OSError):
        return type(error).__name__, error.strerror or str(error)
    return type(error).__name__, one_line(error)


def _raised(kind: str, text: str) -> Exception:
    """The same error again, as far as those who catch it look."""
    if kind in ("FileNotFoundError", "PermissionError"):
        return (FileNotFoundError if kind == "FileNotFoundError" else PermissionError)(0, text)
    found = getattr(errors, kind, None)
    return found(text) if isinstance(found, type) and issubclass(found, PalError) else OSError(0, text)


class Listening:
    """Stands before journal and files, and notes what goes through."""

    def __init__(self, journal: Journal) -> None:
        self.journal = cast(Journal, _Noted(journal, self))
        self.heard: list[Heard] = []
        self.reads: dict[str, Read] = {}

    def begin(self) -> None:
        """A decision begins."""
        self.heard = []

    def read(self, path: str) -> bytes:
        """As `files.read_trusted`."""
        try:
            raw = read_trusted(path)
        except (PalError, OSError) as error:
            self.reads[path] = Read(path, b"", trouble_of(error))
            raise
        self.reads[path] = Read(path, raw)
        return raw


class _Noted:
    """A journal whose calls are noted."""

    def __init__(self, journal: Journal, notes: Listening) -> None:
        self._of, self._notes = journal, notes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._of, name)

        def call(*given: object, **named: object) -> object:
            try:
                answer = method(*given, **named)
            except PalError as error:
                self._notes.heard.append(Heard(name, given, named, None, trouble_of(error)))
                raise
            self._notes.heard.append(Heard(name, given, named, _as_it_is(answer)))
            return answer

        return call

    @contextmanager
    def together(self) -> Iterator[None]:
        begun = False
        try:
            with self._of.together():
                begun = True
                self._notes.heard.append(Heard(TOGETHER, (), {}))
                yield
        except PalError as error:
            if not begun:
                self._notes.heard.append(Heard(TOGETHER, (), {}, None, trouble_of(error)))
            raise


def _as_it_is(answer: object) -> object:
    """The answer as it is now, whatever is done to it later."""
    return list(answer) if isinstance(answer, list) else dict(answer) if isinstance(answer, dict) else answer


class Repeating:
    """Stands for journal and files, and gives again what was noted. It knows nothing else."""

    def __init__(self, heard: Sequence[Heard], reads: Mapping[str, Read]) -> None:
        self.journal = cast(Journal, _Repeated(heard))
        self._reads = reads

    def read(self, path: str) -> bytes:
        """As `files.read_trusted`. Raises NeverAskedError for a file that was not read."""
        if path not in self._reads:
            raise NeverAskedError(f"the file {path}")
        found = self._reads[path]
        if found.trouble:
            raise _raised(*found.trouble)
        return found.raw


class _Repeated:
    """A journal of a few answers; the same question is answered in the order in which it was asked."""

    def __init__(self, heard: Sequence[Heard]) -> None:
        self._answers: dict[str, list[Heard]] = {}
        for one in heard:
            self._answers.setdefault(_asked(one.name, one.given, one.named), []).append(one)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: object, **named: object) -> object:
            return self._next(name, given, named)

        return call

    @contextmanager
    def together(self) -> Iterator[None]:
        self._next(TOGETHER, (), {})
        yield

    def _next(self, name: str, given: tuple[object, ...], named: dict[str, object]) -> object:
        left = self._answers.get(_asked(name, given, named))
        if not left:
            said = [*(f"{one!r:.120}" for one in given), *(f"{key}={one!r:.120}" for key, one in named.items())]
            raise NeverAskedError(f"journal.{name}({', '.join(said)})")
        found = left.pop(0) if len(left) > 1 else left[0]
        if found.trouble:
            raise _raised(*found.trouble)
        return _as_it_is(found.answer)


def _asked(name: str, given: tuple[object, ...], named: dict[str, object]) -> str:
    return encode((name, given, named))
