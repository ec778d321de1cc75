# SPDX-License-Identifier: MIT
"""Flat and shifted classes are an alarm, from the records to doctor, report and metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from slurm_pal.base.config import Config
from slurm_pal.cli.pal import pal
from slurm_pal.report import class_notices
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.publish import publish
from slurm_pal.tick.metrics import TickNumbers, text
from slurm_pal.variability import notices
from slurm_pal.variability.records import Record

from ...doubles.fake_commands import in_process
from ...doubles.records_factory import DAY_S, NOW_S, sweep, truth, uuid_of

GPUS = 32
SPREAD = truth(GPUS)["A"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A fake Slurm with eight nodes of four GPUs, and nothing measured yet."""
    commands = tmp_path / "bin"
    commands.mkdir()
    nodes = [FakeNode(f"n{i + 1:04d}", gpus=4) for i in range(GPUS // 4)]
    write_shims(str(commands), str(tmp_path / "fake.json"), nodes)
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("time.time", lambda: NOW_S)
    made = Config()
    made.set("paths", "state_dir", str(tmp_path), "test")
    return made


def measured(site: Config, *sweeps: list[Record]) -> snapshot.Snapshot:
    with open_database(site.state_dir, write=True) as database:
        database.insert([record for records in sweeps for record in records], NOW_S)
    publish(site, NOW_S)
    return snapshot.read(site.snapshot_path)


def swept(values: Sequence[float], day: float, factor: float = 1.0) -> list[Record]:
    return sweep({"A": [factor * v for v in values]}, f"s{100 - day}", ts=NOW_S - day * DAY_S)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, list(words))


def doctor() -> tuple[str | None, dict[str, list[str]]]:
    """The state of the classes, and the findings about them by level."""
    body = json.loads(invoke("doctor", "--json").stdout)
    found: dict[str, list[str]] = {}
    for finding in body["findings"]:
        if finding["topic"] == "classes":
            found.setdefault(finding["level"], []).append(finding["text"])
    assert {"schema", "ok", "placing", "placed", "findings", "classes"} == set(body)
    return body["classes"], found


def test_differing_gpus_are_well(site: Config) -> None:
    assert measured(site, swept(SPREAD, 2)).class_state == "ok"
    assert doctor() == ("ok", {"ok": ["class A has 4 variability classes"]})


def test_nothing_measured_is_no_state(site: Config) -> None:
    assert doctor() == (None, {})


def test_flat_classes_are_an_alarm(site: Config) -> None:
    alike = 1.0 + (np.array(SPREAD) - 1.0) / 40.0
    published = measured(site, swept(alike.tolist(), 2))
    assert published.class_state == "flat"
    assert published.centroids["A"] == [1.0]
    state, found = doctor()
    assert state == "flat" and list(found) == ["warn"]
    assert "is flat: all 32 GPUs are in one class" in found["warn"][0]
    shown = " ".join(invoke("report").stdout.split())
    assert "Class A of model Emu V100 is flat" in shown
    assert any("is flat" in line for line in json.loads(invoke("report", "--json").stdout)["advice"])
    assert "is flat" not in invoke("report", "--nodelist", "n0001").stdout, "of a few nodes it says nothing"


def test_a_shift_of_all_is_an_alarm_for_a_month(site: Config) -> None:
    made = [swept(SPREAD, 30), swept(SPREAD, 20), swept(SPREAD, 5, 1.02)]
    assert measured(site, *made).class_state == "shifted"
    state, found = doctor()
    assert state == "shifted" and len(found["warn"]) == 1
    assert "32 GPUs of 8 nodes became 2 % slower together (gemm_bf16, sweep of " in found["warn"][0]


def test_a_shift_that_one_rack_shows_says_what_decides(site: Config) -> None:
    """Three of eight nodes: until others are measured nobody knows whether it is a matter of all."""
    part = sweep({"A": [1.03 * v for v in SPREAD]}, "rack", ts=NOW_S - 2 * DAY_S, only=range(12))
    published = measured(site, swept(SPREAD, 30), swept(SPREAD, 20), part)
    assert published.class_state == "shifted"
    (told,) = class_notices.lines(published.notices)
    assert "12 GPUs of 3 nodes became 3.1 % slower together" in told.text
    assert told.mend == (
        "measure some of the 20 GPUs not measured since (pal-profile run): if they have not changed, it is a matter of "
        "those 3 nodes"
    )
    rest = sweep({"A": SPREAD}, "rest", ts=NOW_S - DAY_S, only=range(12, 32))
    found = measured(site, rest)
    before, after = (
        {score.uuid: score.slowdown["A"] for score in map(one.gpu, range(len(one)))} for one in (published, found)
    )
    apart = [np.mean([seen[uuid_of(i)] for i in range(12)]) / np.mean([seen[uuid_of(i)] for i in range(12, 32)])
             for seen in (before, after)]  # fmt: skip
    assert found.class_state == "ok" and apart[1] > apart[0] * 1.025, "it was theirs, and their scores say so now"


def test_few_gpus_and_two_kinds_are_no_alarm(site: Config) -> None:
    values = truth(80, sd=0.01)["A"]
    values[:24] = [v + 0.06 for v in values[:24]]
    few = sweep({"A": truth(8, seed=3)["A"]}, "few", ts=NOW_S - 2 * DAY_S, model="Emu T4")
    few = [
        replace(r, run_id=f"t{r.run_id}", node_name=f"t{r.node_name}", gpu=replace(r.gpu, uuid=f"t{r.gpu.uuid}"))
        for r in few
    ]
    assert measured(site, swept(values, 2), few).class_state == "ok"
    state, found = doctor()
    assert state == "ok" and len(found["note"]) == 2 and "warn" not in found
    assert "24 of 80 are 6" in found["note"][0] and "two kinds" in found["note"][0]
    assert "Emu T4 has only 8 GPUs: its classes are uncertain (2 in class A)" in found["note"][1]
    assert "perhaps of two board makers" in " ".join(invoke("report").stdout.split())


def test_metrics_count_models_with_flat_and_shifted_classes() -> None:
    told = [{"state": "flat", "model": model} for model in ("V100", "A100", "A100")]  # by two methods
    told += [{"state": "few", "model": "T4"}]
    seen = snapshot.Snapshot({"notices": told}, *snapshot._columns([]))
    body = text(TickNumbers(NOW_S, 0.1, 1, 0.1, seen, {}, [], 1.0, False)).decode()
    found = {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if sample.name == "pal_classes"
    }
    assert found == {"flat": 2, "shifted": 0}


def test_states_have_one_order() -> None:
    assert snapshot.CLASS_ALARMS == (notices.FLAT, notices.SHIFTED)
    made = [notices.Notice(state, "m", "b", 4, 0.01, 2.0, NOW_S)._asdict() for state in ("few", "shifted", "flat")]
    found = class_notices.lines([*made, {"state": "of a newer release"}, {"state": "flat", "size": "x"}, {}])
    assert [line.alarm for line in found] == [True, True, False]
    assert "flat" in found[0].text and "together" in found[1].text


@pytest.mark.parametrize("damage", [{"size": float("nan")}, {"gpus": None}, {"since_s": 1e400}, {"state": 7}])
def test_a_damaged_notice_is_left_out(damage: dict[str, object]) -> None:
    assert class_notices.lines([notices.Notice("flat", "m", "b", 4, 0.01, 2.0, 0.0)._asdict() | damage]) == []


def test_the_number_of_classes_is_a_setting(site: Config) -> None:
    for k in (3, 7):
        site.set("classes", "k", k, "test")
        assert len(measured(site, swept(SPREAD, 2)).centroids["A"]) == k
