# SPDX-License-Identifier: MIT
"""The virtual cluster: nodes, GPUs, how slow they really are, and how slow they are believed to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.placement.occupancy import Table
from slurm_pal.variability.published import as_intended

_SHUFFLE_STREAM = 0x5AFF1E


class Hardware(NamedTuple):
    """Tables are [node][GPU index] per sensitivity class; 1.0 is a median GPU, larger is slower."""

    names: tuple[str, ...]
    true: Mapping[str, Table]
    believed: Mapping[str, Table]  # what placement goes by: stale, noisy or missing scores differ from the truth
    level: Mapping[str, Table]  # believed, binned, for the published rules
    partitions: Mapping[str, tuple[int, ...]] = {}
    models: tuple[str, ...] = ()  # of the GPUs of each node; () where all are alike

    @property
    def n_gpus(self) -> int:
        return sum(len(row) for row in self.true["A"])


def hardware(
    true: Mapping[str, Table],
    believed: Mapping[str, Table] | None = None,
    names: Sequence[str] = (),
    partitions: Mapping[str, Sequence[int]] = {},
    models: Sequence[str] = (),
) -> Hardware:
    """A cluster from its slowdowns, with bins from what is believed (PAL's binning as intended).

    Where there are several models, what is believed of a GPU is relative to its own; what is true is not.
    """
    seen = true if believed is None else believed
    return Hardware(
        names=tuple(names) or tuple(f"n{k}" for k in range(len(true["A"]))),
        true=true,
        believed=seen,
        level={sensitivity: _levels(table) for sensitivity, table in seen.items()},
        partitions={name: tuple(nodes) for name, nodes in partitions.items()},
        models=tuple(models),
    )


def shuffled(machine: Hardware, seed: int) -> Hardware:
    """The same cluster, whose scores are those of other GPUs: what a policy gains with them is not due to scores."""
    sizes = [len(row) for row in machine.true["A"]]
    order = np.random.default_rng([seed, _SHUFFLE_STREAM]).permutation(sum(sizes))

    def mixed(table: Table) -> Table:
        values = np.array([value for row in table for value in row])[order]
        return [row.tolist() for row in np.split(values, np.cumsum(sizes)[:-1])]

    found = {sensitivity: mixed(table) for sensitivity, table in machine.believed.items()}
    return hardware(machine.true, found, machine.names, machine.partitions, machine.models)


def identical(machine: Hardware) -> Hardware:
    """The same cluster, all of whose GPUs are median ones, and known to be."""
    same = {sensitivity: [[1.0] * len(row) for row in table] for sensitivity, table in machine.true.items()}
    return hardware(same, None, machine.names, machine.partitions, machine.models)


def _levels(table: Table) -> Table:
    values = np.array([x for row in table for x in row])
    sf = iter(as_intended(values).sf.tolist())
    return [[next(sf) for _ in row] for row in table]


def capped_worst(machine: Hardware, k: int) -> Hardware:
    """The same cluster with its k slowest GPUs (by class A) replaced by median ones, for the share of the gain."""
    ranked = sorted(
        ((value, node, index) for node, row in enumerate(machine.true["A"]) for index, value in enumerate(row)),
        reverse=True,
    )
    worst = {(node, index) for _, node, index in ranked[:k]}

    def mend(tables: Mapping[str, Table]) -> dict[str, Table]:
        return {
            sensitivity: [
                [1.0 if (node, index) in worst else x for index, x in enumerate(row)] for node, row in enumerate(table)
            ]
            for sensitivity, table in tables.items()
        }

    return hardware(mend(machine.true), mend(machine.believed), machine.names, machine.partitions, machine.models)
