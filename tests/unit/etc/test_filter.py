# SPDX-License-Identifier: MIT
"""The submit filter in Lua: what it reads of a job, what it writes, and that it never does harm."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.filter.terms import REASONS
from slurm_pal.sensitivity.cascade import HISTORY, WORD, Evidence, decide
from slurm_pal.sensitivity.keys import name_key, script_digest, script_key
from slurm_pal.store.lua_table import Header, encode

from ...doubles.lua_filter import NO_VAL, NOW_S, PARTITIONS, Seen, install, job, parts, run
from ...doubles.trials import trials

SETTINGS = "pass_s=3 lease_max_s=600 run_share=0.5 run_s=3600 barred=1.05 wait_share=0.5 locality=1.7"
WHOLE_NODE = "cpus=16 mem=64000 gpus=4 free=4 allcpus=16 allmem=64000"


def records() -> dict[str, str]:
    """Two good nodes of four GPUs (n1 the better), and n3, where all are slow for class A."""
    return {
        "settings": SETTINGS,
        "default": "gpu",
        "app.resnet50": "A",
        "app.stream": "C",
        "prefer.A": "pal_A_v0|pal_A_v1",
        "pool.gpu.-": "1",
        "pool.gpu.v100": "1",
        "node.1": f"n0 {WHOLE_NODE} feat=ib,old A=1.001,1.002,0.98,1 B=1,1,1,1 C=1,1,1,1",
        "node.2": f"n1 {WHOLE_NODE} feat=ib A=0.95,0.96,0.98,1 B=1,1,1,1 C=1,1,1,1",
        "node.3": f"n3 {WHOLE_NODE} feat= A=1.2,1.2,1.2,1.2 B=1,1,1,1 C=1.3,1,1,1",
        "list.1.A.1.1": "131 67 130 66 129 65 128 64",
        "list.1.A.2.1": "131 67 130 66 129 65 128 64 192",
        "list.1.A.1.2": "130 66 129 65 128 64",
        "list.1.A.2.2": "130 66 129 65 128 64 194 193 192",
        "list.1.A.1.3": "129 65 128 64",
        "list.1.A.2.4": "192",
        "list.1.A.1.x": "128 64",
        "list.1.C.1.1": "192 128 64",
        "plain.1.A.2": "1.012:n0:1.2",
        "slow.1.A.4": "n3",
        "most.1": "allcpus=16 allmem=64000 cpusgpu=4 memgpu=16000",
        "size.0": "allcpus=16 allmem=64000 gpus=4 feat=ib,old",
        "spare.1.A": "0:n0=4 0:n1=3",
        "ends.1.A": "40",
    }  # fmt: skip


def write_table(
    path: Path, table: dict[str, str] | None = None, *, written_s: int = NOW_S, epoch: int = 17, clears: str = "daemon"
) -> bytes:
    text = encode(Header(epoch, written_s, 30.0, clears), records() if table is None else table)
    path.write_bytes(text)
    return text


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the filters and a table."""
    write_table(tmp_path / "pal_table.lua")
    return install(tmp_path)


def placed(site: Path, **fields: object) -> tuple[str, str]:
    """(node list, why) of one job."""
    _, seen = run(site, [job(**fields)])
    assert seen.values["verdict"] == "0"
    assert not [line for line in seen.logs if line.startswith("error")]
    return seen.values.get("set_req_nodes", ""), seen.mark.get("why", "")


def test_a_job_is_sent_to_the_best_gpus_and_marked(site: Path) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", time_limit=120, admin_comment="site:x")])
    assert seen.values["set_req_nodes"] == "n1"
    # (1.012 - 0.96) x half of two hours
    assert seen.values["set_admin_comment"] == (
        "site:x pal:lease=187;req=;exc=;class=?;from=default;act=nodelist;set=n1;why=best;slow=0.960;alone=1.012;"
        "epoch=17"
    )


def test_what_was_given_away_is_remembered_until_a_table_knows_of_it(site: Path) -> None:
    path = str(site / "pal_table.lua")
    same_second = write_table(site / "pal_table.lua", epoch=18, written_s=NOW_S)
    newer = write_table(site / "pal_table.lua", epoch=19, written_s=NOW_S + 1)
    write_table(site / "pal_table.lua")
    two = {"tres_per_node": "gres:gpu:2"}
    seen = run(
        site,
        [
            job(**two), job(**two), job(**two), job(**two), job(**two),
            {"now": NOW_S + 1, "write": [path, same_second]}, job(NOW_S + 1, **two),
            {"now": NOW_S + 2, "write": [path, newer]}, job(NOW_S + 2, **two),
        ],
    )  # fmt: skip
    # The second takes what the first left of n1, then n0 is filled, and n3 is all slow.
    assert [s.values.get("set_req_nodes") for s in seen[1:3]] == ["n1", "n1"]
    assert [s.mark["why"] for s in seen[3:6]] == ["best", "best", "slow-all"]
    assert [s.values.get("set_req_nodes") for s in seen[3:5]] == ["n0", "n0"]
    assert seen[7].mark["why"] == "slow-all"
    assert seen[9].values["set_req_nodes"] == "n1"


@pytest.mark.parametrize(("written_s", "clears"), [(NOW_S, "daemon"), (NOW_S - 100, "daemon"), (NOW_S, "")])
def test_gpus_of_several_models_are_left_to_slurm(site: Path, written_s: int, clears: str) -> None:
    """Neither hard nor softly: class features are relative to a model, too."""
    table = records() | {"pool.gpu.-": "0"}
    write_table(site / "pal_table.lua", table, written_s=written_s, clears=clears)
    one, typed = (job(tres_per_node=f"gres:gpu:{kind}2") for kind in ("", "v100:"))
    _, seen, other = run(site, [one, typed])
    assert (seen.mark["act"], seen.mark["why"]) == ("none", "models")
    assert not {"set_req_nodes", "set_exc_nodes", "set_prefer"} & seen.values.keys()
    assert other.mark["act"] == ("nodelist" if (written_s, clears) == (NOW_S, "daemon") else "prefer")


def test_outliers_are_excluded_while_waiting_can_pay(site: Path) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:4", time_limit=60, exc_nodes="n[7-8]")])
    assert seen.values["set_exc_nodes"] == "n[7-8],n3"
    assert "set_req_nodes" not in seen.values
    # half of (1.2 - 1.0) x half an hour
    assert seen.mark["lease"] == "180"
    assert seen.mark["exc"] == "n[7-8]"


