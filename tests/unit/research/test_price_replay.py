# SPDX-License-Identifier: MIT
"""Long jobs on markets whose prices move: each strategy, what moves cost, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.cli.pal import pal
from slurm_pal.research.price_replay import (
    DAILY,
    DAY_S,
    FIXED,
    MARKETS,
    MIN_COST,
    SEVERAL,
    STRATEGIES,
    TYPE,
    Replay,
    ReplayTerms,
    read_log,
    starts_s,
)

HEADER = "market,type,gpus,price,unix_time\n"
LOG = HEADER + "".join(
    f"{market},{kind},{gpus},{price},{day * DAY_S:.0f}\n"
    for market, kind, gpus, prices in (
        ("one/a", "v100", 1, [4.0] * 8), ("one/b", "v100", 1, [5.0] * 8), ("one/a", "k80", 1, [1.5] * 8),
        ("one/a", "k80", 8, [8.0] * 8), ("two/a", "v100", 1, [3.0, 3.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0]),
        ("one/c", "v100", 4, [14.0] * 8),
    )
    for day, price in enumerate(prices)
)  # fmt: skip
SPEED = {"v100": 2.0, "k80": 1.0}


def replay(tmp_path: Path, text: str = LOG, restart_s: float = 0.0, egress: float = 0.0, days: float = 4.0) -> Replay:
    path = tmp_path / "log.csv"
    path.write_text(text)
    return Replay(read_log(str(path)), SPEED, ReplayTerms(days, "v100", restart_s, egress))


def test_each_strategy_may_choose_from_more(tmp_path: Path) -> None:
    made = replay(tmp_path)
    assert made.cost(FIXED, 0.0).money == pytest.approx(4 * 24 * 4.0)
    assert made.cost(TYPE, 0.0).money == pytest.approx(8 * 24 * 1.5)  # twice as long, and cheaper
    assert made.cost(SEVERAL, 0.0).money == pytest.approx(8 * 24 * 1.0)
    # By the hour of work: 3.0 elsewhere, 2.0 on the K80s of eight.
    assert made.cost(MARKETS, 0.0).money == made.cost(SEVERAL, 0.0).money
    # Two days of K80s do the work of one; on the third the other market is cheapest, then it is not.
    daily = made.cost(DAILY, 0.0)
    assert daily.money == pytest.approx(24 * (1.0 + 1.0 + 1.0) + 4 * 24 * 1.0) and daily.moves == 2


def test_a_static_job_pays_what_its_instance_costs_each_day(tmp_path: Path) -> None:
    text = HEADER + f"m,v100,1,1,0\nm,v100,1,2,{DAY_S:.0f}\nm,v100,1,4,{2 * DAY_S:.0f}\n"
    assert replay(tmp_path, text).cost(MARKETS, 0.0).money == pytest.approx(24 * (1 + 2 + 4 + 4))


def test_a_move_must_pay_for_itself(tmp_path: Path) -> None:
    free, dear = replay(tmp_path).cost(MIN_COST, 0.0), replay(tmp_path, egress=1000.0).cost(MIN_COST, 0.0)
    assert dear.moves == 0 and dear.money == replay(tmp_path).cost(MARKETS, 0.0).money
    assert free.moves >= 1 and free.money <= dear.money
    slow = replay(tmp_path, restart_s=3600.0).cost(MIN_COST, 0.0)
    assert slow.hours == pytest.approx(slow.moves + free.hours) and slow.money > free.money


def test_no_strategy_with_more_freedom_starts_dearer(tmp_path: Path) -> None:
    made = replay(tmp_path, days=1.0)
    costs = [made.cost(strategy, 0.0).money for strategy in (FIXED, TYPE, SEVERAL, MARKETS)]
    assert costs == sorted(costs, reverse=True) and len(STRATEGIES) == 6


def test_days_on_which_jobs_start(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    assert starts_s(read_log(str(path)), "v100") == [day * DAY_S for day in range(8)]
    with pytest.raises(DataError, match="no instance"):
        starts_s(read_log(str(path)), "h100")


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n", HEADER, HEADER + "m,v100,1,1\n", HEADER + "m,v100,0,1,0\n", HEADER + "m,v100,1,0,0\n",
     HEADER + "m,v100,1,nan,0\n", HEADER + ",v100,1,1,0\n", HEADER + "m,v100,x,1,0\n"],
)  # fmt: skip
def test_a_log_that_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError):
        replay(tmp_path, text)


def test_the_reference_must_be_for_sale(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="for sale"):
        replay(tmp_path, HEADER + "m,v100,4,1,0\n")


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "table.csv").write_text("application,gpus,type,steps_per_s\nnet,1,v100,2\nnet,1,k80,1\nother,1,k80,1\n")
    words = ["simulate", "--policy", "min-cost", "--prices", str(tmp_path / "log.csv")]
    done = CliRunner().invoke(pal, [*words, "--throughputs", str(tmp_path / "table.csv"), "--job-days", "4"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[1].split()[:2] == ["net", "384.00"] and "study" in done.output
    shown = CliRunner().invoke(pal, [*words, "--throughputs", str(tmp_path / "table.csv"), "--json"])
    body = json.loads(shown.output)
    assert body["schema"] == "pal.simulate-prices/1" and body["applications"]["net"]["fixed"]["reduction"] == 1.0
    table = CliRunner().invoke(pal, [*words, "--throughputs", str(tmp_path / "table.csv"), "--csv"])
    assert len(table.output.splitlines()) == 1 + len(STRATEGIES)
    for missing in (words[:3], words, [*words, "--throughputs", str(tmp_path / "table.csv"), "--trace", "t"]):
        assert isinstance(CliRunner().invoke(pal, missing).exception, UsageError)
    plain = CliRunner().invoke(pal, ["simulate", "--generate", "", "--job-days", "4"])
    assert isinstance(plain.exception, UsageError) and "min-cost" in str(plain.exception)
