# SPDX-License-Identifier: MIT
"""All users' labels that are sure enough, as records of the submit filter's table (docs/filter.md).

    ["label.1000"] = "nf1978775bb67ae93=A:0.970 ..."    one user: KEY=CLASS:CONFIDENCE, the newest first

Only slurmctld may read them: the clients' table is `without` them. The filter believes them without checking
clock or confidence, so both are checked here. A publisher writes a table every few seconds: an unchanged file
is read again only once a day, since labels age by a thousandth in that time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.sensitivity.cascade import HISTORY, decides
from slurm_pal.sensitivity.history import evidence
from slurm_pal.store import labels, user_files

MOST_OF_USER = 100
MOST = 10_000
"""Labels in the table, of the users whose jobs were measured last: some 280 kB."""
BELIEVED_S = 86400.0
"""A file is not read again for this time unless it changes."""

_OF_USER, _TRUST = "label.", "trust"
_FILE = re.compile(r"(0|[1-9]\d{0,9})\.jsonl")
_KEY = re.compile(r"[ns][0-9a-f]{16}")


def without(records: Mapping[str, str]) -> dict[str, str]:
    """The records of a table that anybody may read."""
    return {key: value for key, value in records.items() if not key.startswith(_OF_USER) and key != _TRUST}


class _Read(NamedTuple):
    """What was taken from one file."""

    signature: tuple[int, ...]
    at_s: float
    entries: tuple[str, ...]


class SureLabels:
    """The labels of a site, as far as `sensitivity.history_sure` lets them decide."""

    def __init__(self, config: Config) -> None:
        self._folder = user_files.site_folder(config.snapshot_path)
        self._sure = config.number("sensitivity", HISTORY + "_sure")
        self._trust = config.text("sensitivity", "trust")
        self._known: dict[int, _Read] = {}  # uid -> what its file held

    def records(self, now_s: float) -> dict[str, str]:
        """`label.UID` -> its labels, and `trust` if more than the users' own statement counts.

        Files that cannot be used are skipped; their writer replaces them.
        """
        found: dict[str, str] = {}
        left, known = MOST, {}
        for _, uid, signature in sorted(self._files(), reverse=True):
            known[uid] = self._read(uid, signature, now_s)
            entries = known[uid].entries[:left]
            left -= len(entries)
            if entries:
                found[f"{_OF_USER}{uid}"] = " ".join(entries)
            if not left:
                break
        self._known = known
        return found | ({_TRUST: self._trust} if found and self._trust != "user" else {})

    def _files(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """(time of change, user, what distinguishes one state of the file from another)."""
        found: list[tuple[int, int, tuple[int, ...]]] = []
        try:
            for entry in os.scandir(self._folder):
                name = _FILE.fullmatch(entry.name)
                if name:
                    info = entry.stat(follow_symlinks=False)
                    found.append((info.st_mtime_ns, int(name[1]), (info.st_mtime_ns, info.st_ino, info.st_size)))
        except OSError:  # no folder: no user's jobs were measured yet
            return []
        return found

    def _read(self, uid: int, signature: tuple[int, ...], now_s: float) -> _Read:
        before = self._known.get(uid)
        if before and before.signature == signature and 0 <= now_s - before.at_s < BELIEVED_S:
            return before
        try:
            known = labels.read(labels.path_of(self._folder, uid))
        except DataError:
            known = {}
        newest = sorted(known.items(), key=lambda pair: (-pair[1].seen[-1].at_s, pair[0]))
        told = [(key, evidence(label, "", now_s)) for key, label in newest if _KEY.fullmatch(key)]
        sure = [f"{key}={one.sensitivity}:{one.confidence:.3f}" for key, one in told
                if decides(one, {HISTORY: self._sure})]  # fmt: skip
        return _Read(signature, now_s, tuple(sure[:MOST_OF_USER]))
