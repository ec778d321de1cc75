# SPDX-License-Identifier: MIT
"""Our marks in a job's comment, beside whatever the user wrote there.

A mark is one word, `pal:<key>=<value>;<name>=<value>...`, without blanks. The user's own text is
never changed. All users can write such words on their own jobs, so nothing in them is believed
beyond that job.
"""

from __future__ import annotations

from slurm_pal.base.light import cached, pattern

JOB, PROGRESS, SLOW, ACK, EVENT = "job", "it", "slow", "ack", "ev"
"""Written by palsub: what the job is. By `pal progress`: how far it is, and which GPU the others wait for. By the
checkpoint wrapper. By the tick (admin comment)."""

ELASTIC, COMPANION = "elastic", "companion"
"""Written by palsub on an elastic job's base job (MIN:MAX workers) and on its companions (the base job's id)."""

CONTINUED = "cont"
"""Written by the checkpoint wrapper: how often the job was continued after its time limit; `of`: how often at most."""

ALONE = "alone"
"""In the mark of a lease or of the submit filter: the slowdown where plain Slurm would have put the job then."""

NODES = "n"
"""In the word of palsub or of the submit filter: how many nodes a job with a total of GPUs was submitted for."""

PLACES = 8
"""So many places at most stand in the mark of a job with several."""

MOST = 1000
"""Characters of a comment; slurmctld refuses one of more than 1024 bytes."""

_VALUE = pattern(r"[A-Za-z0-9_.,:+@%?\[\]|#-]*")
_RANGE = pattern(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})?")


def words(text: str, key: str) -> list[dict[str, str]]:
    """The values of all words of one key, in order; a word with a character that we never write is skipped."""
    head = f"pal:{key}="
    return [dict(pairs) for pairs in _words(text, head)] if head in text else []


@cached(8192)  # a tick reads the same comments as the one before
def _words(text: str, head: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for word in text.split():
        if word.startswith(head):
            pairs = dict(part.partition("=")[::2] for part in word.removeprefix("pal:").split(";"))
            if all(_VALUE.fullmatch(value) for value in pairs.values()):
                found.append(pairs)
    return found


def read(text: str, key: str) -> dict[str, str]:
    """The values of the first word of one key; {} where there is none."""
    return next(iter(words(text, key)), {})


def word(pairs: dict[str, str]) -> str:
    """A word from its values, the key first."""
    return "pal:" + ";".join(f"{name}={value}" for name, value in pairs.items())


def node_range(low: int, high: int | None) -> str:
    """The value of NODES: "1-4", or "1-" where the number is open."""
    return f"{low}-{high or ''}"


def read_range(value: str) -> tuple[int, int | None] | None:
    """(least, most) nodes by such a value, None for an open most; None for what we never write."""
    match = _RANGE.fullmatch(value)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        return None
    return int(match[1]), int(match[2]) if match[2] else None


def put(text: str, pairs: dict[str, str]) -> str | None:
    """The comment with this word in place of the one with the same key; None if it would become too long."""
    key = next(iter(pairs))
    kept = [part for part in text.split(" ") if not part.startswith(f"pal:{key}=")]
    whole = " ".join([*filter(None, [" ".join(kept).rstrip(" ")]), word(pairs)])
    return whole if len(whole.encode()) <= MOST else None
