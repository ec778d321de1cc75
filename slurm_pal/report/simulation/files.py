# SPDX-License-Identifier: MIT
"""The folder that `pal simulate` leaves: jobs.csv, summary.json, the page and its pictures."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_pal.base.errors import UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.hostlist import fold
from slurm_pal.simulate.result import JobOutcome, Replay

SUMMARY = "summary.json"
"""Its presence, with our schema, marks a folder as ours."""

JOBS = "jobs.csv"
PAGE = "index.html"
OURS = "pal.simulation/"


def jobs_csv(runs: Iterable[Replay]) -> str:
    """One line per job and run: policy, queue, seed, the fields of JobOutcome, jct_s and wait_s.

    `nodes` is a folded host list. Moments and times are s, rounded to 1 ms.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "queue", "seed", *JobOutcome._fields, "jct_s", "wait_s"))
    folded: dict[tuple[str, ...], str] = {}  # few node sets, many jobs: folding is slow
    for run in runs:
        for o in run.outcomes:
            if o.nodes not in folded:
                folded[o.nodes] = fold(o.nodes)
            fields = {**o._asdict(), "nodes": folded[o.nodes], "jct_s": o.jct_s, "wait_s": o.wait_s}
            writer.writerow((run.policy, run.queue, run.seed, *(_cell(name, x) for name, x in fields.items())))
    return text.getvalue()


def summary_json(body: Mapping[str, Any]) -> str:
    """The text of summary.json. Raises ValueError for NaN and infinity."""
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def save(folder: str, files: Mapping[str, str | bytes], replaced: Iterable[str] = ()) -> list[str]:
    """Write `files` (name -> content, summary.json among them) into `folder` and return their paths.

    A new folder is 0755, files are 0644, each is replaced atomically. `replaced` names files
    of an earlier report that this one may lack; they are removed, since otherwise the folder
    would show two reports at once. Other files in the folder stay.

    Raises UsageError if the folder cannot be written, or is not empty and holds no report of ours.
    """
    try:
        claim_folder(folder)
        # The marker is removed first: what an interruption leaves can be overwritten.
        order = sorted(files, key=lambda name: (name != SUMMARY, name))
        paths = [os.path.join(folder, name) for name in order]
        for name, path in zip(order, paths, strict=True):
            write_atomic(path, files[name])
        for name in sorted(set(replaced) - set(files)):
            if os.path.lexists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
    except OSError as error:
        raise UsageError(f"cannot write the report to {folder}: {error.strerror}; name another folder") from error
    return paths


def claim_folder(folder: str) -> None:
    """Make `folder`, or check that a report may be written there.

    Call it before a long replay, so that a wrong name is reported at once. Raises UsageError if
    the folder is not ours, OSError if it cannot be made or read.
    """
    try:
        os.makedirs(folder, mode=0o755)
        os.chmod(folder, 0o755)  # whatever the umask
    except FileExistsError:
        if not os.path.isdir(folder):
            raise UsageError(
                f"{folder} is a file; a report needs a folder: new, empty or of an earlier report"
            ) from None
        if os.listdir(folder) and not _is_ours(folder):
            raise UsageError(
                f"{folder} is not empty and holds no report of pal simulate (no {SUMMARY} of ours): "
                "name a new folder, or an empty one"
            ) from None


def _is_ours(folder: str) -> bool:
    try:
        with open(os.path.join(folder, SUMMARY), encoding="utf-8") as stream:
            body = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and str(body.get("schema", "")).startswith(OURS)


def _cell(name: str, value: object) -> object:
    if isinstance(value, float):
        return round(value, 3 if name.endswith("_s") else 6)
    return value
