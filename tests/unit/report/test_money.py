# SPDX-License-Identifier: MIT
"""Money by account in the site's report: text, page and JSON, and why it may be missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_pal.base import config as settings
from slurm_pal.base.cluster import Partition
from slurm_pal.report.costs import NO_PRICE, AccountCost, CostRow, Money, by_account, money
from slurm_pal.report.gpus.as_json import to_json
from slurm_pal.report.gpus.text import text
from slurm_pal.report.gpus.words import caveats, money_table

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
pytest.importorskip("jinja2", reason="the page needs Jinja2")

from slurm_pal.report.gpus import page as gpus_page
from slurm_pal.report.gpus.page import page

from ...doubles.gpus_site import records, site_of
from ...doubles.html_reader import HOSTILE, Reader, framed
from ...doubles.records_factory import NOW_S

FOUND = [
    CostRow("chem", "a100", 3, 40.0, 200.0),
    CostRow("phys", "a100", 2, 30.0, 150.0),
    CostRow("phys", "cpu", 7, 0.0, 75.5),
    CostRow("phys", "other", 1, 4.0, None),
    CostRow("bio", "other", 1, 9.0, None),
]
MONEY = Money(by_account(FOUND))


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sacct that says what stands in `answer`; its words are kept in `asked`."""
    commands = tmp_path / "bin"
    commands.mkdir()
    told = commands / "sacct"
    told.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n. {tmp_path}/answer\n')
    told.chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    return tmp_path


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take seconds, and show no money."""
    monkeypatch.setattr(gpus_page, "pictures", lambda report: [])


def priced(directory: Path, monkeypatch: pytest.MonkeyPatch, toml: str) -> settings.Config:
    (directory / "pal.toml").write_text(toml)
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(directory / "pal.toml"))
    return settings.load()


def test_accounts_are_summed_up_and_the_dearest_comes_first() -> None:
    assert by_account(FOUND) == (
        AccountCost("phys", 10, 34.0, 225.5, tuple(FOUND[1:4])),
        AccountCost("chem", 3, 40.0, 200.0, (FOUND[0],)),
        AccountCost("bio", 1, 9.0, None, (FOUND[4],)),
    )
    assert by_account([]) == ()


def test_text_page_and_json_show_the_same_money() -> None:
    found = site_of(records(gpus=12, sweeps=1))._replace(money=MONEY)
    shown = [
        ("phys", "(all)", "10", "34.0", "225.50"), ("", "a100", "2", "30.0", "150.00"),
        ("", "cpu", "7", "0.0", "75.50"), ("", "other", "1", "4.0", "-"),
        ("chem", "a100", "3", "40.0", "200.00"), ("bio", "other", "1", "9.0", "-"),
    ]  # fmt: skip
    assert money_table(found, 9).rows == shown
    lines = text(found)
    at = lines.index("MONEY BY ACCOUNT, LAST 30 DAYS")
    assert lines[at + 1].split() == ["ACCOUNT", "PARTITION", "JOBS", "GPU-H", "COST"]
    assert [tuple(line.split()) for line in lines[at + 2 : at + 8]] == [tuple(filter(None, row)) for row in shown]
    cells = [words.strip() for words in Reader(page(found)).text]
    assert "Money by account, last 30 days" in cells and "225.50" in cells
    told = json.loads(json.dumps(to_json(found)))["money"]
    assert [(one["account"], one["cost"], len(one["partitions"])) for one in told["accounts"]] == [
        ("phys", 225.5, 3), ("chem", 200.0, 1), ("bio", None, 1),
    ]  # fmt: skip
    assert (told["days"], told["complaints"], told["missing"]) == (30, [], "")


def test_a_long_list_of_accounts_is_cut() -> None:
    found = site_of(records(gpus=12, sweeps=1))._replace(money=MONEY)
    cut = money_table(found, 1)
    assert len(cut.rows) == 4 and cut.note.endswith("And 2 more accounts: pal costs")
    assert money_table(found, 2).note.endswith("And 1 more account: pal costs")
    assert "pal costs" not in money_table(found, 3).note


def test_names_of_accounts_stay_text(tmp_path: Path) -> None:
    hostile = by_account([CostRow(HOSTILE, HOSTILE, 1, 1.0, 2.0), CostRow("a\u202eb", "x\x1b[2J", 1, 1.0, 1.0)])
    found = site_of(records(gpus=12, sweeps=1))._replace(money=Money(hostile))
    html = page(found)
    reader = Reader(html)
    assert reader.open == [] and not {"script", "img"} & set(reader.tags)
    assert any(HOSTILE[:30] in words for words in reader.text)
    assert "a?b" in html and "x?[2J" in html and "\x1b" not in "".join(text(found))
    (seen,) = framed(tmp_path, {"money": (html, 400)}).values()
    assert seen["scripts"] == 1 and seen["wide"] <= seen["window"] and "MONEY" in seen["text"].upper()


def test_one_sentence_says_why_there_is_no_money() -> None:
    found = site_of(records(gpus=12, sweeps=1))
    assert not any("oney" in line for line in [*caveats(found), *text(found)]) and to_json(found)["money"] is None
    found = found._replace(money=Money(complaints=("the live prices cannot be read: x",), missing=NO_PRICE))
    assert [line for line in caveats(found) if "rices" in line or "oney" in line] == [
        "The live prices cannot be read: x.",
        "Money by account is missing: no price is known: state [prices] in pal.toml, or TRESBillingWeights in "
        "slurm.conf.",
    ]
    assert "Money by account" in page(found) and not any("MONEY BY ACCOUNT" in line for line in text(found))


def test_money_comes_from_sacct_and_prices_or_weights(sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sacct / "answer").write_text("echo 'phys|gpu|7200|gres/gpu=2'")
    parts = [Partition("gpu", True, True, ("n1",), billing="GRES/gpu=5")]
    weighed = money(priced(sacct, monkeypatch, ""), parts, NOW_S)
    assert [(one.account, one.gpu_h, one.cost) for one in weighed.accounts] == [("phys", 4.0, 20.0)]
    stated = money(priced(sacct, monkeypatch, "[prices]\ngpu = 2\n"), parts, NOW_S)
    assert stated.accounts[0].cost == 8.0 and not stated.missing
    elsewhere = money(priced(sacct, monkeypatch, "[prices]\ncpu = 2\n"), parts, NOW_S)
    assert elsewhere.accounts[0].cost is None and not elsewhere.missing


def test_without_prices_accounting_or_jobs_it_says_so(sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = priced(sacct, monkeypatch, "")
    assert money(config, None, NOW_S).missing == "Slurm does not answer"
    assert money(config, [Partition("gpu", True, True, ("n1",))], NOW_S).missing == NO_PRICE
    assert not (sacct / "asked").exists(), "nothing to ask for"
    config = priced(sacct, monkeypatch, "[prices]\ngpu = 2\n")
    (sacct / "answer").write_text("true")
    assert money(config, [], NOW_S).missing == "accounting knows no job of the last 30 days"
    (sacct / "answer").write_text("echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert money(config, [], NOW_S).missing == "sacct failed: Slurm accounting storage is disabled"
    monkeypatch.setattr("slurm_pal.report.costs.REPORT_S", 0.3)
    (sacct / "answer").write_text("exec sleep 60")
    assert money(config, [], NOW_S).missing.startswith("sacct had not ended after 0.3 s")
    monkeypatch.setenv("PATH", "/none")
    assert money(config, [], NOW_S).missing.startswith("sacct is not in PATH")
