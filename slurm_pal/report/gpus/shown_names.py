# SPDX-License-Identifier: MIT
"""Names from records and from Slurm, made fit to be shown: not too long, with nothing invisible in them."""

from __future__ import annotations

import re

LONGEST = 24  # characters of a node's name in a map
LONGEST_MODEL = 40

_INVISIBLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, changes of the writing direction (they reverse the following text), half characters."""


def clean(text: str) -> str:
    """The text with a `?` for each invisible character but the line end."""
    return _INVISIBLE.sub("?", text)


def cut(name: str, length: int = LONGEST) -> str:
    """A clean name that is no longer than `length`."""
    name = clean(name)
    return name if len(name) <= length else name[: length - 2] + ".."
