# SPDX-License-Identifier: MIT
"""`pal compare` and `pal evidence` as a user meets them."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.cli import pal
from slurm_pal.store.database import Database, open_database
from slurm_pal.variability.records import from_json

from ...doubles.records_factory import DAY_S, sweep, truth, uuid_of

TRUE = truth(16)
TODAY_S = time.time()  # the commands take the clock as it is
SENSORS = {"power_w": {"p50": 290.0}, "duty": {"hw_thermal": 0.02, "power_cap": 0.9}, "ecc_uncorrected": 1,
           "remap_failed": True, "xids": [79], "p2p_gb_s": {"GPU-somebody": 20.0}}  # fmt: skip


class Site:
    """A state directory with three sweeps, and the program."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("SLURM_PAL_PATHS_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.chdir(tmp_path)
        self.path = tmp_path
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def fill(self) -> None:
        slower = TRUE | {"A": [s * (1.04 if i == 5 else 1.0) for i, s in enumerate(TRUE["A"])]}
        runs = sweep(TRUE, "20270101-000000-00000", ts=TODAY_S - 15 * DAY_S, serial="0324-77", telemetry=SENSORS)
        runs += sweep(slower, "20270108-000000-00000", ts=TODAY_S - 8 * DAY_S, serial="0324-77", telemetry=SENSORS)
        runs += sweep(slower, "20270115-000000-00000", ts=TODAY_S - DAY_S, serial="0324-77", telemetry=SENSORS)
        spoiled = runs[5]
        runs.append(
            replace(spoiled, run_id="z", flags=("foreign_process",), valid=False, reason="in use by pid 9 (alice)")
        )
        failed = "tblock cannot be prepared: /home/alice/lib/libx.so: no such file"
        runs.append(replace(spoiled, run_id="y", flags=("error",), valid=False, reason=failed))
        with open_database(str(self.path / "state"), write=True) as database:
            database.insert(runs, TODAY_S)

    def run(self, *argv: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        self._monkeypatch.setattr(sys, "argv", ["pal", *argv])
        with pytest.raises(SystemExit) as ended:
            pal.main()
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, monkeypatch, capsys)


def test_compare_two_sweeps(site: Site) -> None:
    site.fill()
    code, out, err = site.run("compare", "last-2", "last-1")
    assert (code, err) == (0, "") and "gemm_bf16 changed: n0002:1 +4." in out
    lines = out.splitlines()
    assert lines[0].startswith("before 20270101-000000-00000") and lines[0].endswith("16 GPUs")
    (gemm,) = [line.split() for line in lines if line.startswith("gemm_bf16  ")]
    assert "(+1" in gemm and "-0)" in gemm
    code, out, _ = site.run("compare", "20270101-000000-00000", "last", "--json")
    table: dict[str, Any] = json.loads(out)
    assert code == 0 and table["schema"] == "pal.compare/1" and table["after"]["gpus"] == 16
    row = table["rows"][0]
    assert row["benchmark"] == "gemm_bf16" and row["n_changed"] == 1 and not row["relative"]
    assert row["gpus"][0]["uuid"] == uuid_of(5) and row["gpus"][0]["changed"]
    assert row["low"] <= row["ratio"] <= row["high"] and row["sensors"]["power_w"] == {"before": 290.0, "after": 290.0}


def test_sweeps_by_date(site: Site) -> None:
    site.fill()
    days = [time.strftime("%Y-%m-%d", time.localtime(TODAY_S - d * DAY_S)) for d in (15, 8)]
    code, out, _ = site.run("compare", *days)
    assert code == 0 and "20270101-000000-00000" in out and "20270108-000000-00000" in out


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["compare", "last", "last"], Exit.USAGE, "are the same sweep"),
        (["compare", "last-7", "last"], Exit.USAGE, "sweeps so far: 3"),
        (["compare", "nope", "last"], Exit.USAGE, "no sweep 'nope'; give an id, last"),
        (["compare", "2020-01-01", "last"], Exit.USAGE, "no sweep '2020-01-01'"),
        (["compare", "last"], Exit.USAGE, "Missing argument"),
        (["evidence", "GPU-nope"], Exit.USAGE, "no GPU 'GPU-nope': there is GPU-"),
        (["evidence", "n0001:9"], Exit.USAGE, "no GPU 'n0001:9': that node has n0001:"),
        (["evidence", uuid_of(5)[:11]], Exit.USAGE, "is too short for a GPU, 8 characters after GPU- are needed: "),
        (["evidence", ""], Exit.USAGE, "no GPU ''"),
        (["evidence", "GPU-"], Exit.USAGE, "16 GPUs begin with 'GPU-'"),
        (["evidence", uuid_of(5), "-o", "/nowhere/x.tar.gz"], Exit.USAGE, "cannot write /nowhere/x.tar.gz: no"),
        (["evidence", uuid_of(5), "--dir", "-o", "."], Exit.USAGE, "cannot write .: it exists already"),
    ],
)
def test_bad_requests_are_one_clear_line(site: Site, argv: list[str], code: Exit, text: str) -> None:
    site.fill()
    found, out, err = site.run(*argv)
    assert (found, out) == (code, "") and text in err.splitlines()[-1]
    assert [name for name in os.listdir(site.path) if "evidence" in name] == []


