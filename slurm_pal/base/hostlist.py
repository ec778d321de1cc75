# SPDX-License-Identifier: MIT
"""Host lists: Slurm's own form, and what an admin types.

`expand` is for whatever Slurm or a user wrote: it knows no groups, runs no program, and checks the
length of a list before it makes the names. `typed` is for the command line of our own tools, which
ClusterShell reads, with the site's groups.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import pattern

MOST_NAMES = 65536
"""The most nodes that Slurm can have (slurm.conf(5), MaxNodeCount's type)."""
MOST_BYTES = 1 << 20
"""The limit for the text of one list, and for all the names that it stands for."""

_WORD = pattern(r"((?:[A-Za-z0-9_.+/-]++|\[[0-9,-]++\])++)(?:,|$)")
_PART = pattern(r"\[([0-9,-]+)\]|([^\[\]]+)")
_SPAN = pattern(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand(text: str) -> tuple[str, ...]:
    """Node names of a list as Slurm writes it, `n[1-3,07],m2`, each once and in its order; () for "(null)".

    Several brackets in one name stand for all combinations, the last running fastest. Raises
    UsageError for any other form, and for a list that is too long.
    """
    text = text.strip()
    if not text or text == "(null)":
        return ()
    if len(text) > MOST_BYTES:
        raise UsageError(f"a host list of {len(text)} characters: at most {MOST_BYTES} are read")
    names: list[str] = []
    position, left = 0, MOST_BYTES  # characters
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise UsageError(f"cannot read the host list {_shown(text)}: Slurm writes it like n[1-4,7]")
        word, position = match[1], match.end()
        made = [word] if "[" not in word else _combined(word, text, MOST_NAMES - len(names), left)
        left -= len(made) * len(word)
        names += made
        if len(names) > MOST_NAMES:
            raise _too_long(text)
    return tuple(dict.fromkeys(names))


def _combined(word: str, text: str, most: int, most_bytes: int) -> list[str]:
    """The names of one word with brackets; their number and length are known before they are made."""
    fixed: list[str] = []
    spans: list[list[tuple[int, int, int]]] = []
    count = 1
    for body, plain in _PART.findall(word):
        fixed.append(plain)
        spans.append(_spans(body, text) if body else [])
        if body:
            count *= sum(last - first + 1 for first, last, _ in spans[-1])
        if count > most or count * len(word) > most_bytes:
            raise _too_long(text)
    names = [""]
    for plain, ranges in zip(fixed, spans, strict=True):
        ends = [f"{k:0{digits}d}" for first, last, digits in ranges for k in range(first, last + 1)]
        names = [name + end for name in names for end in ends or [plain]]
    return names


def _spans(body: str, text: str) -> list[tuple[int, int, int]]:
    """(first, last, digits) of each range in one pair of brackets."""
    found = []
    for part in body.split(","):
        match = _SPAN.fullmatch(part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise UsageError(f"cannot read the host list {_shown(text)}: {_shown(part)} is not a range like 1-4")
        found.append((int(match[1]), int(match[2] or match[1]), len(match[1])))
    return found


def _too_long(text: str) -> UsageError:
    most = f"{MOST_NAMES} nodes or {MOST_BYTES} characters"
    return UsageError(f"the host list {_shown(text)} stands for more than {most}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def typed(text: str) -> tuple[str, ...]:
    """Node names of a list typed on our own command line; ClusterShell's groups work too.

    Raises UsageError when the list cannot be read.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return tuple(NodeSet(text))
    except NodeSetException as error:
        raise UsageError(f"cannot read the host list {text!r}: {error}; write it like n[1-4,7] or @group") from None


def fold(names: tuple[str, ...] | list[str]) -> str:
    """A host list that Slurm can read: folded along the last number only."""
    if len(names) < 2:
        return ",".join(names)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    folded = NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP)
    folded.fold_axis = (-1,)
    return str(folded)