@pytest.mark.parametrize(
    ("ends_per_h", "why"), [("10.1", "slow"), ("9.9", "slow-rare"), ("0", "slow-rare"), (None, "slow-rare")]
)
def test_outliers_are_taken_where_others_become_free_too_rarely(site: Path, ends_per_h: str | None, why: str) -> None:
    """Waiting can pay for 360 s, a tenth of an hour."""
    table = {key: text for key, text in (records() | {"ends.1.A": ends_per_h}).items() if text is not None}
    write_table(site / "pal_table.lua", table)
    _, seen = run(site, [job(tres_per_node="gres:gpu:4", time_limit=60)])
    assert seen.mark["why"] == why and ("set_exc_nodes" in seen.values) == (why == "slow")


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"tres_per_node": "gres/gpu:2"}, "n1"),
        ({"tres_per_node": "gres:gpu"}, "n1"),
        ({"tres_per_node": "gres:gpu:v100:2"}, "n1"),
        ({"tres_per_job": "gres:gpu:1"}, "n1"),
        ({"tres_per_job": "gres:gpu:3"}, ""),  # on how many nodes is open
        ({"tres_per_job": "gres:gpu:3", "min_nodes": 1, "max_nodes": 1}, "n1"),
        ({"tres_per_job": "gres:gpu:2", "num_tasks": 2, "min_nodes": 1, "max_nodes": 1}, "n1"),
        ({"tres_per_task": "gres:gpu:1", "num_tasks": 3, "min_nodes": 1, "max_nodes": 1}, "n1"),
        (
            {"tres_per_task": "gres/gpu:1", "num_tasks": 4, "ntasks_per_node": 2, "min_nodes": 2, "max_nodes": 2},
            "n1,n0",
        ),
        ({"tres_per_node": "gres:gpu:1", "tres_per_job": "gres:gpu:2"}, "n1,n0"),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": 2, "max_nodes": 2}, "n1,n0"),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": 1, "max_nodes": 2}, ""),  # some limit may allow one only
        ({"tres_per_node": "gres:gpu:2", "shared": 0, "min_mem_per_node": 0}, "n1"),
        ({"tres_per_node": "gres:gpu:2", "exc_nodes": "n[1-2]"}, "n0"),
        ({"tres_per_node": "gres:gpu:2", "features": "ib"}, "n1"),
        ({"tres_per_node": "gres:gpu:2", "features": "old&ib"}, ""),  # only n0, so it is Slurm's choice too
        ({"tres_per_node": "gres:gpu:2", "features": "ib&new"}, ""),
        ({"tres_per_node": "gres:gpu:2", "features": "old|ib"}, "n1"),
        ({"tres_per_node": "gres:gpu:2", "cpus_per_task": 17}, ""),
        ({"tres_per_node": "gres:gpu:2", "cpus_per_tres": "gres:gpu:9"}, ""),
        ({"tres_per_node": "gres:gpu:2", "cpus_per_tres": "gres:gpu:8"}, "n1"),
        ({"tres_per_node": "gres:gpu:2", "min_mem_per_node": 64001}, ""),
        ({"tres_per_node": "gres:gpu:2", "mem_per_tres": "gres:gpu:32001"}, ""),
        ({"tres_per_node": "gres:gpu:2", "partition": "other"}, ""),
    ],
)
def test_what_a_job_asks_for(site: Path, fields: dict[str, object], nodes: str) -> None:
    assert placed(site, **fields)[0] == nodes


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"comment": "pal:lease=60;req=;exc="}, "palsub"),
        ({"het_job_offset": 0}, "het"),
        ({"begin_time": NOW_S + 60}, "later"),
        ({"dependency": "afterok:1"}, "later"),
        ({"priority": 0}, "later"),
        ({"reservation": "maint"}, "reservation"),
        ({"req_nodes": "n2"}, "own"),
        ({"prefer": "fast"}, "prefer"),
        ({"immediate": 1}, "immediate"),
        ({"req_switch": 1}, "network"),
        ({"contiguous": 1}, "network"),
        ({"partition": "gpu,cpu"}, "partition"),
        ({"clusters": "a,b"}, "partition"),
        ({"tres_per_socket": "gres:gpu:1"}, "shape"),
        ({"tres_per_node": "gres:gpu:1,gres:gpu:2"}, "shape"),
        ({"tres_per_node": "gres:fpga:1"}, "shape"),
        ({"tres_per_job": "gres:gpu:8", "tres_per_node": None, "min_nodes": 2, "max_nodes": 2}, "shape"),
        ({"shared": 2}, "shape"),
        ({"num_tasks": 16, "ntasks_per_node": 2, "min_nodes": 1, "max_nodes": 1}, "shape"),
        ({"features": "[a|b]"}, "constraint"),
        ({"features": "a*2"}, "constraint"),
        ({"exc_nodes": "n[0-"}, "own"),
    ],
)
def test_what_is_left_to_slurm(site: Path, fields: dict[str, object], why: str) -> None:
    asked = {"tres_per_node": "gres:gpu:2"} | fields
    assert placed(site, **{key: value for key, value in asked.items() if value is not None}) == ("", why)


def test_jobs_without_gpus_are_not_touched(site: Path) -> None:
    _, seen = run(site, [job()])
    assert set(seen.values) == {"verdict", "accesses"}


@pytest.mark.parametrize(
    ("fields", "sensitivity", "origin"),
    [
        ({"spank_job_env": ["_SLURM_SPANK_OPTION_pal_pal_class=B"]}, "B", "--pal"),
        ({"spank_job_env": ["OTHER=1", "_SLURM_SPANK_OPTION_pal_pal_app=ResNet50"]}, "A", "--pal:ResNet50"),
        ({"environment": {"SLURM_PAL_CLASS": "C"}}, "C", "SLURM_PAL_CLASS"),
        ({"spank_job_env": ["SLURM_PAL_CLASS=C"]}, "C", "SLURM_PAL_CLASS"),
        ({"spank_job_env": ["SLURM_PAL_APP=stream"]}, "C", "SLURM_PAL_APP:stream"),
        ({"environment": {"SLURM_PAL_APP": "stream"}}, "C", "SLURM_PAL_APP:stream"),
        ({"environment": {"SLURM_PAL_CLASS": "C"}, "script": "#PAL class=A\n"}, "A", "#PAL"),
        ({"spank_job_env": ["SLURM_PAL_CLASS=C"], "script": "#PAL app=resnet50\n"}, "A", "#PAL:resnet50"),
        ({"script": "#!/bin/sh\n\n#PAL class=C\ntrue\n"}, "C", "#PAL"),
        ({"script": "#!/bin/sh\n#PAL app=stream\n"}, "C", "#PAL:stream"),
        ({"script": "#!/bin/sh\ntrue\n#PAL class=C\n"}, "?", "default"),
        ({"spank_job_env": ["_SLURM_SPANK_OPTION_pal_pal_class=B"], "script": "#PAL class=C\n"}, "B", "--pal"),
        ({"script": "", "environment": {}}, "?", "default"),
    ],
)
def test_the_class_and_where_it_comes_from(
    site: Path, fields: dict[str, object], sensitivity: str, origin: str
) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:1", **fields)])
    assert (seen.mark["class"], seen.mark["from"]) == (sensitivity, origin)
    # The plug-in on the node learns from the job's environment what the options do not say.
    told = origin not in ("--pal", "SLURM_PAL_CLASS", "default")
    theirs = fields.get("environment", {}).get("SLURM_PAL_CLASS", "")  # type: ignore[attr-defined]
    assert seen.values.get("env_class", "") == (sensitivity if told else theirs)
    assert seen.values.get("env_mark", "") == (sensitivity if told else "")


