# SPDX-License-Identifier: MIT
"""Names of `typing` for modules that palsub loads, without loading `typing`.

palsub loads 36 named tuples; `typing` compiles each of their annotations, which together with its own import takes
a sixth of palsub's time. A type checker sees the names of `typing` itself.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # typing's own constant would cost the import of typing
if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
    from typing import TypeVar as TypeVar
else:
    Any = Protocol = object

    class _FromAnnotations(type):
        """Turns a class with annotated fields into what typing.NamedTuple makes of it."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.get("__annotations__", {})
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in made._fields:
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_FromAnnotations):
        """As typing.NamedTuple, for classes that inherit nothing else."""

    def TypeVar(name: str, *_bounds: object) -> str:
        """At run time nobody looks at the value that stands for a type."""
        return name
