# SPDX-License-Identifier: MIT
"""--csv: every command with a table has it, its rows are those of --json, and no text becomes a formula."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from slurm_pal.base import config as settings
from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.base.terminal import visible
from slurm_pal.cli import tables
from slurm_pal.cli.pal import pal
from slurm_pal.cli.pal_profile import pal_profile
from slurm_pal.cli.pal_rebalance import pal_rebalance
from slurm_pal.emulation.gpus import draw_registry, set_fault, write_registry
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.report.listing import Listing
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store.database import open_database
from slurm_pal.store.snapshot import GpuScore, publish

from ...doubles.fake_commands import in_process
from ...doubles.records_factory import NOW_S, record

NO_TABLE = {
    "pal ack": "says a word to the tick",
    "pal note": "one line for a job's output",
    "pal whatif": "a sentence, and a few ways to submit one job",
    "pal have": "reports, shows nothing",
    "pal admin dashboard": "a file",
    "pal admin install": "steps that are shown or taken",
    "pal admin uninstall": "steps that are shown or taken",
    "pal admin units": "files",
    "pal demo": "a story",
    "pal fork next": "variables for a shell",
    "pal fork result": "one path",
    "pal evidence": "files",
    "pal explain": "the story of one job",
    "pal heatmap": "a picture; its numbers are those of pal gpus",
    "pal lab down": "one line",
    "pal lab env": "lines for a shell",
    "pal lab fault": "one line",
    "pal lab status": "a few lines",
    "pal lab swap": "one line",
    "pal lab up": "a few lines",
    "pal lab work": "is a job",
    "pal observe": "is a part of a job",
    "pal probe": "one verdict",
    "pal progress": "says a word to the tick",
    "pal publish-table": "one line",
    "pal report": "a page of sentences and pictures; its tables are those of pal gpus and pal compare",
    "pal setup": "steps that are shown or taken",
    "pal trace convert": "writes a CSV of its own",
    "pal trace generate": "writes a CSV of its own",
    "pal trace hash": "copies a file",
    "pal why-slow": "a sentence, and the evidence of one job",
    "pal-profile bench": "runs on nodes, and has options of its own",
    "pal-profile network": "a few lines",
    "pal-profile plan": "a few lines",
    "pal-profile publish-scores": "a few lines",
    "pal-profile run": "a few lines",
}
"""Commands that print no table, and what they do instead."""


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for word, one in ((word, one) for word, one in command.commands.items() if not one.hidden):
            yield from commands(one, f"{name} {word}")
    else:
        yield name, command


ALL = dict(
    row
    for command, name in ((pal, "pal"), (pal_profile, "pal-profile"), (pal_rebalance, "pal-rebalance"))
    for row in commands(command, name)
)


def words(command: click.Command) -> set[str]:
    return {word for parameter in command.params for word in parameter.opts}


def test_every_command_has_csv_or_no_table() -> None:
    without = {name for name, command in ALL.items() if "--csv" not in words(command)}
    assert without == NO_TABLE.keys()


@pytest.mark.parametrize("name", sorted(ALL.keys() - NO_TABLE.keys()))
def test_it_is_one_form_of_several(name: str) -> None:
    command = ALL[name]
    assert "--json" in words(command)
    argv = ["a", "b"][: sum(isinstance(p, click.Argument) and p.required for p in command.params)]
    for other in ("--json", "--parsable2"):
        for both in (["--csv", other], [other, "--csv"]):
            error = CliRunner().invoke(command, [*both, *argv]).exception
            assert isinstance(error, UsageError) and error.exit_code == Exit.USAGE
            assert str(error) == f"--csv and {other} exclude each other: give one of them"


def printed(columns: tuple[str, ...], rows: list[dict[str, object]], **options: bool) -> str:
    @click.command()
    def command() -> None:
        tables.show(tables.Form(as_csv=True, **options), Listing(columns, rows), "none", lambda told: {})

    return CliRunner().invoke(command).stdout


def test_values_and_quotes() -> None:
    row = {"n": -1.5, "yes": True, "none": None, "many": ["a", "b"], "group": {"A": {"low": 2}}, "text": 'say "x", y'}
    columns = ("text", "n", "yes", "none", "many", "group_A_low", "missing")
    assert printed(columns, [row]) == ('text,n,yes,none,many,group_A_low,missing\n"say ""x"", y",-1.5,true,,"a,b",2,\n')
    assert printed(("n",), [row], noheader=True) == "-1.5\n"
    assert printed(("n", "yes"), []) == "n,yes\n"


HOSTILE = [
    "=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n=1", "x;=1", "x; @y", "\uff1d1", "\uff0b1", "\uff0d1",
    "\uff201", "\u3000=1", "'=1", 'a"\n=1', '";=1', "\x1b[31m", "\u202e=1",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_a_formula_or_a_second_row(text: str) -> None:
    out = printed(("before", "text"), [{"before": "x", "text": text}], noheader=True)
    assert out.count("\n") == 1 and out[:-1].isprintable()
    [[_, cell]] = csv.reader(io.StringIO(out))
    assert cell.replace("'", "") == visible(text).replace("'", "")  # nothing is lost
    for separator in ",;":
        for part in next(csv.reader(io.StringIO(out), delimiter=separator)):
            assert not part.strip().startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))


def test_what_is_no_formula_stays_as_it_is() -> None:
    for text in ("a=b", "n[1-4]", "x -1", "'quoted'", "a;b"):
        assert printed(("text",), [{"text": text}], noheader=True) == f"{text}\n"


# -- commands -----------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm with n1 and n2 of two GPUs, of which those of n1 are measured."""
    (tmp_path / "bin").mkdir()
    write_shims(str(tmp_path / "bin"), str(tmp_path / "fake.json"), [FakeNode("n1", gpus=2), FakeNode("n2", gpus=2)])
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("time.time", lambda: NOW_S)
    runs = [
        record(f"GPU-{i}", "n1", i, 1.0 + i / 20, sensitivity=c, ts=NOW_S - 3600.0, sweep="s1")
        for c in "ABC"
        for i in (0, 1)
    ]
    with open_database(str(tmp_path), write=True) as database:
        database.insert(runs, NOW_S)
    scores = [
        GpuScore("n1", i, f"GPU-{i}", "Emu V100", {"A": 0.975 + i / 16, "C": 1.0}, {"A": f"v{i}", "C": "v0"},
                 NOW_S - 3600.0, 1.0, ("small_group", "unconfirmed")[:2 * i])
        for i in (0, 1)
    ]  # fmt: skip
    publish(settings.load().snapshot_path, scores, cluster="lab", epoch=1, now_s=NOW_S)
    return tmp_path


