# SPDX-License-Identifier: MIT
"""The record of a decision: kept, pruned, found again, told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_pal.base import state
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.decide.case import Decision
from slurm_pal.decide.offer import Gpu, Offer
from slurm_pal.sensitivity.cascade import Verdict
from slurm_pal.sensitivity.catalogue import APPLICATIONS, class_of
from slurm_pal.submit import decision
from slurm_pal.submit.argv import parse
from slurm_pal.submit.choice import choice, sensitivity

NOW_S = 1_700_000_000.0
OFFER = Offer((Gpu("n1", 0, 0.98, "v0", NOW_S - 7200, ()), Gpu("n2", 3, None, "?", 0.0, ("unknown",))), 1.0, 1.7)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "slurm.conf").write_text("ClusterName=Lab\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))


def made(job_id: int | None = None) -> decision.Record:
    decided = Decision(
        action="nodelist",
        reason="because",
        added=("--nodelist=n1,n2",),
        pinned=("n1", "n2"),
        chosen=OFFER,
        alternatives=(OFFER,),
        plain=OFFER,
        unknown=("x is unknown",),
        lease_s=60.0,
        lease_why="60 s",
    )
    found = decision.record(
        decided, cluster=state.cluster_key(), now_s=NOW_S, known=Verdict("A", "word", 1.0, "--pal-class"),
        policy="class-fit", argv=["sbatch"], snapshot={"path": "p", "epoch": 3, "age_s": 60}, warnings=["w"],
    )  # fmt: skip
    found["job_id"] = job_id
    return found


def test_what_is_saved_is_loaded_by_cluster_name_or_for_the_cluster_in_force() -> None:
    decision.save(made(7))
    decision.save(made(12))
    assert decision.load("Lab", 7) == made(7)
    assert decision.load("", 7) == made(7)
    assert decision.load("Lab", 8) is None and decision.load("other", 7) is None
    os.utime(Path(state.folder("decisions", state.cluster_key()), "7.json"))
    os.utime(Path(state.folder("decisions", state.cluster_key()), "12.json"), (NOW_S, NOW_S))
    assert decision.last("Lab") == made(7)
    assert decision.last("other") is None


def test_the_json_form_is_versioned_and_complete() -> None:
    table = json.loads(json.dumps(made(7)))
    assert table["schema"] == "pal.decision/1"
    assert table["lease"] == {"seconds": 60.0, "until_s": NOW_S + 60, "why": "60 s"}
    assert table["chosen"]["gpus"][0] == {
        "node": "n1", "index": 0, "slowdown": 0.98, "class": "v0", "age_s": 7200, "flags": [],
        "state": "ok",
    }  # fmt: skip
    assert table["chosen"]["gpus"][1]["slowdown"] is None and table["chosen"]["gpus"][1]["age_s"] is None
    assert table["chosen"]["product"] == 1.7


def test_the_text_form_tells_everything() -> None:
    text = "\n".join(decision.render(made(7)))
    for part in ("job 7", "decision: because", "class A (--pal-class)", "--nodelist=n1,n2", "lease: 60 s", "n1:0 n2:3",
                 "slowdown 0.980, class v0, measured 2 h before", "never measured", "next best", "plain Slurm would",
                 "unknown: x is unknown", "epoch 3", "warning: w", "locality 1.7"):  # fmt: skip
        assert part in text
    bare = decision.record(
        Decision("none", "left"), cluster="c", now_s=0.0, known=Verdict("?", "", 0.0, "x"), policy="p", argv=[],
        snapshot=None, warnings=[],
    )  # fmt: skip
    assert decision.render(bare) == ["decision: left", "sensitivity class ? (x), policy p"]


def test_why_a_choice_is_slower_is_said_once() -> None:
    slower = made(7) | {"slower_why": "nodes stay whole"}
    assert "slower than that because nodes stay whole" in decision.render(slower)
    assert not [
        line for line in decision.render(slower | {"reason": "n1: nodes stay whole"}) if "because nodes" in line
    ]
    slower.pop("slower_why")  # a record of an older release
    assert not [line for line in decision.render(slower) if "slower than" in line]


def test_only_the_newest_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "KEEP", 5)
    monkeypatch.setattr(decision, "_SLACK", 2)
    folder = Path(state.folder("decisions", state.cluster_key()))
    for number in range(1, 8):
        decision.save(made(number))
        os.utime(folder / f"{number}.json", (number, number))
    decision.save(made(8))
    assert sorted(int(p.stem) for p in folder.glob("*.json")) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "pal.decision/9"}', "\xff"])
def test_a_damaged_record_is_an_error_of_one_line(text: str) -> None:
    Path(state.folder("decisions", state.cluster_key()), "7.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"7\.json"):
        decision.load("Lab", 7)


def test_every_known_application_has_a_class() -> None:
    assert {known.sensitivity for known in APPLICATIONS.values()} == {"A", "B", "C"}
    assert class_of("ResNet50", {}) == "A"
    assert class_of("mine", {"Mine": "B"}) == "B"
    assert class_of("resnet50", {"resnet50": "C"}) == "C"
    with pytest.raises(UsageError, match=r"'what' .*resnet50.*\[apps\]"):
        class_of("what", {})


@pytest.mark.parametrize(
    ("words", "environment", "directives", "found"),
    [
        (["--pal-class=A", "--pal-app=bert"], {"SLURM_PAL_CLASS": "C"}, (("class", "B"),), ("A", "--pal-class")),
        (["--pal-app=bert"], {"SLURM_PAL_CLASS": "C"}, (("class", "A"),), ("B", "--pal-app bert")),
        ([], {"SLURM_PAL_CLASS": "C"}, (("class", "A"),), ("A", "#PAL class")),
        ([], {"SLURM_PAL_CLASS": "C"}, (("app", "bert"),), ("B", "#PAL app=bert")),
        ([], {"SLURM_PAL_CLASS": "C", "SLURM_PAL_APP": "bert"}, (), ("C", "$SLURM_PAL_CLASS")),
        ([], {"SLURM_PAL_APP": "bert"}, (), ("B", "$SLURM_PAL_APP=bert")),
        ([], {"SLURM_PAL_APP": ""}, (), ("?", "not stated, treated as A")),
        ([], {"SLURM_PAL_CLASS": "C", "SLURM_PAL_JOB_CLASS": "B"}, (), ("C", "$SLURM_PAL_CLASS")),
        ([], {"SLURM_PAL_CLASS": "C", "SLURM_PAL_JOB_CLASS": "C"}, (), ("?", "not stated, treated as A")),
        ([], {}, (("app", "bert"), ("class", "A")), ("A", "#PAL class")),
        ([], {}, (("app", "bert"),), ("B", "#PAL app=bert")),
        ([], {}, (), ("?", "not stated, treated as A")),
    ],
)
def test_where_the_class_comes_from(
    words: list[str], environment: dict[str, str], directives: tuple[tuple[str, str], ...], found: tuple[str, str]
) -> None:
    said: list[str] = []
    assert sensitivity(choice(parse(words)), environment, directives, {}, said) == found
    assert said == []


@pytest.mark.parametrize(
    ("environment", "directives", "part"),
    [
        ({"SLURM_PAL_CLASS": "Z"}, (), "$SLURM_PAL_CLASS = 'Z'"),
        ({}, (("class", "Z"),), "#PAL class = 'Z'"),
        ({}, (("app", "nix"),), "application 'nix'"),
        ({"SLURM_PAL_APP": "nix"}, (), "$SLURM_PAL_APP: application 'nix'"),
        ({}, (("klass", "A"),), "#PAL klass is unknown"),
    ],
)
def test_wrong_values_outside_the_command_line_only_warn(
    environment: dict[str, str], directives: tuple[tuple[str, str], ...], part: str
) -> None:
    said: list[str] = []
    assert sensitivity(choice(parse([])), environment, directives, {}, said)[0] == "?"
    assert len(said) == 1 and part in said[0]


@pytest.mark.parametrize("words", [["--pal-class=Z"], ["--pal-class="], ["--pal-policy=best"]])
def test_wrong_values_on_the_command_line_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="is not one of"):
        choice(parse(words))