@pytest.mark.parametrize(
    ("own", "script", "sensitivity", "env_class"),
    [
        ({}, "#!/bin/sh\n#PAL class=A\n", "A", "A"),
        ({}, "#!/bin/sh\n", "?", ""),
        ({"SLURM_PAL_CLASS": "B"}, "#!/bin/sh\n", "B", "B"),  # set on purpose, inside the job
        ({"SLURM_PAL_JOB_CLASS": ""}, "#!/bin/sh\n", "C", "C"),  # the user's own, in the job and outside
    ],
)
def test_the_class_of_a_job_is_no_word_of_those_that_it_submits(
    site: Path, own: dict[str, str], script: str, sensitivity: str, env_class: str
) -> None:
    """A job of class C exports it, with a mark; what it submits inherits both."""
    outer = {"SLURM_PAL_CLASS": "C", "SLURM_PAL_JOB_CLASS": "C", "SLURM_PAL_OFF": "1", "SLURM_PAL_JOB_OFF": "1"}
    _, seen = run(site, [job(tres_per_node="gres:gpu:1", script=script, environment=outer | own)])
    assert seen.mark["class"] == sensitivity and seen.mark.get("why") != "off"
    assert seen.values.get("env_class", "") == env_class
    assert seen.values.get("env_mark", "") == (sensitivity if sensitivity == "A" else "")


def history(**entries: str) -> dict[str, str]:
    """A table with labels: key of a user -> text."""
    return records() | {f"label.{uid.removeprefix('u')}": text for uid, text in entries.items()}


NAMES = (
    "train",
    "a",
    "ab",
    "abc",
    "abcd",
    "abcde",
    "x" * 64,
    "x" * 1001,
    "na\u00efve \u5b57",
    'it\'s "q" %d\\',
    "a\tb\nc",
    "%s",
)
BODIES = (
    "#!/bin/sh\npython3 train.py\n", "#!/bin/sh\necho \u00e9\n", "#!/bin/sh\n" + "srun ./step 1\n" * 1000,
    "#!/bin/bash -l\n#SBATCH -N1\n\n  srun ./a.out  \t# one\n\r\n# two\n\x0b x \x0c\ny",
    "#!/bin/sh\n" + " " * 9000 + "x" + " " * 6000 + "\n",
)  # fmt: skip


def test_the_filter_makes_the_keys_of_the_labels(site: Path) -> None:
    """Of names and scripts alike; what is too long, or of another user, is not found."""
    keys = [name_key(name) for name in NAMES] + [script_key(script_digest(body.encode())) for body in BODIES]
    assert "" not in keys and len(set(keys)) == len(keys)
    write_table(site / "pal_table.lua", history(u1000=" ".join(f"{key}=C:0.900" for key in keys)))
    asked = [{"name": name} for name in NAMES] + [{"name": "other", "script": body} for body in BODIES]
    one = {"tres_per_node": "gres:gpu:1", "user_id": 1000}
    seen = run(site, [job(**one, **fields) for fields in asked])[1:]
    assert [(step.mark["class"], step.mark["from"]) for step in seen] == [("C", "history")] * len(asked)
    others = [
        {"user_id": 1001},
        {"user_id": "x"},
        {"name": "Train"},
        {"name": ""},
        {"script": BODIES[0] + "true " * 4000, "name": "z"},
    ]
    missed = run(site, [job(**one | {"name": "train"} | fields) for fields in others])[1:]
    assert [step.mark["from"] for step in missed] == ["default"] * len(others)


def test_of_script_and_name_the_surer_label_counts(site: Path) -> None:
    keys = name_key("train"), script_key(script_digest(BODIES[0].encode()))
    asked = job(tres_per_node="gres:gpu:1", user_id=7, name="train", script=BODIES[0])
    for by_name, by_script, expected in (("0.900", "0.850", "B"), ("0.900", "0.900", "C"), ("0.850", "1.000", "C")):
        write_table(site / "pal_table.lua", history(u7=f"{keys[0]}=B:{by_name} {keys[1]}=C:{by_script}"))
        assert run(site, [asked])[1].mark["class"] == expected


@pytest.mark.parametrize(
    ("trust", "said", "past", "found"),
    [
        ("user", "A", "C", "A"), ("user", "", "C", "C"), ("measured", "A", "C", "C"), ("measured", "C", "A", "A"),
        ("more-sensitive", "B", "C", "B"), ("more-sensitive", "B", "A", "A"), ("more-sensitive", "", "C", "C"),
        ("measured", "B", "B", "B"), ("measured", "B", "", "B"),
    ],
)  # fmt: skip
def test_the_users_word_counts_as_far_as_the_site_says(
    site: Path, trust: str, said: str, past: str, found: str
) -> None:
    """As palsub decides it. The job gets the class with the mark that its own submissions do not state it."""
    known = history(u7=f"{name_key('train')}={past}:0.900") if past else records()
    write_table(site / "pal_table.lua", known | ({} if trust == "user" else {"trust": trust}))
    script = f"#!/bin/sh\n#PAL class={said}\ntrue\n" if said else "#!/bin/sh\ntrue\n"
    seen = run(site, [job(tres_per_node="gres:gpu:1", user_id=7, name="train", script=script)])[1]
    by_user = said == found
    assert (seen.mark["class"], seen.mark["from"]) == (found, "#PAL" if by_user else "history")
    assert seen.values["env_class"] == seen.values["env_mark"] == found
    word = Evidence(WORD, said, 1.0, "#PAL") if said else None
    measured = Evidence(HISTORY, past, 0.9, "") if past else None
    assert decide(word, lambda: measured, [], {HISTORY: 0.8}, trust).sensitivity == found


