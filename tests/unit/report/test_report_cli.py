# SPDX-License-Identifier: MIT
"""pal heatmap and pal report on the command line: output, files, exit codes, and what is missing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, PalError, SlurmError, UsageError
from slurm_pal.cli.pal import pal
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store.database import Database, open_database
from slurm_pal.store.publish import publish
from slurm_pal.variability.records import Record

from ...doubles.fake_commands import in_process
from ...doubles.gpus_site import by_time, records, steps_of
from ...doubles.records_factory import NOW_S, uuid_of


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm with nodes n0001 to n0003 of four GPUs, and nothing measured."""
    commands = tmp_path / "bin"
    commands.mkdir()
    nodes = [FakeNode(f"n000{i}", gpus=4) for i in (1, 2, 3)]
    write_shims(str(commands), str(tmp_path / "fake.json"), nodes)
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("time.time", lambda: NOW_S)
    return tmp_path


@pytest.fixture
def measured(site: Path) -> Path:
    store(site, records(gpus=12))
    return site


def store(site: Path, found: list[Record]) -> None:
    with open_database(str(site), write=True) as database:
        database.insert(found, NOW_S)
        publish(settings.load(), NOW_S, database)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, list(words))


def test_heatmap_shows_the_site(measured: Path) -> None:
    found = invoke("heatmap")
    assert found.exit_code == 0, found.output
    assert "12 GPUs of 3 nodes" in found.stdout and "\x1b" not in found.stdout
    last = next(line for line in found.stdout.splitlines() if line.startswith("n0001"))
    assert "9!" in last  # n0003 stands on the same line


def test_heatmap_of_one_node_and_class(measured: Path) -> None:
    found = invoke("heatmap", "-w", "n0002", "--class", "C")
    assert found.stdout.splitlines()[1].split() == ["n0002", "4", "4", "4", "4"]


def test_heatmap_in_colour(measured: Path) -> None:
    assert "\x1b[" in invoke("heatmap", "--color", "always").stdout


@pytest.mark.parametrize(("name", "magic"), [("map.svg", b"<?xml"), ("map.PNG", b"\x89PNG")])
def test_heatmap_as_a_picture(measured: Path, name: str, magic: bytes) -> None:
    path = measured / name
    found = invoke("heatmap", "-o", str(path))
    assert found.exit_code == 0 and found.stdout == ""
    assert path.read_bytes().startswith(magic)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_picture_of_another_kind_is_refused(measured: Path) -> None:
    found = invoke("heatmap", "-o", "map.pdf")
    assert isinstance(found.exception, UsageError) and ".svg or .png" in str(found.exception)


def test_a_place_that_cannot_be_written_is_told(measured: Path) -> None:
    os.mkfifo(measured / "pipe.svg")
    for words, why in (
        (("heatmap", "-o", "/none/map.svg"), "no directory /none"),
        (("report", "--html", "/none/page.html"), "no directory /none"),
        (("report", "--html", str(measured)), "it is a directory"),
        (("heatmap", "-o", str(measured / "pipe.svg")), "not a regular file"),
    ):
        found = invoke(*words)
        assert isinstance(found.exception, UsageError) and "cannot write /" in str(found.exception)
        assert why in str(found.exception)


def test_report_as_text(measured: Path) -> None:
    found = invoke("report")
    assert found.exit_code == 0, found.output
    for said in (
        "lab: 12 GPUs of 3 nodes",
        "Scores: 12 of 12 GPUs",
        "SLOWEST GPUS",
        "SINCE THE PREVIOUS SWEEP",
        "CAVEATS",
    ):
        assert said in found.stdout
    assert found.stderr == ""


def test_report_as_a_page(measured: Path) -> None:
    path = measured / "page.html"
    path.write_text("old")
    path.chmod(0o600)
    found = invoke("report", "--html", str(path))
    assert found.exit_code == 0, found.output
    assert "lab: 12 GPUs of 3 nodes" in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in measured.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize("published", [True, False])