@pytest.mark.parametrize("argv", [["compare", "last-1", "last"], ["evidence", "GPU-1"]])
def test_before_the_first_sweep(site: Site, argv: list[str]) -> None:
    code, out, err = site.run(*argv)
    assert (code, out) == (Exit.DATA, "") and "no database" in err and err.count("\n") == 1


@pytest.mark.parametrize("named", ["", "n0002:1"])
def test_evidence_holds_all_of_one_gpu_and_names_nobody(site: Site, named: str) -> None:
    site.fill()
    uuid = uuid_of(5)
    code, out, err = site.run("evidence", named or uuid[:12])
    path = site.path / f"evidence-{uuid}.tar.gz"
    assert (code, err) == (0, "") and out.startswith(f"evidence-{uuid}.tar.gz: ")
    assert path.stat().st_mode & 0o777 == 0o644
    with tarfile.open(path) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers()}
        assert {(m.uname, m.gname, m.uid, m.mode) for m in members.values()} == {("", "", 0, 0o644)}
        files = {name: archive.extractfile(m).read().decode() for name, m in members.items()}  # type: ignore[union-attr]
    assert {"summary.txt", "runs.jsonl", "peers.csv", "telemetry.csv", "environment.json"} <= set(files)
    if importlib.util.find_spec("matplotlib"):
        drawn = files["history.svg"]  # the drawing of pal report --gpu: three panels, and the step that it tells
        assert drawn.lstrip().startswith("<?xml") and all(f"class {c}: " in drawn for c in "ABC")
        assert re.search(r"<!-- step \+(3\.9|4\.)", drawn)
    runs = [from_json(line) for line in files["runs.jsonl"].splitlines()]
    assert len(runs) == 11 and {r.gpu.uuid for r in runs} == {uuid}
    everything = "".join(files.values())
    for other in (uuid_of(i) for i in range(16) if i != 5):
        assert other not in everything
    assert "alice" not in everything and "GPU-somebody" not in everything
    text = files["summary.txt"]
    assert "serial      0324-77" in text and "n0002:1" in text and "slower than" in text
    assert re.search(r"step in gemm_bf16: \+(3\.9|4\.)", text) and "confirmed on" in text, text
    assert "tblock cannot be prepared: .../libx.so: no such file" in text
    assert "remap_failed 1" in text and "Xid 79" in text and "another process was on the GPU" in text
    peers = list(csv.DictReader(files["peers.csv"].splitlines()))
    gemm = [row for row in peers if row["benchmark"] == "gemm_bf16"]
    assert len(gemm) == 16 and [row["who"] for row in gemm][:2] == ["this GPU", "peer 1"]
    values = [float(row["value"]) for row in gemm[1:]]
    assert values == sorted(values)
    sensors = list(csv.DictReader(files["telemetry.csv"].splitlines()))
    assert (
        sensors[0]["ecc_uncorrected"] == "1" and sensors[0]["xids"] == "79" and sensors[0]["duty.hw_thermal"] == "0.02"
    )
    assert json.loads(files["environment.json"])[0]["driver"] == "550.1"


def test_evidence_as_a_directory(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fill()
    monkeypatch.setattr("slurm_pal.report.evidence.picture", lambda *_: b"")  # the drawing has its test above
    monkeypatch.setattr(Database, "records", None)  # no list is made of all records
    code, _, err = site.run("evidence", uuid_of(5), "--dir", "-o", "bundle")
    assert (code, err) == (0, "") and (site.path / "bundle" / "summary.txt").stat().st_mode & 0o777 == 0o644
    assert (site.path / "bundle").stat().st_mode & 0o777 == 0o755
    assert [name for name in os.listdir(site.path) if name.startswith(".evidence")] == []
