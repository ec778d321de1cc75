# SPDX-License-Identifier: MIT
"""In which of its partitions a new job belongs, by what the tick has found for the others. Pure, standard library only.

A job that finds free GPUs starts before any tick sees it. So the tick publishes what the policy of least completion
time (allocation/sufferage.py) knows after all present jobs are dealt: of each partition the price of its GPUs and its
load. A new job is the last one to be dealt: it belongs where time until its end and what it costs others are least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Any, NamedTuple
from slurm_pal.decide.candidates import candidates, could_hold, startable
from slurm_pal.decide.request import Request
from slurm_pal.placement.patience import WAIT_SHARE
from slurm_pal.slurm.client import Overview

SCHEMA = "pal.partitions/1"
BEATS = 3.0
"""What was published is believed for so many ticks."""


class PricedGpus(NamedTuple):
    """GPUs of a partition up to a variability class."""

    slowdown: Mapping[str, float]  # sensitivity class -> slowdown
    price: float  # of a GPU second, s
    load_s: float  # GPU time of the jobs there, per GPU


class Market(NamedTuple):
    """What the tick has published."""

    at_s: float  # Unix s
    every_s: float  # until the next
    room: float  # how much the load counts where there is room
    gpus: Mapping[str, Sequence[PricedGpus]]  # of each partition
    speeds: Mapping[str, Mapping[int, Mapping[str, tuple[float, float]]]]
    """Application -> GPUs -> partition -> throughput in any unit, and the standard deviation of its logarithm."""


class NewJob(NamedTuple):
    """What is known of a job before it is submitted."""

    application: str
    gpus: int
    sensitivity: str  # a key of PricedGpus.slowdown
    run_s: float  # expected in the slowest of its partitions


def steered(market: Market, job: NewJob, own: Sequence[str], room: Set[str]) -> str:
    """Where the job belongs among its user's own partitions, "" where that is not known, or waiting cannot pay.

    `room` are the partitions with free GPUs for it now. Where the chosen one has none, waiting must pay for as long
    as the tick needs to look at the job.
    """
    known = market.speeds.get(job.application, {}).get(job.gpus, {})
    if len(own) < 2 or not all(name in market.gpus and known.get(name, (0.0, 0.0))[0] > 0 for name in own):
        return ""
    slowest = min(known[name][0] for name in own)

    def until_s(name: str) -> float:
        run_s = job.run_s * slowest / known[name][0]
        wait = market.room if name in room else 1.0
        return min(
            run_s * some.slowdown.get(job.sensitivity, 1.0) * (1.0 + job.gpus * some.price) + wait * some.load_s
            for some in market.gpus[name]
        )

    best = min(own, key=until_s)
    gains = (gained_s(job.run_s * slowest, known[best], known[other]) for other in own if other != best)
    return best if best in room or WAIT_SHARE * min(gains) >= market.every_s else ""


def places(overview: Overview, request: Request) -> dict[str, bool]:
    """The partitions of the request where the job could ever run -> whether all it needs is free there now."""
    up = {p.name: p for p in overview.partitions if p.up}
    found: dict[str, bool] = {}
    for name in request.partitions:
        partition, shape = up.get(name), request.shape
        longest_s = partition.max_time_s if partition is not None else None
        if partition is None or shape is None or (longest_s is not None and (request.time_limit_s or 0) > longest_s):
            continue
        alone = candidates(request._replace(partitions=(name,)), overview)
        if isinstance(alone, str):
            continue
        fixed = shape.nodes == 1 or shape.per_node is not None
        gpus = (shape.per_node or shape.total) if fixed else 1
        tasks = request.tasks_per_node or (-(-request.tasks // (shape.nodes or 1)) if fixed else 1)
        nodes = [node for group in alone for node in group.nodes]
        wanted = alone[0].request if alone else request
        if _holds(could_hold(nodes, wanted, tasks, gpus), shape, gpus, empty=True):
            found[name] = _holds(startable(nodes, wanted, tasks, gpus), shape, gpus, empty=False)
    return found


def _holds(nodes: Sequence[Node], shape: GpuShape, gpus: int, *, empty: bool) -> bool:
    """Whether these nodes have the GPUs, when `empty` or as they are now."""
    counts = []
    for node in nodes:
        of_type = node.gpu_types.count(shape.gpu_type) if shape.gpu_type else node.n_gpus
        free = of_type if empty else min(of_type, node.n_gpus - node.gpus_used)
        counts.append(0 if shape.whole_nodes and not empty and node.gpus_used else free)
    fitting = [count for count in counts if count >= gpus]
    enough = shape.per_node is not None or shape.nodes == 1 or sum(fitting) >= shape.total
    return len(fitting) >= (shape.nodes or 1) and enough


def gained_s(work: float, here: tuple[float, float], other: tuple[float, float]) -> float:
    """By how much sooner so much work is done here, s: each place has a throughput and the error of its logarithm."""
    ratio = math.log(here[0] / other[0])
    return work / here[0] * math.expm1(sure(ratio, here[1] ** 2 + other[1] ** 2))


def sure(ratio: float, doubt: float) -> float:
    """What counts of the logarithm of a ratio of throughputs, by the variance of its error: it is shrunk towards 0."""
    return ratio**3 / (ratio**2 + doubt) if ratio else 0.0


# -- as a file ------------------------------------------------------------------------------


def path_of(snapshot_path: str) -> str:
    """Beside the snapshot."""
    return snapshot_path + ".partitions"


def to_json(market: Market) -> dict[str, Any]:
    gpus = {name: [tuple(one) for one in some] for name, some in market.gpus.items()}
    return {"schema": SCHEMA, **market._asdict(), "gpus": gpus}


def of_json(body: Any, now_s: float) -> Market | None:
    """What was published, None if it is too old. Raises ValueError, TypeError, KeyError, AttributeError."""
    if body["schema"] != SCHEMA:
        raise ValueError(f"it is not {SCHEMA!r}")
    found = Market(
        float(body["at_s"]),
        float(body["every_s"]),
        float(body["room"]),
        {str(name): [_gpus(one) for one in some] for name, some in body["gpus"].items()},
        {str(app): {int(gpus): _speeds(at) for gpus, at in sizes.items()} for app, sizes in body["speeds"].items()},
    )
    return found if -CLOCK_SKEW_S <= now_s - found.at_s <= BEATS * found.every_s else None


def _gpus(one: Any) -> PricedGpus:
    slowdown, price, load_s = one
    return PricedGpus({str(name): float(value) for name, value in slowdown.items()}, float(price), float(load_s))


def _speeds(at: Any) -> dict[str, tuple[float, float]]:
    return {str(name): (float(value), float(error)) for name, (value, error) in at.items()}
