"""What a node's job left in the spool, read for the state of a sweep."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slurm_pal.errors import DataError
from slurm_pal.variability.records import Record, from_json


class NodeResult(NamedTuple):
    """A node's result file in short."""

    gpus: int  # with at least one valid record and no invalid one
    reason: str  # of the first invalid record, "" where there is none


def file_name(sweep_id: str, node: str) -> str:
    """Name of a node's result file in SPOOL/incoming."""
    return f"{sweep_id}.{node}.jsonl"


def read(directories: Iterable[str], sweep_id: str, node: str, job_id: int) -> NodeResult | None:
    """The result of one job, from the first of these directories that has it; None: not there yet.

    A file of another job (an earlier attempt) does not count.
    """
    for path in _candidates(directories, file_name(sweep_id, node)):
        try:
            with open(path, encoding="utf-8") as stream:
                found = summarise([from_json(line) for line in stream.read().splitlines()], job_id)
        except OSError:
            continue
        except (DataError, UnicodeDecodeError) as error:
            return NodeResult(0, f"result file {path} unreadable: {error}")
        if found is not None:
            return found
    return None


def _candidates(directories: Iterable[str], name: str) -> Iterator[str]:
    """Where the file may lie; ingest numbers later ones of the same name .2, .3, ..."""
    for directory in directories:
        path, copy = os.path.join(directory, name), 1
        while os.path.exists(path):
            yield path
            copy += 1
            path = os.path.join(directory, f"{name}.{copy}")


def summarise(records: Iterable[Record], job_id: int) -> NodeResult | None:
    """The records of one job in short; None where there is none of it."""
    own = [r for r in records if r.slurm_job_id == job_id]
    if not own:
        return None
    bad = [r for r in own if not r.valid]
    spoiled = {r.gpu.uuid for r in bad}
    measured = {r.gpu.uuid for r in own if r.valid} - spoiled
    reason = f"GPU {bad[0].gpu.slurm_index}: {bad[0].reason}" if bad else ""
    if len(spoiled) > 1:
        reason += f" (and {len(spoiled) - 1} more)"
    return NodeResult(len(measured), reason)
