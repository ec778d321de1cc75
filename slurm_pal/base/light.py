# SPDX-License-Identifier: MIT
"""Names of `typing`, `re`, `json`, `enum` and others for modules that palsub loads, without what those do when loaded.

palsub loads 37 named tuples, and patterns for texts that few jobs have. `typing` compiles each annotation, `namedtuple`
each class, `re` each pattern; to load `re` alone takes as long as 30 modules of ours, and `collections` as long as 10.
A type checker sees the original names.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own constant would cost the import of typing
if TYPE_CHECKING:
    import json as json
    import signal as signal
    from collections.abc import Callable as Callable
    from collections.abc import Collection as Collection
    from collections.abc import Container as Container
    from collections.abc import Iterable as Iterable
    from collections.abc import Iterator as Iterator
    from collections.abc import Mapping as Mapping
    from collections.abc import Sequence as Sequence
    from collections.abc import Set as Set
    from contextlib import suppress as suppress
    from enum import IntEnum as IntEnum
    from functools import lru_cache
    from re import compile as compiled
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
    from typing import TypeVar as TypeVar

    cached, pattern = lru_cache, compiled
else:
    import _signal as signal  # noqa: F401  # its constants are plain numbers
    from _collections import _tuplegetter
    from _collections_abc import (  # noqa: F401  # what collections.abc is made of
        Callable,
        Collection,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
        Set,
    )

    Any = Protocol = IntEnum = object  # a table of numbers: no code asks for their names

    class _FromAnnotations(type):
        """Turns a class with annotated fields into what typing.NamedTuple makes of it."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", {}))
            body["_field_defaults"] = {field: body[field] for field in fields if field in body}
            body["_fields"] = body["__match_args__"] = fields
            body["__slots__"] = ()
            body.setdefault("__doc__", f"{name}({', '.join(fields)})")
            for place, field in enumerate(fields):
                body[field] = _tuplegetter(place, f"Alias for field number {place}")
            return type(name, (_Row,), body)

    class _Row(tuple):
        """What collections.namedtuple gives a class, without a constructor that must be compiled for each."""

        __slots__ = ()

        def __new__(cls, /, *values: object, **named: object) -> object:
            if named or len(values) != len(cls._fields):
                missing = cls._fields[len(values) :]
                try:
                    values += tuple(
                        [named.pop(field) if field in named else cls._field_defaults[field] for field in missing]
                    )
                except KeyError as error:
                    raise TypeError(f"{cls.__name__}() lacks {error.args[0]!r}") from None
                if named or len(values) != len(cls._fields):
                    raise TypeError(f"{cls.__name__}() takes {', '.join(cls._fields)}")
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values: object) -> object:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **named: object) -> object:
            made = self._make(map(named.pop, self._fields, self))
            if named:
                raise TypeError(f"Got unexpected field names: {list(named)!r}")
            return made

        def _asdict(self) -> dict[str, object]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            values = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self) -> tuple[object, ...]:
            return tuple(self)

    class NamedTuple(metaclass=_FromAnnotations):
        """As typing.NamedTuple, for classes that inherit nothing else."""

    def TypeVar(name: str, *_bounds: object) -> str:
        """At run time nobody looks at the value that stands for a type."""
        return name

    def cached(most: int | None) -> object:
        """As functools.lru_cache."""
        try:
            from _functools import _lru_cache_wrapper
        except ImportError:  # no C code
            from functools import lru_cache

            return lru_cache(most)
        return lambda function: _lru_cache_wrapper(function, most, False, tuple)

    class pattern:
        """As re.compile, at the first use."""

        def __init__(self, text: object, flags: int = 0) -> None:
            self.text, self.flags_ = text, flags

        def __getattr__(self, name: str) -> object:
            import re

            self.__dict__.update(
                (method, getattr(made, method))
                for made in [re.compile(self.text, self.flags_)]
                for method in ("match", "fullmatch", "search", "sub", "split", "findall", "finditer", "pattern")
            )
            return self.__dict__[name]

    class suppress:
        """As contextlib.suppress."""

        def __init__(self, *kinds: type[BaseException]) -> None:
            self._kinds = kinds

        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
            return kind is not None and issubclass(kind, self._kinds)

    _BLANK = " \t\n\r"

    class _Reading:
        """json's own settings for the C code that does its reading."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = staticmethod({name: float(name) for name in ("NaN", "Infinity", "-Infinity")}.__getitem__)

    def _writer() -> object:
        """json's own settings for the C code that does its writing; None where there is none, or another one."""

        def other(value: object) -> object:
            raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

        try:
            from _json import encode_basestring_ascii, make_encoder

            # circles seen, other objects, strings, no indent, two separators, unsorted, no keys left out, NaN allowed
            return make_encoder({}, other, encode_basestring_ascii, None, ": ", ", ", False, False, True)
        except (ImportError, AttributeError, TypeError):
            return None

    class json:
        """As the module: `loads` without loading it, and `dumps` where nothing but a value is given."""

        _scan = None

        @classmethod
        def loads(cls, raw: str | bytes) -> object:
            if cls._scan is None:
                try:
                    from _json import make_scanner

                    cls._scan = make_scanner(_Reading)
                except (ImportError, AttributeError, TypeError):  # no C code, or another one
                    import json

                    return json.loads(raw)
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogatepass")
            try:
                value, end = cls._scan(text, len(text) - len(text.lstrip(_BLANK)))
            except StopIteration:
                raise ValueError("this is not JSON") from None
            if text[end:].strip(_BLANK):
                raise ValueError("something follows the JSON")
            return value

        @staticmethod
        def dumps(value: object, **settings: object) -> str:
            write = None if settings else _writer()
            if write is None:
                import json

                return json.dumps(value, **settings)
            return "".join(write(value, 0))
