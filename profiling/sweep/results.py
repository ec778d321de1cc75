# SPDX-License-Identifier: MIT
"""What a node's job left in the spool, read for the state of a sweep."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import DataError, one_line
from slurm_pal.base.files import open_trusted
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, FALLBACKS
from slurm_pal.store import level_ratios
from slurm_pal.store.ingest import MAX_BYTES
from slurm_pal.variability.records import Record, from_json
from slurm_pal.variability.validate import check_types


class NodeResult(NamedTuple):
    """A node's result file in brief."""

    gpus: int  # with at least one valid record and no invalid one
    reason: str  # of the first invalid record, "" where there is none
    ran: Mapping[str, int]  # benchmark -> GPUs with a run of it; all GPUs where it is one between GPUs


def file_names(sweep_id: str, node: str, job_id: int) -> tuple[str, ...]:
    """Names of a job's result file in SPOOL/incoming: the second where an earlier job's was still there."""
    return f"{sweep_id}.{node}.jsonl", f"{sweep_id}.{node}.{job_id}.jsonl"


def read(directories: Iterable[str], sweep_id: str, node: str, job_id: int) -> NodeResult | None:
    """The result of one job, from the first of these directories that has it; None: not there (yet).

    A file of another job (an earlier attempt) does not count, nor does an unreadable one: it may be
    another job's, and `complaint` reports it.
    """
    for path in _candidates(directories, file_names(sweep_id, node, job_id)):
        records, trouble = _good(path)
        found = summarise(records, job_id)
        if found is not None:
            return found._replace(reason=found.reason or trouble)
    return None


def complaint(directories: Iterable[str], sweep_id: str, node: str, job_id: int) -> str:
    """What is wrong with a node's result files, "" where nothing is."""
    paths = _candidates(directories, file_names(sweep_id, node, job_id))
    return next(filter(None, (_good(path)[1] for path in paths)), "")


def pair_trouble(directories: Iterable[str], sweep_id: str, nodes: Sequence[str], job_id: int) -> str:
    """What is wrong with, or missing of, the times of a pair of nodes; "" where both have told them."""
    directories = tuple(directories)
    for node in nodes:
        trouble = f"no result of {node}"
        for path in _candidates(directories, (level_ratios.file_name(sweep_id, node, job_id),)):
            try:
                found = level_ratios.read_drop(path)
            except FileNotFoundError:  # taken in meanwhile
                continue
            except DataError as error:
                trouble = f"result of {node}: {one_line(error)}"
                continue
            if set(found.nodes) == set(nodes):
                break
            trouble = f"result of {node}: of {','.join(found.nodes)}"
        else:
            return trouble
    return ""


def _good(path: str) -> tuple[list[Record], str]:
    """The records of a file, read as warily as ingest does, and what is wrong with the rest of it."""
    good: list[Record] = []
    trouble = ""
    try:
        with os.fdopen(open_trusted(path, follow=False), "rb") as stream:
            lines = stream.read(MAX_BYTES).splitlines()
    except FileNotFoundError:
        return [], ""  # taken in meanwhile
    except OSError as error:
        return [], f"result file {path} cannot be read: {error.strerror}"
    except DataError as error:
        return [], f"result file not believed: {one_line(error)}"
    for number, line in enumerate(lines, start=1):
        try:
            record = from_json(line.decode())
            check_types(record)
        except (DataError, TypeError, UnicodeDecodeError, RecursionError) as error:
            trouble = trouble or f"result file {path} unreadable: line {number}: {one_line(error)}"
        else:
            good.append(record)
    return good, trouble


def _candidates(directories: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """Where the file may be; ingest keeps earlier ones of the same name as NAME.1, NAME.2, ..."""
    for directory, name in itertools.product(directories, names):
        path, copy = os.path.join(directory, name), 0
        while os.path.lexists(path):
            yield path
            copy += 1
            path = os.path.join(directory, f"{name}.{copy}")


def summarise(records: Iterable[Record], job_id: int) -> NodeResult | None:
    """The records of one job in brief; None where it has none."""
    own = [r for r in records if r.slurm_job_id == job_id]
    if not own:
        return None
    bad = [r for r in own if not r.valid]
    spoiled = {r.gpu.uuid for r in bad}
    measured = {r.gpu.uuid for r in own if r.valid} - spoiled
    reason = f"GPU {bad[0].gpu.slurm_index}: {bad[0].reason}" if bad else ""
    if len(spoiled) > 1:
        reason += f" (and {len(spoiled) - 1} more)"
    return NodeResult(len(measured), reason, _ran(own))


def _ran(records: Iterable[Record]) -> dict[str, int]:
    """A fallback counts as what it stands for."""
    run: dict[str, set[str]] = {}  # benchmark -> GPUs
    for record in records:
        run.setdefault(record.bench.id, set()).add(record.gpu.uuid)
    every = len(set().union(*run.values()))
    found = {}
    for spec in BENCHMARKS:
        gpus = set().union(*(run.get(name, ()) for name in (spec.id, *FALLBACKS.get(spec.id, ()))))
        found[spec.id] = every if spec.peers and gpus else len(gpus)
    return found
