# SPDX-License-Identifier: MIT
"""What jobs have cost: sacct's rows at today's prices."""

from __future__ import annotations

import pytest

from slurm_pal.base.prices import Prices, Usage, parse
from slurm_pal.report.costs import CostRow, rows, usage_of

PRICES = Prices({"a100": parse("GRES/gpu=2,CPU=0.1"), "cpu": parse("CPU=0.01,Mem=0.001G")})


def test_what_a_job_held() -> None:
    text = "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=2"
    assert usage_of(text) == Usage(2, 8, 64.0, 2, "a100")
    assert usage_of("cpu=4,mem=2048M") == Usage(0, 4, 2.0, 1)
    assert usage_of("") == Usage() and usage_of("cpu=x,mem=y,node=") == Usage()


def test_money_by_account_and_partition() -> None:
    lines = [
        "phys|a100|3600|cpu=10,gres/gpu=1,node=1\n", "phys|a100|7200|cpu=0,gres/gpu=2,node=1\n",
        "chem|cpu|36000|cpu=10,mem=100G,node=1\n", "chem|other|3600|cpu=1,node=1\n", "chem|cpu|0|cpu=1\n",
        "chem|cpu|10|\n", "what|is|this\n", "",
    ]  # fmt: skip
    assert rows(lines, PRICES) == [
        CostRow("phys", "a100", 2, 5.0, pytest.approx(3.0 + 8.0)),
        CostRow("chem", "cpu", 1, 0.0, pytest.approx(2.0)),
        CostRow("chem", "other", 1, 0.0, None),
    ]