def test_the_report_goes_through_the_records_once_and_says_what_they_say(
    site: Path, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """Ten sweeps, the newest eight of which it tells of; nothing is written, and no list is made of all records."""
    made = by_time(records(gpus=12, sweeps=10))
    with open_database(str(site), write=True) as database:
        database.insert(made, NOW_S)
        publish(settings.load(), NOW_S, database)
        if not published:
            database.keep_only(())
    before = (site / "pal.db").read_bytes()
    monkeypatch.setattr(Database, "records", None)
    body = json.loads(invoke("report", "--json").stdout)
    steps = steps_of(made)[2:]
    assert [s["sweep"] for s in body["sweeps"]] == [f"s{i}" for i in range(2, 10)]
    assert [s["changed"] for s in body["sweeps"]] == [step.changed for step in steps]
    assert [g["runs_per_gpu"] for g in body["groups"]] == [10, 10, 10] and body["methods"][0]["runs"] == 120
    assert "Sweep s9 of" in invoke("report").stdout
    assert (site / "pal.db").read_bytes() == before


def test_report_of_some_nodes(measured: Path) -> None:
    body = json.loads(invoke("report", "-w", "n000[1-2]", "--json").stdout)
    assert body["schema"] == "pal.report/1"
    assert body["coverage"]["gpus"] == 8 and body["nodes"] == "n[0001-0002]"
    assert {g["gpus"] for g in body["groups"]} == {8}
    assert isinstance(invoke("report", "-w", "n9").exception, UsageError)


def test_report_of_one_gpu(measured: Path) -> None:
    uuid = uuid_of(11)
    assert uuid in invoke("report", "--gpu", uuid).stdout
    assert json.loads(invoke("report", "--gpu", uuid, "--json").stdout)["gpu"]["uuid"] == uuid
    path = measured / "gpu.html"
    assert invoke("report", "--gpu", uuid, "--html", str(path)).exit_code == 0
    assert f"History of n0003:3 ({uuid})" in path.read_text()
    for words in ((), ("--json",), ("--html", str(path))):
        found = invoke("report", "--gpu", "GPU-none", *words)
        assert isinstance(found.exception, UsageError) and "GPU-none" in str(found.exception)
    for named in ("n0003:3", uuid[:12]):
        assert json.loads(invoke("report", "--gpu", named, "--json").stdout)["gpu"]["uuid"] == uuid


def test_gpus_of_some_gpus(measured: Path) -> None:
    shown = json.loads(invoke("gpus", "n0003:3", uuid_of(0), uuid_of(0)[:12], "--json").stdout)["gpus"]
    assert [(row["node"], row["index"], row["uuid"]) for row in shown] == [
        ("n0001", 0, uuid_of(0)), ("n0003", 3, uuid_of(11)),
    ]  # fmt: skip
    assert len(json.loads(invoke("gpus", "--json").stdout)["gpus"]) == 12
    found = invoke("gpus", "-w", "n0002", "n0003:3")
    assert isinstance(found.exception, UsageError) and "the nodes are n0002" in str(found.exception)


def test_report_shows_money_where_the_whole_site_is_asked_for(measured: Path) -> None:
    sacct = measured / "bin" / "sacct"
    sacct.write_text("#!/bin/sh\necho 'phys|gpu|3600|gres/gpu=4'\n")
    sacct.chmod(0o755)
    with open(measured / "pal.toml", "a", encoding="utf-8") as file:
        file.write("[prices]\ngpu = 2.5\n")
    (one,) = json.loads(invoke("report", "--json").stdout)["money"]["accounts"]
    assert (one["account"], one["jobs"], one["cost"]) == ("phys", 1, 10.0)
    assert "MONEY BY ACCOUNT" in invoke("report").stdout
    for words in (("-w", "n0001"), ("--gpu", "n0003:3")):
        assert json.loads(invoke("report", *words, "--json").stdout)["money"] is None
    sacct.write_text("#!/bin/sh\nexit 1\n")
    found = invoke("report")
    assert found.exit_code == 0 and "Money by account is missing: sacct failed: exit code 1." in found.stdout


def test_html_and_json_exclude_each_other(measured: Path) -> None:
    assert isinstance(invoke("report", "--html", "x", "--json").exception, UsageError)


def test_a_gpu_that_was_never_measured(site: Path) -> None:
    found = invoke("report", "--gpu", "n0001:0")
    assert isinstance(found.exception, UsageError)
    assert str(found.exception) == "n0001:0 was never measured: pal-profile run --nodelist n0001"


def test_before_the_first_sweep_the_report_says_what_to_do(site: Path) -> None:
    for words in (("report",), ("report", "--html", str(site / "page.html"))):
        found = invoke(*words)
        assert found.exit_code == invoke("gpus").exit_code == 0
        assert "run pal-profile run" in found.stderr
    assert "Nothing usable has been measured yet" in invoke("report").stdout
    assert "Nothing usable has been measured yet" in (site / "page.html").read_text()
    assert "? ? ? ?" in invoke("heatmap").stdout
    found = invoke("heatmap", "-o", str(site / "map.svg"))
    assert isinstance(found.exception, DataError) and "pal-profile run" in str(found.exception)


def test_with_nothing_at_all_it_ends_as_pal_gpus_does(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    for command in ("gpus", "report", "heatmap"):
        found = invoke(command)
        assert isinstance(found.exception, SlurmError)
        assert isinstance(found.exception, PalError) and found.exception.exit_code == 6


def test_without_the_records_the_snapshot_is_reported(measured: Path) -> None:
    (measured / "pal.db").unlink()
    found = invoke("report")
    assert found.exit_code == 0
    assert "without records" in found.stderr and "Only the published snapshot" in found.stdout
    assert "slowest of 12 GPUs takes" in found.stdout


def test_the_commands_cost_pal_gpus_no_import() -> None:
    code = (
        "import sys, slurm_pal.cli.report\n"
        "sys.exit(', '.join({'matplotlib', 'jinja2', 'scipy', 'numpy', 'rich', 'sqlite3'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