def invoke(*argv: str, program: click.Command = pal) -> Result:
    result = CliRunner().invoke(program, list(argv))
    assert result.exit_code == 0, result.output
    return result


def test_gpus(site: Path) -> None:
    assert invoke("gpus", "--csv").stdout == (
        "node,index,uuid,model,slowdown_A,slowdown_B,slowdown_C,class_A,class_B,class_C,age_s,in_use,flags,state\n"
        "n1,0,GPU-0,Emu V100,0.975,,1.0,v0,?,v0,3600.0,false,,ok\n"
        'n1,1,GPU-1,Emu V100,1.0375,,1.0,v1,?,v0,3600.0,false,"small_group,unconfirmed",ok\n'
        "n2,0,,,,,,?,?,?,,false,never_measured,ok\n"
        "n2,1,,,,,,?,?,?,,false,never_measured,ok\n"
    )
    rows = json.loads(invoke("gpus", "--json").stdout)["gpus"]
    for told, row in zip(csv.DictReader(io.StringIO(invoke("gpus", "--csv").stdout)), rows, strict=True):
        assert told["uuid"] == row["uuid"] and told["flags"] == ",".join(row["flags"])
        assert told["slowdown_A"] == str(row["slowdown"].get("A", ""))
    assert invoke("gpus", "--csv", "--noheader", "-w", "n2").stdout.count("\n") == 2


def test_nodes(site: Path) -> None:
    assert invoke("nodes", "--csv", "--noheader").stdout == (
        'n1,IDLE,2,0,1.0375,,1.0,"v0,v1","?,?","v0,v0",3600.0,"small_group,unconfirmed"\n'
        'n2,IDLE,2,0,,,,"?,?","?,?","?,?",,never_measured\n'
    )