@pytest.mark.parametrize(
    ("said", "past", "origin", "measured"),
    [("C", "C", "#PAL", "1"), ("C", "", "#PAL", None), ("C", "A", "#PAL", None), ("", "C", "history", None)],
)
def test_whether_the_class_was_measured_stands_in_the_mark(
    site: Path, said: str, past: str, origin: str, measured: str | None
) -> None:
    """Of a class that comes from the history that is plain."""
    write_table(site / "pal_table.lua", history(u7=f"{name_key('train')}={past}:0.900") if past else records())
    script = f"#!/bin/sh\n#PAL class={said}\ntrue\n" if said else "#!/bin/sh\ntrue\n"
    seen = run(site, [job(tres_per_node="gres:gpu:1", user_id=7, name="train", script=script)])[1]
    assert (seen.mark["class"], seen.mark["from"], seen.mark.get("mea")) == ("C", origin, measured)


def test_what_palsub_has_found_is_believed(site: Path) -> None:
    asked = {"tres_per_node": "gres:gpu:1", "name": "train", "user_id": 7}
    write_table(site / "pal_table.lua", history(u7=f"{name_key('train')}=B:0.900"))
    words = ["pal:job=C;from=script", "my own pal:job=C;from=script", "xpal:job=C;from=x", "pal:job=?;from=default"]
    seen = run(site, [job(**asked, comment=word) for word in words])[1:]
    assert [step.mark["class"] for step in seen] == ["C", "C", "B", "B"]
    assert [step.mark["why"] for step in seen] == ["palsub", "palsub", "busy", "palsub"]
    users_own = run(site, [job(**asked, comment="pal:job=A;mov=1")])[1]
    assert (users_own.mark["class"], users_own.mark["act"]) == ("A", "nodelist")


@trials(30)
@given(st.binary(max_size=300), st.binary(max_size=40))
def test_any_script_and_name_have_the_same_keys_here_and_there(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, name: bytes
) -> None:
    site = install(tmp_path_factory.mktemp("site"))
    body, name = (b"#!/bin/sh\n" + body).replace(b"\0", b""), name.replace(b"\0", b"")
    keys = script_key(script_digest(body)), name_key(os.fsdecode(name))
    assert os.fsencode(os.fsdecode(name)) == name
    write_table(site / "pal_table.lua", history(u7=" ".join(f"{key}=C:1.000" for key in keys if key)))
    for fields, key in (({"script": body}, keys[0]), ({"name": name}, keys[1])):
        seen = run(site, [job(tres_per_node="gres:gpu:1", user_id=7, **fields)])[1]
        assert seen.mark["class"] == ("C" if key else "?")


