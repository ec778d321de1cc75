# SPDX-License-Identifier: MIT
"""Host lists: Slurm's own form, and what an admin types.

`expand` is for whatever Slurm or a user wrote: it knows no groups, runs no program, and checks the
length of a list before it makes the names. `typed` is for the command line of our own tools, which
ClusterShell reads, with the site's groups.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.light import Iterator
from slurm_pal.base.numbers import digits

MOST_NAMES = 65536
"""The most nodes that Slurm can have (slurm.conf(5), MaxNodeCount's type)."""
MOST_BYTES = 1 << 20
"""The limit for the text of one list, and for all the names that it stands for."""

_NAME_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+/-"
_BRACKET_LETTERS = "0123456789,-"
_MOST_DIGITS = 9


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
    left = MOST_BYTES  # characters
    for word in _words(text):
        if not _readable(word):
            raise UsageError(f"cannot read the host list {_shown(text)}: Slurm writes it like n[1-4,7]")
        length = sum(map(len, word)) + 2 * (len(word) // 2)
        made = word if len(word) == 1 else _combined(word, length, text, MOST_NAMES - len(names), left)
        left -= len(made) * length
        names += made
        if len(names) > MOST_NAMES:
            raise _too_long(text)
    return tuple(dict.fromkeys(names))


def _words(text: str) -> Iterator[list[str]]:
    """The words of a list, each as its texts outside and inside of brackets in turn: ["n", "1-3,07", ""]."""
    first, *groups = text.split("[")
    *names, begun = first.split(",")
    yield from ([name] for name in names)
    word = [begun]
    for group in groups:
        body, closed, plain = group.partition("]")
        end, *names = plain.split(",")
        word += [body if closed else "", end]
        if names:
            yield word
            yield from ([name] for name in names[:-1])
            word = [names[-1]]
    if word != [""]:  # a comma may end the list
        yield word


def _readable(word: list[str]) -> bool:
    if any(plain.strip(_NAME_LETTERS) for plain in word[::2]) or word == [""]:
        return False
    return all(body and not body.strip(_BRACKET_LETTERS) for body in word[1::2])


def _combined(word: list[str], length: int, text: str, most: int, most_bytes: int) -> list[str]:
    """The names of one word with brackets; their number and length are known before they are made."""
    spans: list[list[tuple[int, int, int]]] = []
    count = 1
    for body in word[1::2]:
        spans.append(_spans(body, text))
        count *= sum(last - first + 1 for first, last, _ in spans[-1])
        if count > most or count * length > most_bytes:
            raise _too_long(text)
    names = [word[0]]
    for ranges, plain in zip(spans, word[2::2], strict=True):
        ends = [f"{k:0{width}d}{plain}" for first, last, width in ranges for k in range(first, last + 1)]
        names = [name + end for name in names for end in ends]
    return names


def _spans(body: str, text: str) -> list[tuple[int, int, int]]:
    """(first, last, digits) of each range in one pair of brackets."""
    found = []
    for part in body.split(","):
        low, dash, high = part.partition("-")
        first, last = digits(low), digits(high if dash else low)
        if first is None or last is None or last < first or max(len(low), len(high)) > _MOST_DIGITS:
            raise UsageError(f"cannot read the host list {_shown(text)}: {_shown(part)} is not a range like 1-4")
        found.append((first, last, len(low)))
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