def test_moves(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    header = "made_s,job_id,user,source,target,before,after,gain_s,observed_gain_s,cost_s,outcome,step,why,partition"
    header += ",saving\n"
    assert invoke("moves", "--csv").stdout == header
    move = Move(
        0, 7, "anna", NOW_S - 500, 0, "n3:0,1", ("n5",), "n5:0,1", "", 1.25, 1.0, 800.0, 60.0, True, "", "signalling",
        NOW_S - 500,
    )  # fmt: skip
    with open_journal(paths.journal_path(settings.load(), False)) as journal:
        journal.finish(journal.begin(move), "abandoned", '=cmd|" /C calc"!A0', NOW_S - 400)
    assert invoke("moves", "--csv").stdout == header + (
        '1799999500.0,7,anna,"n3:0,1","n5:0,1",1.25,1.0,800.0,,60.0,abandoned,signalling,'
        '"\'=cmd|"" /C calc""!A0",,0.0\n'
    )


def test_history_of_a_node_and_scores_of_all(site: Path) -> None:
    scores = invoke("show", "--csv", program=pal_profile).stdout.splitlines()
    assert scores[0] == "node,index,uuid,model,slowdown_A,slowdown_B,slowdown_C,class_A,class_B,class_C,flags,state"
    assert len(scores) == 3
    runs = list(csv.DictReader(io.StringIO(invoke("show", "n1", "-n", "2", "--csv", program=pal_profile).stdout)))
    told = json.loads(invoke("show", "n1", "-n", "2", "--json", program=pal_profile).stdout)["gpus"]
    assert [(run["run_id"], float(run["ts_s"])) for run in runs] == [
        (run["run_id"], run["ts"]) for gpu in told for run in gpu["runs"]
    ]
    assert {run["uuid"] for run in runs} == {"GPU-0", "GPU-1"}


def test_hidden_truth_of_a_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus.json").touch()
    registry = str(tmp_path / "gpus.json")
    write_registry(registry, draw_registry(["n0"], 2, 5))
    set_fault(registry, "n0", 1, "ageing", 1.5)
    monkeypatch.setattr("slurm_pal.cli.lab._registry_path", lambda directory: registry)
    rows = list(csv.DictReader(io.StringIO(invoke("lab", "gpus", "--csv").stdout)))
    assert [row["faults"] for row in rows] == ["", "ageing=1.5"]
    truth = json.loads(invoke("lab", "gpus", "--json").stdout)["gpus"]
    assert [float(row["slowdown_A"]) for row in rows] == [gpu["slowdown"]["A"] for gpu in truth]


TRACE = "--trace {dir}/t.csv --cluster 2x2 --seeds 2 --worst 0 --jobs 1"


def test_simulate_and_trace(tmp_path: Path) -> None:
    trace = str(tmp_path / "t.csv")
    invoke("trace", "generate", "jobs=6,seed=1,gpus=2,cap_h=1", "-o", trace)
    argv = ("simulate", *TRACE.format(dir=tmp_path).split())
    rows = list(csv.DictReader(io.StringIO(invoke(*argv, "--csv").stdout)))
    told = json.loads(invoke(*argv, "--json").stdout)["comparisons"]
    assert [row["policy"] for row in rows] == [row["policy"] for row in told]
    assert [float(row["mean_jct_s"]) for row in rows] == [row["mean"]["mean_jct_s"] for row in told]
    assert [row["ratio"] for row in rows] == [
        str((row["ratio"].get("mean_jct_s") or {}).get("mean", "")) for row in told
    ]
    figures = list(csv.DictReader(io.StringIO(invoke("trace", "describe", trace, "--csv").stdout)))
    assert {"figure": "jobs", "member": "", "value": "6"} in figures
    assert {row["member"] for row in figures if row["figure"] == "classes"} <= {"A", "B", "C", "?"}
    names = invoke("simulate", "--list", "--csv").stdout.splitlines()
    assert names[0] == "option,name,summary" and names[1].startswith("policy,slurm-twin,")


TYPES = (
    "--cluster", "fast:1,slow:1", "--throughputs", "{dir}/speeds.csv", "--trace", "{dir}/t.trace", "--jobs", "1",
)  # fmt: skip
PROFILE = "\n".join([",".join(f"PerfVar_class{c}" for c in "ABCD"), "1.4,1.1,1.0,1.0", *["1.0,1.0,1.0,1.0"] * 7])
SIA = "job_id,num_gpus,submit_time,duration,model\n"


@pytest.mark.parametrize(
    ("argv", "column"),
    [
        ((*TYPES, "--policy", "slurm,pal-share"), "avg_jct_s"),
        ((*TYPES, "--policy", "gavel:isolated", "--replica", "gavel"), "makespan_s"),
        (("--trace", "{dir}/sia.csv", "--profile", "{dir}/gpus.csv", "--cluster", "2x4", "--replica", "blox-pal",
          "--jobs", "1", "--policy", "pal,packed"), "median_jct_s"),
    ],
)  # fmt: skip
def test_other_ways_to_simulate(tmp_path: Path, argv: tuple[str, ...], column: str) -> None:
    (tmp_path / "t.trace").write_text("".join(f"M\tc\td\t-n\t0\t{n}\t1\t1\t-1\t0\n" for n in (1000, 3000)))
    (tmp_path / "speeds.csv").write_text("model,scale_factor,fast,slow\nM,1,2,1\n")
    (tmp_path / "gpus.csv").write_text(PROFILE)
    jobs = "".join(f"{k},{1 + k % 4},{k * 300},{40000 + k},BERT\n" for k in range(4))
    (tmp_path / "sia.csv").write_text(SIA + jobs)
    words = ["simulate", *(word.format(dir=tmp_path) for word in argv)]
    rows = list(csv.DictReader(io.StringIO(invoke(*words, "--csv").stdout)))
    told = json.loads(invoke(*words, "--json").stdout)["policies"]
    assert [row["policy"] for row in rows] == list(told)
    assert [float(row[column]) for row in rows] == [row[column] for row in told.values()]
    assert rows[0]["ratio_to_first"] == "1.0"
