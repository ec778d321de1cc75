# SPDX-License-Identifier: MIT
"""What palsub needs to know to choose a partition for a new job (decide/steering.py). Pure."""

from __future__ import annotations

from slurm_pal.allocation import throughputs
from slurm_pal.allocation.columns import Columns
from slurm_pal.allocation.sufferage import ROOM, Dealt
from slurm_pal.decide.steering import Market, PricedGpus
from slurm_pal.partitions.claimants import Known

SIZES = (1, 2, 4, 8, 16, 32)
"""Numbers of GPUs, besides those of the table."""
MOST_APPLICATIONS = 500


def market(site: Columns, found: Dealt, known: Known, now_s: float, every_s: float) -> Market:
    """Prices and loads of partitions after all present jobs are dealt, and the throughputs of known applications.

    An application that only some user's jobs have reported is not among them: what the file says is for all to read.
    """
    columns: dict[str, list[PricedGpus]] = {partition.name: [] for partition in site.partitions}
    by_name = {partition.name: partition for partition in site.partitions}
    for place, price, load_s in zip(site.names, found.price.tolist(), found.load_s.tolist(), strict=True):
        if not place.spread:
            slow = {c: round(levels[place.level], 4) for c, levels in by_name[place.partition].slowdown.items()}
            columns[place.partition].append(PricedGpus(slow, price, round(load_s, 3)))
    return Market(now_s, every_s, ROOM, columns, _speeds(known, [*columns]))


def _speeds(known: Known, names: list[str]) -> dict[str, dict[int, dict[str, tuple[float, float]]]]:
    types = {kind: k for k, kind in enumerate(known.model.types)}
    at = {name: types[kind] for name in names if (kind := known.type_of.get(name, "")) in types}
    applications = [app for app in known.model.sizes if known.names.get(app.strip().lower()) == app]
    found: dict[str, dict[int, dict[str, tuple[float, float]]]] = {}
    for app in applications[:MOST_APPLICATIONS]:
        sizes = sorted({*SIZES, *known.model.sizes[app]})
        told = throughputs.matrix(known.model, [(app, gpus) for gpus in sizes])
        found[app.strip().lower()] = {
            gpus: {
                name: (float(f"{told.throughput[k, j]:.5g}"), float(f"{told.relative_error[k, j]:.3g}"))
                for name, j in at.items()
            }
            for k, gpus in enumerate(sizes)
        }
    return found
