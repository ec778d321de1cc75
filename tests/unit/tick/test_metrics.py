# SPDX-License-Identifier: MIT
"""The Prometheus textfile: what stands in it, and that it stays small."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_pal.base.errors import DataError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import MoveOutcome
from slurm_pal.loans.lend import Leaver, Lent
from slurm_pal.store.snapshot import GpuScore, Snapshot, _columns
from slurm_pal.tick.metrics import TickNumbers, loan_numbers, text, write

NOW_S = 1.8e9
JOB = SlurmJob(7, "RUNNING", "None", "u", "train", "guest", {}, ("n6",), (), (), 0.0, 0.0, 0.0, None, 0, "", 1)
Labels = tuple[tuple[str, str], ...]


def snapshot(nodes: int = 2, gpus: int = 2, prefix: str = "n") -> Snapshot:
    rows = [
        GpuScore(
            f"{prefix}{i}", k, "", "m", {"A": 1.0 + i / 10 + k / 100, "B": 1.0}, {"A": f"v{k}", "B": "v0", "C": "?"},
            NOW_S - 3600 * (k + 1) if i else 0.0, 1.0, (),
        )
        for i in range(nodes)
        for k in range(gpus)
    ]  # fmt: skip
    return Snapshot({}, *_columns(rows))


def move(number: int, outcome: str, observed: float | None = None) -> Move:
    return Move(
        number, 7, "u", 0.0, 0, "n1:0", ("n2",), "n2:0", "", 1.25, 1.0, 200.0, 60.0, True, "", "done", 0.0, outcome,
        observed=observed,
    )  # fmt: skip


def tick(**changes: object) -> TickNumbers:
    seen = TickNumbers(
        at_s=NOW_S,
        tick_s=0.25,
        queries=3,
        query_s=0.125,
        snapshot=snapshot(),
        leases={"nodelist": 2},
        moves=[move(1, "moved", 1.25), move(2, "moved"), move(3, "elsewhere"), move(4, ""), move(5, "moved", 1.0)],
        calibration=0.75,
        paused=True,
    )
    return seen._replace(**changes)  # type: ignore[arg-type]


def read(data: bytes) -> dict[tuple[str, Labels], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(data.decode())
        for sample in family.samples
    }


def test_every_gpu_of_a_small_cluster() -> None:
    found = read(text(tick()))
    gpu = (("class", "A"), ("index", "1"), ("node", "n1"))
    assert found["pal_gpu_slowdown", gpu] == 1.11 and found["pal_gpu_class", gpu] == 1
    assert found["pal_gpu_score_age_seconds", gpu[1:]] == 7200
    ages = {labels for name, labels in found if name == "pal_gpu_score_age_seconds"}
    assert ages == {(("index", str(k)), ("node", "n1")) for k in (0, 1)}, "never measured has no age"
    assert not [labels for name, labels in found if name.startswith("pal_gpu") and ("class", "C") in labels]


def test_the_tick_in_numbers() -> None:
    found = read(text(tick()))
    plain = {name: value for (name, labels), value in found.items() if not labels}
    assert plain == {
        "pal_tick_seconds": 0.25, "pal_tick_timestamp_seconds": NOW_S, "pal_slurm_queries": 3,
        "pal_slurm_query_seconds": 0.125, "pal_calibration": 0.75, "pal_paused": 1,
        "pal_broken_jobs": 0, "pal_faults": 0,
        "pal_move_gain_predicted_seconds_total": 400, "pal_move_gain_observed_seconds_total": 200,
    }  # fmt: skip
    leases = {labels[0][1]: value for (name, labels), value in found.items() if name == "pal_leases"}
    assert leases == {"nodelist": 2, "exclude": 0, "move": 0, "partition": 0, "fence": 0}
    moves = {labels[0][1]: value for (name, labels), value in found.items() if name == "pal_moves_total"}
    assert moves == {"moved": 3, "elsewhere": 1, "abandoned": 0, "ended": 0, "waiting": 0}


def test_before_anything_was_measured() -> None:
    found = read(text(tick(snapshot=snapshot(0), moves=[], leases={}, paused=False)))
    assert found["pal_paused", ()] == 0 and not [name for name, _ in found if name.startswith("pal_gpu")]


@pytest.mark.parametrize(
    ("nodes", "gpus", "series", "labels"),
    [
        (250, 8, 2000, (("index", "7"), ("node", "{}249"))),
        (1250, 8, 1250, (("index", ""), ("node", "{}1249"))),
        (2500, 4, 1, (("index", ""), ("node", ""))),
    ],
)
def test_a_large_cluster_is_told_by_its_worst_and_the_file_stays_small(
    nodes: int, gpus: int, series: int, labels: Labels
) -> None:
    prefix = "a-rather-long-name-of-a-node-in-a-rather-large-cluster-"
    data = text(tick(snapshot=snapshot(nodes, gpus, prefix)))
    assert len(data) < 2e6
    found = read(data)
    ages = {key: value for key, value in found.items() if key[0] == "pal_gpu_score_age_seconds"}
    slow = {key: value for key, value in found.items() if key[0] == "pal_gpu_slowdown" and ("class", "A") in key[1]}
    assert len(slow) == series and len(ages) <= series
    worst = (("class", "A"), *((name, value.format(prefix)) for name, value in labels))
    assert slow["pal_gpu_slowdown", worst] == pytest.approx(1.0 + (nodes - 1) / 10 + (gpus - 1) / 100, abs=1e-3)
    assert ages["pal_gpu_score_age_seconds", worst[1:]] == 3600 * gpus


def test_the_file_is_replaced_and_readable_by_the_exporter(tmp_path: Path) -> None:
    path = tmp_path / "pal.prom"
    write(str(path), tick())
    before = path.stat().st_ino
    write(str(path), tick(tick_s=9.0))
    assert b"pal_tick_seconds 9.0\n" in path.read_bytes() and path.stat().st_ino != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and os.listdir(tmp_path) == ["pal.prom"]


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    path = str(tmp_path / "away" / "pal.prom")
    with pytest.raises(DataError, match=r"metrics .*pal.prom cannot be written .No such file.*rebalance.metrics"):
        write(path, tick())


def test_the_clock_was_set_back() -> None:
    found = read(text(tick(at_s=time.mktime((2001, 1, 1, 0, 0, 0, 0, 0, -1)))))
    assert {value for (name, _), value in found.items() if name == "pal_gpu_score_age_seconds"} == {0}


def test_loans_in_numbers_also_where_no_gpu_was_measured() -> None:
    left = move(1, "")._replace(
        outcome=MoveOutcome.RECLAIMED, owners="owner", checkpoint=False, source="n1:0,1 n2:3", cost_s=100.0
    )
    moves = [left, left._replace(outcome=MoveOutcome.ABANDONED), left._replace(outcome=MoveOutcome.OPEN)]
    lent = Lent("guest", opened=("n6", "n7"), needed=5, total=8, used=4, predicted=4.5)
    found = read(text(tick(snapshot=None, loans=loan_numbers(lent, moves))))
    loans = {(name, labels): value for (name, labels), value in found.items() if name.startswith("pal_loan")}
    assert loans == {
        ("pal_loan_nodes", (("state", "open"),)): 2, ("pal_loan_nodes", (("state", "closed"),)): 2,
        ("pal_loan_nodes", (("state", "used"),)): 4, ("pal_loan_demand_nodes", ()): 5,
        ("pal_loan_predicted_nodes", ()): 4.5, ("pal_loan_reclaims_total", ()): 1,
        ("pal_loan_lost_gpu_seconds_total", ()): 300,
    }  # fmt: skip
    assert not [name for name, _ in found if name.startswith("pal_gpu")]
    unknown = read(text(tick(loans=loan_numbers(lent._replace(predicted=None), ()))))
    assert not [name for name, _ in unknown if name == "pal_loan_predicted_nodes"]
    assert not [name for name, _ in read(text(tick())) if name.startswith("pal_loan")]


def test_an_open_node_that_its_owner_uses_counts_once() -> None:
    lent = Lent("guest", opened=("n6", "n7"), needed=3, total=4, used=3)
    assert loan_numbers(lent, ()).nodes == {"open": 1, "closed": 0, "used": 3}


def test_what_a_kept_tick_says_of_loans_is_json() -> None:
    job = JOB._replace(asks=JOB.asks._replace(gpu_types=frozenset({"a100"})))
    lent = Lent("guest", opened=("n7",), leavers=(Leaver(job, True, 5.0, 260.0, 30.0),), released=(job,))
    told = json.loads(json.dumps(lent.told))
    assert told["leavers"] == [{"job": 7, "checkpoint": True, "lost_s": 5.0, "cost": 260.0, "ran_s": 30.0}]
    assert told["released"] == [7] and told["opened"] == ["n7"]