@pytest.mark.parametrize(
    ("fields", "marked"),
    [
        ({"script": "#!/bin/sh\n#PAL movable\n"}, ("1", None)),
        ({"script": "#!/bin/sh\n#PAL movable=600 class=B\n"}, ("1", "600")),
        ({"script": "#!/bin/sh\n#PAL class=B movable # for now\n"}, ("1", None)),
        ({"script": "#!/bin/sh\n#PAL movable checkpoint=x class=C %s movable=9 lost=5\n"}, ("1", None)),
        ({"script": "#!/bin/sh\n#PAL checkpoint=./save movable=9 class=C\n"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL class=B # movable\n"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL immovable movables\n"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable=soon\n"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable=9999999999\n"}, (None, None)),
        ({"script": "#!/bin/sh\ntrue\n#PAL movable\n"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable\n", "array_inx": "1-3"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable\n", "comment": "own pal:companion=7"}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable\n", "het_job_offset": 0}, (None, None)),
        ({"script": "#!/bin/sh\n#PAL movable\n", "environment": {"SLURM_PAL_MOVABLE": "0"}}, (None, None)),
        ({"environment": {"SLURM_PAL_MOVABLE": "1"}}, ("1", None)),
        ({"script": "", "environment": {"SLURM_PAL_MOVABLE": "1"}}, (None, None)),
    ],
)
def test_a_movable_job_is_marked(site: Path, fields: dict[str, object], marked: tuple[str | None, str | None]) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", **fields)])
    assert seen.values["verdict"] == "0" and not seen.logs
    assert (seen.mark.get("mov"), seen.mark.get("lost")) == marked
    assert seen.mark["class"] == ("B" if "class=B" in str(fields.get("script")) else "?")


@pytest.mark.parametrize("word", ["Z", "a b;c", '"]]--', "x" * 10000, "", "A\nB"])
def test_a_wrong_class_is_told_and_harmless(site: Path, word: str) -> None:
    env = [f"_SLURM_SPANK_OPTION_pal_pal_class={word}"]
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", spank_job_env=env)])
    assert seen.values["set_req_nodes"] == "n1"
    assert seen.mark["class"] == "?"
    assert len(seen.logs) == (1 if word else 0)
    assert all(len(line) < 200 for line in seen.logs)


def test_switched_off_and_explained(site: Path) -> None:
    off, explain = "_SLURM_SPANK_OPTION_pal_pal_off=", "_SLURM_SPANK_OPTION_pal_pal_explain="
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", spank_job_env=[off, explain])])
    assert "set_req_nodes" not in seen.values
    assert seen.logs == ["user: pal: class ? (default): left to Slurm: switched off by the user"]
    assert placed(site, tres_per_node="gres:gpu:2", environment={"SLURM_PAL_OFF": "1"}) == ("", "off")


def test_arrays_and_an_idle_daemon_are_asked_for_softly(site: Path) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", array_inx="1-3")])
    assert seen.values["set_prefer"] == "pal_A_v0|pal_A_v1"
    assert (seen.mark["act"], seen.mark["why"]) == ("prefer", "soft")
    write_table(site / "pal_table.lua", clears="")
    assert run(site, [job(tres_per_node="gres:gpu:2")])[1].mark["act"] == "prefer"
    assert placed(site, tres_per_node="gres:gpu:2", features="ib") == ("", "nobody")


@pytest.mark.parametrize("shift_s", [31, -31])
def test_an_old_table_and_one_from_the_future_allow_nothing_hard(site: Path, shift_s: int) -> None:
    table = {key: value for key, value in records().items() if not key.startswith("prefer")}
    write_table(site / "pal_table.lua", table, written_s=NOW_S - shift_s)
    assert placed(site, tres_per_node="gres:gpu:2") == ("", "stale")


def test_names_that_slurm_does_not_know_are_never_written(site: Path) -> None:
    fewer = {"gpu": PARTITIONS["gpu"] | {"nodes": "n0,n2"}}
    _, seen = run(site, [job(tres_per_node="gres:gpu:2")], partitions=fewer)
    assert seen.values.get("set_req_nodes") in (None, "n0")
    _, seen = run(site, [job(tres_per_node="gres:gpu:4")], partitions=fewer)
    assert "set_exc_nodes" not in seen.values
    for nodes in ("", "n[0-", "n[0-99999999999]", "[[", "x" * 1000):
        _, seen = run(site, [job(tres_per_node="gres:gpu:2")], partitions={"gpu": fewer["gpu"] | {"nodes": nodes}})
        assert seen.mark["act"] == "none"


FAULTS = {
    "empty": b"",
    "garbage": os.urandom(4096),
    "bytecode": b"\x1bLua\x51\x00" + bytes(100),
    "syntax error": b'return { ["schema"] = "pal.table/1", ["epoch"] = "17",\n}}}}\n',
    "endless loop": b'return { ["schema"] = "pal.table/1",\nwhile true do end\n',
    "wrong schema": encode(Header(17, NOW_S, 30.0, "daemon"), records()).replace(b"pal.table/1", b"pal.table/2"),
    "truncated": encode(Header(17, NOW_S, 30.0, "daemon"), records())[:-40],
    "only the first line": encode(Header(17, NOW_S, 30.0, "daemon"), records()).split(b"\n")[0] + b"\n",
    "of another epoch at its end": encode(Header(17, NOW_S, 30.0, "daemon"), records()).replace(
        b'["end"] = "17"', b'["end"] = "16"'
    ),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_faulty_table_leaves_jobs_alone_and_is_told_once(site: Path, fault: str) -> None:
    (site / "pal_table.lua").write_bytes(FAULTS[fault])
    _, first, second = run(site, [job(tres_per_node="gres:gpu:2"), job(NOW_S + 1, tres_per_node="gres:gpu:2")])
    assert first.values["verdict"] == second.values["verdict"] == "0"
    assert {"set_req_nodes", "set_exc_nodes", "set_prefer"}.isdisjoint(first.values)
    assert first.mark["why"] == "table"
    assert len(first.logs) == 1
    assert not second.logs


def test_a_table_that_is_missing_a_folder_or_huge(site: Path) -> None:
    path = site / "pal_table.lua"
    path.unlink()
    assert run(site, [job(tres_per_node="gres:gpu:2")])[1].mark["why"] == "table"
    path.mkdir()
    assert run(site, [job(tres_per_node="gres:gpu:2")])[1].mark["why"] == "table"
    path.rmdir()
    whole = write_table(path)
    with open(path, "r+b") as stream:  # a hundred megabytes, most of them a hole
        stream.seek(100 << 20)
        stream.write(b"\n")
    assert run(site, [job(tres_per_node="gres:gpu:2")])[1].mark["why"] == "table"
    path.write_bytes(whole)
    assert run(site, [job(tres_per_node="gres:gpu:2")])[1].values["set_req_nodes"] == "n1"


def test_a_table_that_recovers_is_used_at_once(site: Path) -> None:
    path = site / "pal_table.lua"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    steps = [
        job(tres_per_node="gres:gpu:2"),
        {"now": NOW_S + 1, "write": [str(path), whole]},
        job(NOW_S + 1, tres_per_node="gres:gpu:2"),
    ]
    seen = run(site, steps)
    assert seen[1].mark["why"] == "table"
    assert seen[3].values["set_req_nodes"] == "n1"


@trials(60)
@given(st.data())
def test_a_damaged_table_never_does_harm(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    site = install(tmp_path_factory.mktemp("site"))
    text = bytearray(write_table(site / "pal_table.lua"))
    for _ in range(data.draw(st.integers(1, 8))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    (site / "pal_table.lua").write_bytes(bytes(text))
    _, *seen = run(site, [job(tres_per_node=f"gres:gpu:{count}") for count in (1, 2, 3, 4)])
    for step in seen:
        assert step.values["verdict"] == "0"
        names = step.values.get("set_req_nodes", "").split(",") + step.values.get("set_exc_nodes", "").split(",")
        assert set(names) <= {"", "n0", "n1", "n2", "n3"}


def test_an_error_at_any_access_leaves_a_whole_job(site: Path) -> None:
    """Slurm's fields fail one after another: the verdict stays, and a node list is set only with its mark."""
    asked = {"tres_per_node": "gres:gpu:2", "spank_job_env": ["_SLURM_SPANK_OPTION_pal_pal_explain="]}
    accesses = int(run(site, [job(**asked)])[1].values["accesses"])
    assert accesses > 30
    seen = run(site, [job(**asked) | {"fail_at": at} for at in range(1, accesses + 1)])
    for step in seen[1:]:
        assert step.values["verdict"] == "0"
        assert any(line.startswith("error: slurm-pal: ") and "access" in line for line in step.logs)
        assert "set_req_nodes" not in step.values


@pytest.mark.parametrize(
    "text",
    [
        "syntax error (", "error('at loading')", "while true do end", "return 7", "return { submit = 5 }", "",
        "return { submit = function() while true do end end }", "return { submit = function() error({}) end }",
        "return { submit = function() while true do pcall(error) end end }",
    ],
)  # fmt: skip
def test_a_broken_pal_lua_does_not_matter(site: Path, text: str) -> None:
    (site / "pal.lua").write_text(text)
    loaded, seen = run(site, [job(tres_per_node="gres:gpu:2")])
    assert loaded.values["loaded"] == "0"
    assert seen.values == {"verdict": "0", "accesses": "0"}


def test_a_site_filter_comes_first_and_decides(site: Path) -> None:
    (site / "job_submit.lua").rename(site / "ours.lua")
    (site / "site.lua").write_text(
        "function slurm_job_submit(job) job.admin_comment = 'site' return job.partition == 'no' and -1 or 0 end\n"
        "function slurm_job_modify() return -7 end\n"
        f"pcall(dofile, '{site}/ours.lua')\nreturn slurm.SUCCESS\n"
    )
    _, taken, refused = run(
        site,
        [job(tres_per_node="gres:gpu:2"), job(tres_per_node="gres:gpu:2", partition="no")],
        filter_name="site.lua",
    )
    assert taken.values["set_req_nodes"] == "n1"
    assert taken.values["set_admin_comment"].startswith("site pal:")
    assert refused.values["verdict"] == "-1"
    assert "set_req_nodes" not in refused.values


@pytest.mark.parametrize(
    ("line", "variable", "mark"),
    [
        ("--open-mode=append", "", "1"), ("-N1 --open-mode truncate", "", "0"), ("--open-mode=append", "t", "0"),
        ("", "append", "1"), ("", "", None), ("-N1 # --open-mode=append", "", None),
        ("--comment=x--open-mode=append", "", None), ("--open-mode=" + "%s" * 30000, "", None),
    ],
)  # fmt: skip
def test_the_mark_says_whether_the_job_keeps_its_output(line: str, variable: str, mark: str | None, site: Path) -> None:
    """As far as script and environment show it: Slurm shows the filter no more."""
    script = f"#!/bin/sh\n#SBATCH {line}\n#PAL movable\ntrue\n#SBATCH --open-mode=append\n"
    environment = {"SBATCH_OPEN_MODE": variable} if variable else {}
    seen = run(site, [job(tres_per_node="gres:gpu:2", script=script, environment=environment)])[1]
    assert (seen.mark["mov"], seen.mark.get("app")) == ("1", mark)


OPTIONS: dict[str, object] = {
    "nodes": "1-0", "ntasks": "1", "ntasks-per-node": "-2", "cpus-per-task": "0", "cpus-per-gpu": "0",
    "exclusive": "unset", "time": "2982616-04:14:00", "begin": "Unknown", "hold": "unset", "switches": "unset",
    "contiguous": "unset", "mincpus": "-1", "type": "sbatch", "wrap": "true",
}  # fmt: skip
"""What cli_filter/lua of 22.05 shows of `sbatch --wrap true`."""


def client(site: Path, **fields: object) -> dict[str, str]:
    options = OPTIONS | {key.replace("_", "-"): value for key, value in fields.items()}
    _, seen = run(site, [{"now": NOW_S, "options": options}], filter_name="cli_filter.lua")
    assert seen.values.pop("verdict") == "0"
    return seen.values


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ({"tres_per_job": "gres:gpu:3"}, "1-"),
        ({"tres_per_job": "gres/gpu:v100:3", "min_nodes": 1, "max_nodes": 4}, "1-4"),
        ({"tres_per_job": "gres:gpu:3", "min_nodes": 2, "max_nodes": 2}, "2-2"),
        ({"tres_per_task": "gres:gpu:1", "num_tasks": 4}, "1-"),
        ({"tres_per_job": "gres:gpu:3", "reservation": "r"}, "1-"),  # what is left to Slurm may be moved all the same
        ({"tres_per_job": "gres:gpu:1"}, None),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": 1, "max_nodes": 4}, None),
        ({"tres_per_job": "gres:gpu:4", "num_tasks": 4, "ntasks_per_node": 2}, None),
        ({"tres_per_job": "gres:gpu:3,gres:nic:1"}, None),
        ({"tres_per_job": "gres:gpu:3", "min_nodes": 4, "max_nodes": 1}, None),
    ],
)
def test_the_user_s_range_of_nodes_for_a_total_stands_in_the_mark(
    site: Path, fields: dict[str, object], nodes: str | None
) -> None:
    _, seen = run(site, [job(**fields)])
    assert seen.mark.get("n") == nodes and seen.mark["class"] == "?"


def test_the_client_filter_writes_the_range_down_too(site: Path) -> None:
    moves = {"wrap": "", "argv": {1: str(site / "job.sh")}}
    (site / "job.sh").write_text("#!/bin/sh\n#PAL movable\n")
    for nodes, shown in (("1-0", "1-"), ("1-4", "1-4"), ("2", "2-2")):
        words = client(site, gpus="3", nodes=nodes, **moves)["set_comment"].split(";")
        assert f"n={shown}" in words


def test_the_client_filter_decides_alike(site: Path) -> None:
    got = client(site, gres="gres:gpu:2", time="0-02:00:00")
    assert got["set_nodelist"] == "n1"
    assert got["set_comment"].startswith("pal:lease=187;req=;exc=;class=?;from=default;act=nodelist;set=n1;")
    assert client(site, gpus="3", nodes="1")["set_nodelist"] == "n1"
    assert client(site, gpus_per_node="2", nodes="2")["set_nodelist"] == "n1,n0"
    assert client(site, gres="gres:gpu:4", time="01:00:00", exclude="n9")["set_exclude"] == "n9,n3"
    assert client(site, gres="gres:gpu:2", array="1-3") == {"set_prefer": "pal_A_v0|pal_A_v1"}


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("", True),
        ("-n1", False),
        ("--ntasks=1", False),
        ("-N2 -n 1", False),
        ("--nodelist-of=n1", True),
        ("-J -n", True),
        ("--ntasks-per-node=2", True),
    ],
)
def test_of_more_nodes_than_tasks_sbatch_would_drop_those_that_the_client_filter_names(
    site: Path, line: str, listed: bool
) -> None:
    """It shows one task also where none are stated, which means one on each node."""
    (site / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {line}\ntrue\n")
    got = client(site, gres="gres:gpu:2", nodes="2", wrap="", argv={1: str(site / "job.sh")})
    assert got.get("set_nodelist") == ("n1,n0" if listed else None)
    assert "set_nodelist" not in client(site, gres="gres:gpu:1", nodes="3", ntasks="2")


@pytest.mark.parametrize(
    ("script", "environment", "sensitivity"),
    [
        ("#PAL class=A", {"SLURM_PAL_CLASS": "C"}, "A"),
        ("", {"SLURM_PAL_CLASS": "C"}, "C"),
        ("", {"SLURM_PAL_APP": "stream"}, "C"),
        ("", {"SLURM_PAL_CLASS": "C", "SLURM_PAL_JOB_CLASS": "C"}, "?"),
        ("", {"SLURM_PAL_CLASS": "B", "SLURM_PAL_JOB_CLASS": "C"}, "B"),
        ("", {"SLURM_PAL_OFF": "1", "SLURM_PAL_JOB_OFF": "1"}, "?"),
    ],
)
def test_the_client_filter_takes_no_word_from_the_job_around_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, script: str, environment: dict[str, str], sensitivity: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (site / "job.sh").write_text(f"#!/bin/sh\n#PAL movable\n{script}\n")  # which shows the class in any case
    got = client(site, gres="gres:gpu:2", time="0-02:00:00", wrap="", argv={1: str(site / "job.sh")})
    assert f"class={sensitivity};" in got["set_comment"] and "why=off" not in got["set_comment"]


def test_the_client_filter_marks_a_movable_job_and_keeps_palsubs_word(site: Path) -> None:
    (site / "job.sh").write_text("#!/bin/sh\n#PAL movable=30 checkpoint=a b\n")
    asked = {"wrap": "", "argv": {1: str(site / "job.sh")}}
    assert ";from=default;mov=1;lost=30;app=1;act=nodelist;" in client(site, gres="gres:gpu:2", **asked)["set_comment"]
    left = client(site, gres="gres:gpu:2", nodelist="n0", **asked)
    assert set(left) == {"set_comment", "set_open-mode"} and ";mov=1;lost=30;app=1;act=none;" in left["set_comment"]
    assert left["set_open-mode"] == "append"
    said = client(site, gres="gres:gpu:2", nodelist="n0", open_mode="t", **asked)
    assert set(said) == {"set_comment"} and ";mov=1;lost=30;app=0;act=none;" in said["set_comment"]
    assert client(site, gres="gres:gpu:2", nodelist="n0", comment="mine", **asked) == {}
    word = "pal:job=A;from=--pal-class;mov=1"
    assert client(site, gres="gres:gpu:2", comment=word) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"gres": "gres:gpu:2", "nodelist": "n0"}, {"gres": "gres:gpu:2", "begin": "2030-01-01T00:00:00"},
        {"gres": "gres:gpu:2", "hold": "set"}, {"gres": "gres:gpu:2", "partition": "other"},
        {"gres": "gres:gpu:2", "mem": "64001M"}, {"gres": "gres:gpu:2", "exclusive": "user"},
        {"gres": "gres:gpu:2", "spank": {"pal": {"pal-off": ""}}},
    ],
)  # fmt: skip
def test_the_client_filter_leaves_alone_what_is_not_ours(site: Path, fields: dict[str, object]) -> None:
    assert client(site, **fields) == {}


