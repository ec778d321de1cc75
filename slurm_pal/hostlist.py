"""Host lists: ClusterShell, with the one fast path that the submit path needs.

Importing ClusterShell costs about 20 ms, a third of what palsub may take, so the
form that fills Slurm's own output, `prefix[ranges]suffix`, is expanded here;
everything else (several brackets, groups, steps) goes to ClusterShell. A property
test holds the two against each other.
"""

from __future__ import annotations

import re

from slurm_pal.errors import UsageError

_WORD = re.compile(r"([^\s,\[\]@&!^]*)(?:\[([0-9,-]+)\]([^\s,\[\]@&!^]*))?(?:,|$)")


def expand(text: str) -> tuple[str, ...]:
    """Node names of a host list, each once; in its order, or sorted where ClusterShell must read it.

    Raises UsageError when the list cannot be read.
    """
    text = text.strip()
    if not text or text == "(null)":
        return ()
    names: list[str] = []
    position = 0
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None or match.end() == position:
            return _by_clustershell(text)
        prefix, ranges, suffix = match.groups()
        if ranges is None:
            names += [prefix] if prefix else []
        elif not _expand_ranges(prefix, ranges, suffix, names):
            return _by_clustershell(text)
        position = match.end()
    return tuple(dict.fromkeys(names))


def _expand_ranges(prefix: str, ranges: str, suffix: str, names: list[str]) -> bool:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and (not last.isdigit() or int(last) < int(first))):
            return False
        padded = last[0] == "0" or (first[0] == "0" and first != "0") if dash else False
        if padded and len(last) != len(first):
            return False
        for number in range(int(first), int(last if dash else first) + 1):
            names.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return True


def _by_clustershell(text: str) -> tuple[str, ...]:
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return tuple(NodeSet(text))
    except NodeSetException as error:
        raise UsageError(f"cannot read the host list {text!r}: {error}; write it like n[1-4,7] or @group") from None


def fold(names: tuple[str, ...] | list[str]) -> str:
    """A host list that Slurm can read: folded along the last number only."""
    if len(names) < 2:
        return ",".join(names)
    from ClusterShell.NodeSet import NodeSet

    folded = NodeSet.fromlist(list(names))
    folded.fold_axis = (-1,)
    return str(folded)
