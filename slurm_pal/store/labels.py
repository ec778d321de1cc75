# SPDX-License-Identifier: MIT
"""Labels of measured jobs, one small file for each user: FOLDER/<uid>.jsonl, one key a line (user_files).

The tick or the publisher writes a site's folder; a user's own one comes from `pal probe` and `pal-rebalance --mine`.
"""

from __future__ import annotations

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.base.light import Iterable, json
from slurm_pal.store.user_files import Kind

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.sensitivity.history import Label, Seen

LABELS = Kind("pal.labels/1", "labels", again="measured jobs write a new one")
SCHEMA, path_of = LABELS.schema, LABELS.path_of
MOST_KEYS = 500
"""The most keys of each user; those whose newest job is oldest are forgotten."""
LATEST_S = 2.0**40

Labels = dict[str, "Label"]
"""Key of a job name or of a script (sensitivity.history) -> label."""


def read(path: str) -> Labels:
    """The labels in a file; {} if there is none. Raises DataError for a file that cannot be used."""
    return dict(_label(path, line) for line in LABELS.lines(path))


def lookup(path: str, keys: Iterable[str]) -> Labels:
    """The labels of some keys, the only ones decoded: one or two for a submission. Raises DataError like `read`."""
    return dict(_label(path, line) for line in LABELS.found(path, keys))


def _label(path: str, line: bytes) -> tuple[str, Label]:
    from slurm_pal.sensitivity.history import KEPT, Label, Seen  # most submissions find no label

    try:
        row = json.loads(line)
        key, known = str(row["key"]), (*SENSITIVITY_CLASSES, UNKNOWN_CLASS)
        seen = tuple(Seen(int(j), str(c), float(conf), float(at_s)) for j, c, conf, at_s in row["seen"][-KEPT:])
        if row["class"] not in known or not seen or not all(map(_makes_sense, seen)):
            raise ValueError("not a class or not a number")
        return key, Label(str(row["class"]), int(row["jobs"]), seen)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LABELS.damaged(path, error) from None


def _makes_sense(seen: Seen) -> bool:
    """Whether a job can have been measured like this; Python's JSON also reads NaN and Infinity."""
    return seen.sensitivity in SENSITIVITY_CLASSES and 0 <= seen.confidence <= 1 and 0 <= seen.at_s < LATEST_S


def _row(key: str, label: Label) -> str:
    return json.dumps({"key": key, "class": label.sensitivity, "jobs": label.jobs, "seen": label.seen})


def write(path: str, labels: Labels, reader: int | None = None) -> None:
    """Replace a user's file by the newest `MOST_KEYS` of these labels, readable by its owner and the uid `reader`.

    Raises DataError if it cannot be written.
    """
    newest = sorted(labels, key=lambda key: labels[key].seen[-1].at_s)[-MOST_KEYS:]
    LABELS.write(path, [_row(key, labels[key]) for key in newest], reader)
