# SPDX-License-Identifier: MIT
"""Prices: forms of rates, which source counts, and what an hour costs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slurm_pal.base import config, prices
from slurm_pal.base.errors import ConfigError, DataError
from slurm_pal.base.prices import GPU, LivePrice, Usage, live, parse, per_hour

DAY_S = 86400.0


def test_rates_are_a_price_of_a_gpu_hour_or_slurms_weights() -> None:
    assert parse(2.5) == {GPU: 2.5} and parse(0) == {GPU: 0.0}
    assert parse("CPU=0.02, GRES/gpu=1.5,GRES/gpu:A100=3,node=0.1") == {
        "cpu": 0.02, GPU: 1.5, "gres/gpu:a100": 3.0, "node": 0.1,
    }  # fmt: skip
    # slurm.conf(5): memory counts in MiB unless a unit is given.
    assert (
        parse("Mem=0.25G") == {"mem": 0.25} and parse("Mem=1") == {"mem": 1024.0} and parse("Mem=1024T") == {"mem": 1}
    )


@pytest.mark.parametrize(
    "value", [True, "", "2.5", "CPU", "CPU=", "CPU=x", "CPU=-1", "CPU=nan", -1.0, math.inf, [1], 2e9]
)
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(value)


def test_an_hour_costs_what_the_job_holds() -> None:
    rates = parse("CPU=0.01,Mem=0.001G,GRES/gpu=1.5,GRES/gpu:a100=3,node=0.5")
    assert per_hour(rates, Usage(2, 8, 64.0, 1)) == pytest.approx(3.0 + 0.08 + 0.064 + 0.5)
    assert per_hour(rates, Usage(2, 0, 0.0, 0, "A100")) == 6.0
    assert per_hour(rates, Usage(2, 0, 0.0, 0, "v100")) == 3.0


def test_live_prices_count_before_constants_and_those_before_billing() -> None:
    stated = {"a": parse("GRES/gpu=2,CPU=0.1"), "b": parse(1)}
    billing = {"c": "GRES/gpu=7", "a": "GRES/gpu=9"}
    found = prices.prices(stated, billing, {"a": LivePrice(1.5, 0.0), "b": LivePrice(9.0, -DAY_S - 1.0)}, 0.0)
    assert found.per_hour("a", Usage(1, 1)) == pytest.approx(1.6)
    assert found.per_hour("b", Usage(1)) == 1.0 and found.old == ("b",)
    assert found.per_hour("c", Usage(1)) is None  # units of billing are no money
    alone = prices.prices({}, billing | {"d": "CPU=1,what"}, {}, 0.0)
    assert alone.per_hour("c", Usage(1)) == 7.0 and alone.per_hour("d", Usage(1)) is None


def test_a_live_file_has_the_newest_row_of_each_partition() -> None:
    text = "partition,price,unix_time\n# hourly\na, 1.5, 100\n\na,1.2,200\na,9,150\nb,0,1e9\n"
    assert live("f", text) == {"a": LivePrice(1.2, 200.0), "b": LivePrice(0.0, 1e9)}
    for bad in ("a,1", "a,x,1", "a,-1,1", ",1,1", "a,1,nan", "a,1,1,1"):
        with pytest.raises(DataError, match="line 1"):
            live("f", bad)


def test_pal_toml_has_a_section_of_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pal.toml"
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path.write_text('[submit]\ngoal = "cost"\n[prices]\na100 = 2.5\ncpu = "CPU=0.02"\n')
    loaded = config.load()
    assert loaded.prices == {"a100": {GPU: 2.5}, "cpu": {"cpu": 0.02}} and loaded.text("submit", "goal") == "cost"
    path.write_text('[prices]\na100 = "cheap"\n')
    with pytest.raises(ConfigError, match=r"prices\.a100"):
        config.load()


def test_a_live_file_that_cannot_be_read_leaves_the_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, live_path = tmp_path / "pal.toml", tmp_path / "live.csv"
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path.write_text(f'[submit]\nprices = "{live_path}"\n[prices]\na100 = 2.5\n')
    for text in (None, "a100,cheap,1\n"):
        if text is not None:
            live_path.write_text(text)
        found = prices.current(config.load(), (), 100.0)
        assert found.rates == {"a100": {GPU: 2.5}}
        assert "cannot be read" in found.complaints[0] and str(live_path) in found.complaints[0]
    live_path.write_text("a100,3.5,90\nold,1,-90000\n")
    found = prices.current(config.load(), (), 100.0)
    assert found.rates == {"a100": {GPU: 3.5}} and "old" in found.complaints[0]
