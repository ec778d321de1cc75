# SPDX-License-Identifier: MIT
"""The story of a job in its admin comment: the last things the tick did, for the job's owner to read.

One word for each, beside whatever else stands there:
`pal:ev=<unix s>;what=<...>;set=<hostlist>;gain=<s>;from=<n3:0,1>;to=<n5:0,1>`. A job that left nodes since their
owners wanted them back has `pal:ev=<unix s>;what=reclaimed;from=<n3:0,1>;to=<partitions>;ran=<s>;lost=<s>;saved=<0|1>`.
Only SlurmUser and root can write an admin comment. GPUs on several nodes, `n3:0,1 n4:2`, are written with a plus,
since a word holds no blank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_pal.base import marks

KEEP = 8
"""Events that stay on a job."""
_PREFIX = f"pal:{marks.EVENT}="
_TIME = re.compile(r"\d{1,12}")
_NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,6})?")
AMOUNTS = {"gain": "gain_s", "ran": "ran_s", "lost": "lost_s", "saved": "checkpoint"}
"""Numbers of a word: what each is called in an event. `checkpoint` is 1 where one was made, or asked for."""
_LONGEST_FIRST = ("set", "from", "to")
"""Values that are left out, in this order, where the word does not fit."""


def added(admin_comment: str, event: Mapping[str, str]) -> str | None:
    """The comment with one more event; None when others' words leave no room, or cannot be written again.

    `event` has `ev` (Unix seconds) and `what`, and what there is of `set`, `from`, `to` and
    `AMOUNTS`. A value that a word cannot hold is left out. The oldest events make way first, then
    the long values of this one.
    """
    if not admin_comment.isprintable():  # an update may not hold a control character, and what is not ours stays
        return None
    pairs = {marks.EVENT: event[marks.EVENT], **{name: value.replace(" ", "+") for name, value in event.items()}}
    pairs = {name: value for name, value in pairs.items() if name == marks.EVENT or _holds(name, value)}
    ours = [part for part in admin_comment.split(" ") if part.startswith(_PREFIX)]
    others = " ".join(part for part in admin_comment.split(" ") if not part.startswith(_PREFIX)).rstrip(" ")
    for name in ("", *_LONGEST_FIRST):
        pairs.pop(name, None)
        words = [*ours, marks.word(pairs)][-KEEP:]
        for first in range(len(words)):
            whole = " ".join(filter(None, [others, *words[first:]]))
            if len(whole.encode()) <= marks.MOST:
                return whole
    return None


def _holds(name: str, value: str) -> bool:
    """Whether a word can hold this value, and is read back as it was."""
    pairs = {marks.EVENT: "0", name: value}
    return marks.read(marks.word(pairs), marks.EVENT) == pairs


def events(admin_comment: str) -> list[dict[str, Any]]:
    """The events of a comment in the order of their times: `at_s`, `what`, and what there is of the rest.

    Those of `AMOUNTS` are numbers, `set`, `from` and `to` are texts. A word that cannot be read is skipped.
    """
    found = [_event(pairs) for pairs in marks.words(admin_comment, marks.EVENT)]
    return sorted(filter(None, found), key=lambda event: float(event["at_s"]))


def _event(pairs: dict[str, str]) -> dict[str, Any]:
    if not _TIME.fullmatch(pairs[marks.EVENT]) or not pairs.get("what"):
        return {}
    event: dict[str, Any] = {"at_s": float(pairs[marks.EVENT]), "what": pairs["what"]}
    event |= {name: pairs[name].replace("+", " ") for name in ("from", "to") if pairs.get(name)}
    event |= {"set": pairs["set"]} if pairs.get("set") else {}
    return event | {key: float(pairs[name]) for name, key in AMOUNTS.items() if _NUMBER.fullmatch(pairs.get(name, ""))}
