# SPDX-License-Identifier: MIT
"""pal-rebalance --keep-ticks and pal ticks: kept, decided again, and what is said of it."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.errors import BusyError, DataError, Exit, UsageError
from slurm_pal.cli.pal import pal
from slurm_pal.report.ticks import COLUMNS, when
from slurm_pal.tick import kept
from slurm_pal.tick.keeping import Keeper

from .test_kept_ticks import head_of, rewritten
from .test_rebalance_cli import Site, run, said

MOVABLE = "--comment=pal:job=A;from=x;mov=1;app=1"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def folder(site: Site) -> str:
    """Two looks, kept: one at nothing, one that would move a job and names a hostile user's words."""
    path = str(site.folder / "kept")
    assert run("--keep-ticks", path).exit_code == 0
    site.submit("--gres=gpu:1", MOVABLE)
    site.submit("--gres=gpu:1", "-J", "\x1b[2Jnasty")
    assert run("--keep-ticks", path).exit_code == 0
    return path


def ticks(*words: str, code: Exit = Exit.OK) -> str:
    result: Result = CliRunner().invoke(pal, ["ticks", *words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refused(*words: str) -> str:
    return said(CliRunner().invoke(pal, ["ticks", *words]), DataError, Exit.DATA)


def test_identical(folder: str) -> None:
    assert ticks(folder) == "identical: 2 ticks decided again, 0 changes of lists and 1 move in them\n"
    assert ticks(folder, "--last", "1").startswith("identical: 1 tick decided again")
    found = json.loads(ticks(folder, "--json"))
    assert (found["schema"], found["identical"], found["total"]["moves"]) == ("pal.ticks/1", True, 1)
    rows = list(csv.DictReader(io.StringIO(ticks(folder, "--csv"))))
    assert list(rows[0]) == list(COLUMNS) and [row["identical"] for row in rows] == ["true", "true"]
    assert ticks(folder, "--csv", "--noheader").count("\n") == 2


def test_a_tick_that_differs_is_named_and_the_exit_code_says_so(folder: str) -> None:
    path = Path(folder) / kept.tick_name(2)
    head, body = head_of(path)
    body["decided"]["plan"] = json.loads(json.dumps(body["decided"]["plan"]).replace('"n1"', '"n\\u001b7"'))
    rewritten(path, head, body)
    text = ticks(folder, code=Exit.FAILED)
    assert text.startswith("not identical: 1 of 2 ticks decided again as before")
    assert f"tick 2 at {when(head['at_s'])} differs:" in text and "\x1b" not in text
    assert "plan, moves, job 1, target" in text
    found = json.loads(ticks(folder, "--json", code=Exit.FAILED))
    assert [one["identical"] for one in found["ticks"]] == [True, False]
    assert "it differs:" in ticks(folder, "--at", when(head["at_s"] + 1), code=Exit.FAILED)


def test_a_tick_of_another_release_is_compared_with_a_warning(folder: str) -> None:
    path = Path(folder) / kept.tick_name(2)
    head, body = head_of(path)
    rewritten(path, head | {"release": "0.0.7"}, body)
    assert "Kept by slurm-pal 0.0.7" in ticks(folder)


def test_why_did_it_do_that_at(folder: str, site: Site) -> None:
    at_s = kept.read_head(folder, 2).at_s
    text = ticks(folder, "--at", when(at_s + 1))
    assert "tick 2 at" in text and "again   identical" in text and "n0:0 -> n1:0" in text
    assert "2 nodes, 6 of 8 GPUs free; jobs: 2 running" in text and "scores of epoch 1" in text
    assert "rebalance.minimum_s = 0.0" in text
    assert "tick 1 at" in ticks(folder, "--at", "2001-01-01T00:00")
    assert "tick 2 at" in ticks(folder, "--at", when(at_s + 1)[11:])
    found = json.loads(ticks(folder, "--at", when(at_s + 1), "--json"))
    assert found["schema"] == "pal.tick-shown/1" and found["saw"]["gpus_free"] == 6
    assert [move["job_id"] for move in found["decided"]["moves"]] == [1]


def test_a_tick_that_could_not_decide_is_shown(site: Site) -> None:
    os.unlink(site.folder / "state" / "snapshot")
    path = str(site.folder / "kept")
    assert run("--keep-ticks", path).exit_code == 0
    text = ticks(path, "--at", "2100-01-01T00:00")
    assert "no scores" in text and "failed  DataError: no snapshot" in text and "trouble no snapshot" in text
    assert ticks(path).startswith("identical: 1 tick")


@pytest.mark.parametrize("words", [("--at", "noon"), ("--at", "25:00"), ("--at", "2026-13-01"), ("--at", "1:2:3:4")])
def test_a_time_that_is_none(folder: str, words: tuple[str, ...]) -> None:
    assert "is not a time: give" in said(CliRunner().invoke(pal, ["ticks", folder, *words]), UsageError, Exit.USAGE)


def test_what_does_not_go_together(folder: str) -> None:
    for words in (("--at", "03:12", "--last", "2"), ("--at", "03:12", "--csv")):
        said(CliRunner().invoke(pal, ["ticks", folder, *words]), UsageError, Exit.USAGE)
    assert "--keep-ticks" in said(run("--withdraw", "--keep-ticks", folder), UsageError, Exit.USAGE)


def test_nothing_to_decide(site: Site, folder: str) -> None:
    assert "No such file" in refused(str(site.folder / "nowhere"))
    (site.folder / "empty").mkdir()
    assert "has no kept tick" in refused(str(site.folder / "empty"))
    assert "has no kept tick" in refused(str(site.folder / "empty"), "--at", "03:12")


def test_another_schema_and_damage_are_one_line(folder: str) -> None:
    path = Path(folder) / kept.tick_name(1)
    head, body = head_of(path)
    rewritten(path, head | {"schema": "pal.tick/2", "release": "9.9"}, body)
    assert "'pal.tick/2', newer than 'pal.tick/1' known here: use the release that wrote it, 9.9" in refused(folder)
    path.write_bytes(path.read_bytes()[:60])
    assert "is damaged" in refused(folder)
    path.chmod(0o666)
    assert "can be written by everyone" in refused(folder)


def test_the_setting_counts_for_ticks_that_act(site: Site) -> None:
    path = site.folder / "set"
    site.toml(f'keep_ticks = "{path}"\n')
    assert run().exit_code == 0 and not path.exists()
    assert run("--act").exit_code == 0
    assert kept.numbers(str(path)) == [1]


def test_a_folder_that_cannot_be_used_stops_no_tick_of_the_site(site: Site) -> None:
    (site.folder / "file").write_text("")
    site.toml(f'keep_ticks = "{site.folder}/file"\n')
    number = site.submit("--gres=gpu:1", MOVABLE)
    result = run("--act")
    assert result.exit_code == 0 and "ticks are not kept: no ticks can be kept in" in result.stderr
    assert list(site.job(number).placed) == ["n1"]
    said(run("--keep-ticks", str(site.folder / "file")), DataError, Exit.DATA)
    keeper = Keeper(str(site.folder / "busy"), 1, 0.0)
    said(run("--keep-ticks", str(site.folder / "busy")), BusyError, Exit.BUSY)
    keeper.close()
