# SPDX-License-Identifier: MIT
"""What the tick saw, as a textfile for the Prometheus node exporter (its --collector.textfile.directory)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.decide.tick_lease import LeaseKind
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import ENDS, MoveOutcome
from slurm_pal.loans.lend import Lent
from slurm_pal.moves.learning import observed_gain_s
from slurm_pal.moves.reclaimed import total_lost_gpu_s
from slurm_pal.store.snapshot import CLASS_ALARMS, NO_CLASS, Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_SERIES = 2000
"""GPUs, or nodes, that are shown one by one: at seven lines each the file stays below 2 MB."""


class LoanNumbers(NamedTuple):
    """Owners and guests in numbers."""

    nodes: Mapping[str, int]  # usable ones of owners, by state: open, closed, used
    demand: int  # nodes that owners use and wait for
    predicted: float | None  # that they will need until the next order; None: nothing is known
    reclaims: Sequence[Move]  # all of the journal


class TickNumbers(NamedTuple):
    """One tick in numbers."""

    at_s: float  # Unix s
    tick_s: float  # how long it took
    queries: int  # asked of Slurm
    query_s: float  # how long Slurm took for the large one
    snapshot: Snapshot | None  # as published, not corrected; None: there is none
    leases: Mapping[str, int]  # kind -> lists of ours in force
    moves: Sequence[Move]  # all rows of the journal, so that totals survive a restart
    calibration: float
    paused: bool
    broken: int = 0  # jobs that are left alone since they break us
    faults: int = 0  # unexpected errors since the start of the process
    loans: LoanNumbers | None = None  # None: nothing is lent


class _Score(NamedTuple):
    """What hears of one GPU, or of the worst one of a node or of the cluster."""

    node: str
    index: str  # type: ignore[assignment]  # hides tuple.index, which nobody calls here
    slowdown: dict[str, float]
    variability_class: dict[str, int]
    measured_s: float  # 0.0: never


def write(path: str, seen: TickNumbers) -> None:
    """Replace the textfile, mode 0644. The exporter reads files named *.prom.

    Raises DataError when it cannot be written.
    """
    try:
        write_atomic(path, text(seen), 0o644)
    except OSError as error:
        raise DataError(f"metrics {path} cannot be written ({error.strerror}): see rebalance.metrics") from None


def text(seen: TickNumbers) -> bytes:
    """The file, in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Tick(Collector):
        def collect(self) -> Iterable[Metric]:
            yield from _gpus(seen.snapshot, seen.at_s) if seen.snapshot is not None else ()
            yield from _tick(seen)
            yield from _moves(seen.moves)
            yield from _loans(seen.loans) if seen.loans is not None else ()

    registry = CollectorRegistry()
    registry.register(Tick())
    return generate_latest(registry)


def _tick(seen: TickNumbers) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    plain = (
        ("pal_tick_seconds", "How long the last tick took.", seen.tick_s),
        ("pal_tick_timestamp_seconds", "When the last tick was, Unix time.", seen.at_s),
        ("pal_slurm_queries", "Questions that the last tick asked of Slurm.", seen.queries),
        ("pal_slurm_query_seconds", "How long Slurm took to answer the large one.", seen.query_s),
        ("pal_calibration", "Observed over predicted gain of moves, as the planner uses it.", seen.calibration),
        ("pal_paused", "1 while the tick only looks because slurmctld is busy.", float(seen.paused)),
    )
    for name, help_text, value in (
        *plain,
        ("pal_broken_jobs", "Jobs that are left alone since they make our code raise.", float(seen.broken)),
        ("pal_faults", "Unexpected errors of this process so far.", float(seen.faults)),
    ):
        yield GaugeMetricFamily(name, help_text, value=value)
    states = GaugeMetricFamily(
        "pal_classes", "GPU models whose classes are flat, or have shifted together.", labels=["state"]
    )
    notices = seen.snapshot.notices if seen.snapshot is not None else []
    for state in CLASS_ALARMS:
        models = {str(notice.get("model")) for notice in notices if notice.get("state") == state}
        states.add_metric([state], len(models))
    yield states
    leases = GaugeMetricFamily("pal_leases", "Node lists of ours on pending jobs.", labels=["kind"])
    for kind in LeaseKind:
        leases.add_metric([kind], seen.leases.get(kind, 0))
    yield leases


