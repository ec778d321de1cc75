# SPDX-License-Identifier: MIT
"""Other names of policies and queues, so that one command line means the same in both modes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.base.errors import UsageError

POLICY_ALIASES = {"default": "tick", "packed-sticky": "packed", "random-sticky": "random"}
"""Real mode, where a started job stays unless the policy moves it; `default` is what runs."""

REPLICA_ALIASES = {
    "default": "pal-fit",
    "packed-sticky": "packed-s",
    "packed": "packed-ns",
    "random-sticky": "random-s",
    "random": "random-ns",
}
QUEUE_ALIASES = {"slurm": "multifactor"}


def resolved(
    asked: Iterable[str], table: Iterable[str], aliases: Mapping[str, str], what: str = "policy"
) -> dict[str, str]:
    """Name as asked for -> name in the table. A word may hold several names, joined by commas.

    Raises UsageError for a name that is in neither.
    """
    known = list(table)
    words = [word.strip() for text in asked for word in text.split(",")]
    found = {word: word if word in known else aliases.get(word, "") for word in words}
    for word, name in found.items():
        if name not in known:
            others = [alias for alias, target in aliases.items() if target in known and alias not in known]
            raise UsageError(f"{what} {word!r} is not one of {', '.join((*known, *others))}")
    return found