@pytest.mark.parametrize("fault", ["missing", "empty", "garbage", "truncated"])
def test_the_client_filter_needs_no_table(site: Path, fault: str) -> None:
    (site / "pal_table.lua").unlink()
    if fault != "missing":
        (site / "pal_table.lua").write_bytes(FAULTS[fault])
    assert client(site, gres="gres:gpu:2") == {}


def test_the_client_filter_knows_of_no_job_what_it_was_measured_to_be(site: Path) -> None:
    """Even where a table that it can read says it, as those of earlier versions did: it is for slurmctld alone."""
    write_table(site / "pal_table.lua", history(**{f"u{os.getuid()}": f"{name_key('train')}=C:0.900"}))
    assert ";class=?;from=default;" in client(site, gres="gres:gpu:1", job_name="train")["set_comment"]


def test_only_these_fields_of_a_job_are_written() -> None:
    """`extra` is freed twice by slurmctld 22.05 when Lua has written it; each further field needs a soak of its own."""
    text = "".join(parts().values())
    assert set(re.findall(r"\bjob\.(\w+) = ", text)) == {
        "admin_comment", "req_nodes", "exc_nodes", "prefer", "partition",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "both"),
    [
        ({"partition": "gpu"}, "gpu,down"), ({}, "gpu,down"), ({"tres_per_node": NO_VAL}, "gpu,down"),
        ({"partition": "gpu", "array_inx": "0-3"}, "gpu,down"), ({"partition": "gpu", "het_job_offset": 0}, ""),
        ({"partition": "down"}, ""), ({"partition": "gpu,down"}, ""), ({"partition": "nobody"}, ""),
        ({"partition": "gpu", "comment": "pal:companion=7"}, "gpu,down"),
    ],
)  # fmt: skip
def test_guests_also_wait_in_the_partition_that_is_down(site: Path, fields: dict[str, object], both: str) -> None:
    """slurmctld refuses a job that no node of its partitions fits, so this is for every job, old table or not."""
    write_table(site / "pal_table.lua", records() | {"waits.gpu": "down"}, written_s=NOW_S - 86400)
    partitions = PARTITIONS | {"down": {"nodes": "n[0-3]"}}
    _, seen = run(site, [job(**{"tres_per_node": "gres:gpu:1"} | fields)], partitions=partitions)
    assert seen.values["verdict"] == "0" and seen.values.get("set_partition", "") == both
    _, seen = run(site, [job(**{"tres_per_node": "gres:gpu:1"} | fields)])
    assert "set_partition" not in seen.values, "a name that slurmctld does not know would refuse the job"