def _moves(moves: Sequence[Move]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    ended = [move for move in moves if move.outcome]
    counts: Counter[str] = Counter(move.outcome for move in ended)
    total = CounterMetricFamily("pal_moves", "Moves that ended, by outcome.", labels=["outcome"])
    for outcome in sorted({*ENDS, *counts}):
        total.add_metric([outcome], counts[outcome])
    yield total
    observed = {move.move_id: gain for move in ended if (gain := observed_gain_s(move)) is not None}
    # Only moves with both numbers: a total of predictions alone could not be held against what came of them.
    predicted_s = sum(move.gain_s for move in ended if move.move_id in observed)
    for name, help_text, value in (
        ("pal_move_gain_predicted_seconds", "Run time that these moves were to save, cost not deducted.", predicted_s),
        (
            "pal_move_gain_observed_seconds",
            "Run time that they saved, by the steps of the jobs.",
            sum(observed.values()),
        ),
    ):
        yield CounterMetricFamily(name, help_text, value=value)


def loan_numbers(lent: Lent, reclaims: Sequence[Move]) -> LoanNumbers:
    """What one tick decided about loans, as it stands after it, and all reclaims of the journal."""
    free = max(0, lent.total - lent.used)
    opened = min(len(lent.opened), free)  # one that the owner uses may be open, too, so that Slurm takes guests' jobs
    nodes = {"open": opened, "closed": free - opened, "used": lent.used}
    return LoanNumbers(nodes, lent.needed, lent.predicted, reclaims)


def _loans(seen: LoanNumbers) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    nodes = GaugeMetricFamily("pal_loan_nodes", "Usable nodes of owners, by state.", labels=["state"])
    for state, count in seen.nodes.items():
        nodes.add_metric([state], count)
    yield nodes
    yield GaugeMetricFamily("pal_loan_demand_nodes", "Nodes that owners use and wait for.", value=seen.demand)
    if seen.predicted is not None:
        text = "Nodes that owners are expected to need until the next order."
        yield GaugeMetricFamily("pal_loan_predicted_nodes", text, value=seen.predicted)
    left = [move for move in seen.reclaims if move.outcome is MoveOutcome.RECLAIMED]
    for name, help_text, value in (
        ("pal_loan_reclaims", "Guests that were taken off nodes of owners.", len(left)),
        ("pal_loan_lost_gpu_seconds", "Work that they lost by that, GPU-seconds.", total_lost_gpu_s(left)),
    ):
        yield CounterMetricFamily(name, help_text, value=value)


def _gpus(snapshot: Snapshot, at_s: float) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["node", "index", "class"]
    slow = GaugeMetricFamily(
        "pal_gpu_slowdown", "Time relative to the median GPU, by sensitivity class.", labels=labels
    )
    bins = GaugeMetricFamily("pal_gpu_class", "Number of the variability class, 0 is the fastest.", labels=labels)
    age = GaugeMetricFamily("pal_gpu_score_age_seconds", "Since the newest measurement.", labels=labels[:2])
    for score in scores(snapshot):
        for c, slowdown in score.slowdown.items():
            slow.add_metric([score.node, score.index, c], round(slowdown, 4))
        for c, number in score.variability_class.items():
            bins.add_metric([score.node, score.index, c], number)
        if score.measured_s:
            age.add_metric([score.node, score.index], round(max(0.0, at_s - score.measured_s)))
    yield from (slow, bins, age)


def scores(snapshot: Snapshot) -> Iterator[_Score]:
    """Each GPU; above `MOST_SERIES` of them the worst of each node, and above so many nodes the worst of all.

    An empty label is to Prometheus as none.
    """
    if len(snapshot) <= MOST_SERIES:
        for node, rows in snapshot.rows.items():
            for row in rows:
                yield _worst(snapshot, node, str(snapshot.columns["index"][row]), [row])
    elif len(snapshot.nodes) <= MOST_SERIES:
        for node, rows in snapshot.rows.items():
            yield _worst(snapshot, node, "", rows)
    else:
        yield _worst(snapshot, "", "", range(len(snapshot)))


def _worst(snapshot: Snapshot, node: str, index: str, rows: Sequence[int]) -> _Score:
    """The slowest, the highest class and the oldest of these rows; what is unknown of all of them is left out."""
    columns = snapshot.columns
    slowdown: dict[str, float] = {}
    bins: dict[str, int] = {}
    for c in SENSITIVITY_CLASSES:
        values = [value for row in rows if not math.isnan(value := columns[f"slowdown_{c}"][row])]
        numbers = [number for row in rows if (number := columns[f"class_{c}"][row]) != NO_CLASS]
        slowdown |= {c: max(values)} if values else {}
        bins |= {c: max(numbers)} if numbers else {}
    measured_s = min((when for row in rows if (when := columns["measured_s"][row])), default=0.0)
    return _Score(node, index, slowdown, bins, measured_s)