def test_every_reason_has_its_words() -> None:
    """Each code that the filter writes into a mark is explained, and none is that it does not write."""
    before = (r"(?:why|leave|soft) = (?:.* and )?", r"(?:leave|soft) or ", r"softly\(.*, ", r"\breturn ")
    used = set(re.findall(f'(?:{"|".join(before)})"([a-z][a-z-]*)"', "".join(parts().values())))
    assert used == REASONS.keys()
    assert NO_VAL not in REASONS


@pytest.mark.parametrize(
    ("counts", "left", "words", "fields", "expected"),
    [
        ("", "", "", {"cpus_per_task": 16}, ("n1", "best")),
        ("", "", " threads=2", {"cpus_per_task": 15}, ("n1", "best")),
        ("", "", " threads=2", {"cpus_per_task": 3, "num_tasks": 4}, ("n1", "best")),  # two cores each
        ("", "", " threads=2", {"cpus_per_task": 3, "num_tasks": 5}, ("", "busy")),
        ("", "", " threads=2", {"num_tasks": 9}, ("n1", "best")),
        ("onetask=1", "", " threads=2", {"num_tasks": 9}, ("", "busy")),
        ("gpucpus=8", "", "", {}, ("n1", "best")),
        ("gpucpus=9", "", "", {}, ("", "busy")),
        ("gpucpus=9", "", "", {"cpus_per_task": 2}, ("n1", "best")),
        ("gpumem=32000 memory=1", "", "", {}, ("n1", "best")),
        ("gpumem=32001 memory=1", "", "", {}, ("", "busy")),
        ("gpumem=32001 memory=1", "", "", {"min_mem_per_node": 100}, ("n1", "best")),
        ("memory=1", "", "", {}, ("", "memory")),
        ("memory=1", "", "", {"min_mem_per_cpu": 100}, ("n1", "best")),
        ("", "n0=4 n1=1 n3=16", "", {"cpus_per_task": 4}, ("n0", "best")),
        ("", "n0=4 n1=1", "", {"cpus_per_task": 5}, ("", "busy")),
    ],
)
def test_cpus_and_memory_count_as_slurm_counts_them(
    site: Path, counts: str, left: str, words: str, fields: dict[str, object], expected: tuple[str, str]
) -> None:
    table = records() | {"counts.gpu": counts} | ({"left.gpu": left} if left else {})
    table |= {key: text.replace(" feat=", f"{words} feat=") for key, text in table.items() if key.startswith("node.")}
    write_table(site / "pal_table.lua", table)
    assert placed(site, tres_per_node="gres:gpu:2", **fields) == expected


def test_the_lease_is_what_waiting_pays_against_the_best_of_the_others(site: Path) -> None:
    """Where plain Slurm would pick the same node, the job would go elsewhere were its GPUs taken: palsub's own rule."""
    write_table(site / "pal_table.lua", records() | {"plain.1.A.2": "0.96:n1:1.2"})
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", time_limit=120)])
    assert seen.mark["lease"] == "600" and seen.values["set_req_nodes"] == "n1"  # (1.2 - 0.96) x an hour, at most 600
    write_table(site / "pal_table.lua", records() | {"plain.1.A.2": "0.96:n0:1.2"}, epoch=18)
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", time_limit=120)])
    assert seen.mark["lease"] == "3"


def avoiding(site: Path, line: str = "#PAL avoid-slow", **fields: object) -> Seen:
    """One job of two GPUs and an hour on a table in which n1 has a GPU that is 40 % slower."""
    write_table(site / "pal_table.lua", records() | {"avoid.A": "n9=2 n1=1.4 n0=1.06"})
    asked = {"tres_per_node": "gres:gpu:2", "time_limit": 60, "script": f"#!/bin/sh\n{line}\ntrue\n"} | fields
    return run(site, [job(**asked)])[1]


def test_who_avoids_slow_gpus_is_kept_off_their_nodes_beside_a_node_list(site: Path) -> None:
    seen = avoiding(site, exc_nodes="n5")
    assert (seen.values["set_req_nodes"], seen.values["set_exc_nodes"]) == ("n0", "n5,n1")
    first, second = seen.values["set_admin_comment"].split(" ")
    assert "act=nodelist;set=n0;why=best" in first and ";avoid=1.1;" in first
    assert second == "pal:lease=600;req=;exc=n5;act=exclude;set=n1"  # .4 x 1800 s, at most submit.lease_max_s
    assert avoiding(site, "#PAL avoid-slow=1.5").values["set_req_nodes"] == "n1"
    assert avoiding(site, "#PAL class=C avoid-slow").values.get("set_exc_nodes", "") == ""
    for line in (
        "#PAL avoid-slow=0.9",
        "#PAL avoid-slow=99",
        "#PAL avoid-slow=1.2.3",
        "#PAL avoid-slower",
        "#PAL avoid=1.2",
        "true",
    ):
        assert "set_exc_nodes" not in avoiding(site, line).values, line


@pytest.mark.parametrize(
    ("words", "line", "bound"),
    [
        (["_SLURM_SPANK_OPTION_pal_pal_avoid_slow=(null)"], "true", "1.1"),  # --pal-avoid-slow
        (["_SLURM_SPANK_OPTION_pal_pal_avoid_slow=1.2"], "true", "1.2"),
        (["_SLURM_SPANK_OPTION_pal_pal_avoid_slow=1.2"], "#PAL avoid-slow=1.3", "1.2"),
        (["_SLURM_SPANK_OPTION_pal_pal_avoid_slow=1.2", "SLURM_PAL_AVOID_SLOW=1.3"], "true", "1.2"),
        (["SLURM_PAL_AVOID_SLOW=1"], "true", "1.1"),
        (["SLURM_PAL_AVOID_SLOW=1.3"], "true", "1.3"),
        (["SLURM_PAL_AVOID_SLOW=1.3"], "#PAL avoid-slow=1.2", "1.2"),
        (["_SLURM_SPANK_OPTION_pal_pal_note=(null)"], "true", None),
        (["_SLURM_SPANK_OPTION_pal_pal_avoid_slow=99"], "true", None),  # only forged: the plug-in refuses it
    ],
)
def test_the_plugin_s_option_says_so_too(site: Path, words: list[str], line: str, bound: str | None) -> None:
    seen = avoiding(site, line, spank_job_env=words)
    found = re.findall(";avoid=([^;]*);", seen.values["set_admin_comment"])
    assert (found, seen.values.get("set_exc_nodes", "")) == (([bound], "n1") if bound else ([], ""))


def test_the_client_filter_avoids_slow_gpus_too(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(site / "pal_table.lua", records() | {"avoid.A": "n9=2 n1=1.4 n0=1.06"})
    asked = {"gres": "gres:gpu:2", "time": "0-01:00:00", "exclude": "n5"}
    got = client(site, **asked, spank={"pal": {"pal-avoid-slow": "(null)"}})
    assert (got["set_nodelist"], got["set_exclude"]) == ("n0", "n5,n9,n1")
    first, second = got["set_comment"].split(" ")
    assert ";avoid=1.1;" in first and second == "pal:lease=600;req=;exc=n5;act=exclude;set=n9,n1"
    assert client(site, **asked, spank={"pal": {"pal-avoid-slow": "1.5"}})["set_exclude"] == "n5,n9"
    monkeypatch.setenv("SLURM_PAL_AVOID_SLOW", "1")
    assert client(site, **asked)["set_exclude"] == got["set_exclude"]
    monkeypatch.setenv("SLURM_PAL_JOB_AVOID_SLOW", "1")  # the word of the job around this one
    assert client(site, **asked).get("set_exclude") is None


def test_where_no_good_gpus_are_free_it_waits_for_a_time(site: Path) -> None:
    seen = avoiding(site, tres_per_node="gres:gpu:4", time_limit=10)
    assert seen.values.get("set_req_nodes", "") == ""
    assert (seen.values["set_exc_nodes"], seen.mark["why"], seen.mark["lease"]) == ("n1", "avoid", "120")  # .4 x 300 s
    assert seen.mark["avoid"] == "1.1"


def test_where_no_other_node_could_take_it_it_is_submitted_as_written(site: Path) -> None:
    seen = avoiding(site, exc_nodes="n0")
    assert seen.values.get("set_exc_nodes", "") == "" and seen.mark["avoid"] == "1.1:slow-all"
    assert [line for line in seen.logs if "avoid-slow: submitted as written, since only slow GPUs are free" in line]
    unmarked = avoiding(site, admin_comment="x" * 8150)
    assert "set_exc_nodes" not in unmarked.values  # nobody could take it back
    assert [line for line in unmarked.logs if "avoid-slow: submitted as written, since some of its" in line]
    array = avoiding(site, array_inx="1-3")
    assert array.mark["avoid"] == "1.1:array" and "set_exc_nodes" not in array.values
