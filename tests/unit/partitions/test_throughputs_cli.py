# SPDX-License-Identifier: MIT
"""pal throughputs, and the site's own table that it reads and writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.throughputs import Entry, ThroughputKey
from slurm_pal.base.cluster import Node
from slurm_pal.base.config import load
from slurm_pal.base.errors import DataError, Exit, SlurmError
from slurm_pal.cli.pal import pal
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Observation, open_journal
from slurm_pal.partitions import throughput_table as store
from slurm_pal.report.throughput_rows import HEADER, OTHER
from slurm_pal.slurm.cli import CliClient

NOW_S, DAY_S = 1_800_000_000.0, 86400.0
HEAD = "application,gpus,type,steps_per_s,relative_error,count,measured\n"
TABLE = HEAD + "bert,1,a100,8,0.05,12,2027-01-05T08:00:00+00:00\nbert,1,v100,3.2,,,\nbert,8,v100,0,,,\n"


def node(name: str, gpu_type: str) -> Node:
    return Node(name, frozenset({"IDLE"}), (gpu_type,) * 4, 0, 8, 0, 1000, 0, frozenset(), ("gpu",))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folders, the powers of SlurmUser, and a Slurm with nodes of two types."""
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}/state"\n[apps]\nwrf = "C"\n')
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    monkeypatch.setattr(CliClient, "nodes", lambda self: (node("n1", "a100"), node("n2", "v100")))
    return tmp_path


def observe(*seen: tuple[str, str, float, float]) -> None:
    """(job name, node, s per step, age in s) into the site's journal."""
    with open_journal(paths.journal_path(load(), False)) as book:
        for job_id, (name, where, step_s, age_s) in enumerate(seen, start=1):
            book.observe(Observation(f"anna {name} 1 A", job_id, 0, "A", ((where, 0),), 1.0, step_s, NOW_S - age_s))


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, ["throughputs", *words])


def table_at(folder: Path, text: str, name: str = "t.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return str(path)


# -- the command ----------------------------------------------------------------------------


def test_nothing_is_known(site: Path) -> None:
    result = invoke()
    assert (result.exit_code, result.stderr) == (0, "") and result.stdout.startswith("no throughputs")
    assert invoke("-P").stdout == "|".join(HEADER) + "\n"
    assert json.loads(invoke("--json").stdout) == {"schema": "pal.throughputs/1", "throughputs": []}
    assert not (site / "state" / "rebalance.db").exists()  # to look is not to make


def test_a_table_with_what_it_leaves_open(site: Path) -> None:
    lines = invoke(table_at(site, TABLE), "-P", "--noheader").stdout.splitlines()
    assert lines[0] == "bert|1|a100|8|6|12|10d|table" and lines[1] == "bert|1|v100|3.2|10|-|-|table"
    assert lines[3] == "bert|8|v100|cannot run|-|-|-|table"
    cells = lines[2].split("|")
    assert cells[:3] == ["bert", "8", "a100"] and float(cells[3]) > 8 and cells[7] == "estimated"
    assert [line.split("|")[0] for line in lines[4:]] == [OTHER] * 2
    assert all("|~" in line and line.endswith("|prior") for line in lines[4:])


def test_past_runs_join_the_table(site: Path) -> None:
    observe(("bert", "n1", 0.1, DAY_S), ("WRF", "n2", 2.0, 0.0), ("mine", "n2", 1.0, 0.0), ("mine", "gone", 1.0, 0.0))
    result = invoke(table_at(site, TABLE), "--json")
    assert result.stderr == "pal: 1 past run is left out: node of no known type\n"
    body = json.loads(result.stdout)
    assert body["schema"] == "pal.throughputs/1"
    rows = {(row["application"], row["gpus"], row["type"]): row for row in body["throughputs"]}
    both = rows["bert", 1, "a100"]
    assert 8 < both["steps_per_s"] < 10 and both["runs"] == 13 and both["source"] == "table"
    assert rows["wrf", 1, "v100"]["steps_per_s"] == pytest.approx(0.5)
    assert rows["wrf", 1, "v100"]["source"] == "progress" and rows["wrf", 1, "v100"]["age_s"] is None
    assert rows["anna/mine", 1, "a100"]["source"] == "estimated" and not rows["anna/mine", 1, "a100"]["relative"]
    assert rows[OTHER, 1, "a100"]["relative"] and rows["bert", 8, "v100"]["steps_per_s"] == 0


def test_a_job_name_is_shown_without_control_characters(site: Path) -> None:
    observe(("x\x1b[31m", "n1", 0.1, 0.0))
    assert invoke("-P", "--noheader").stdout.startswith("anna/x\\x1b[31m|1|a100|10|")


def test_without_powers_the_runs_of_the_site_are_not_shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observe(("bert", "n1", 0.1, 0.0))
    assert "bert" in invoke().stdout
    monkeypatch.setattr(paths, "has_powers", lambda: False)
    assert invoke().stdout.startswith("no throughputs")


def test_without_slurm_the_table_is_shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: CliClient) -> tuple[Node, ...]:
        raise SlurmError("slurmctld is down")

    observe(("bert", "n1", 0.1, 0.0))
    monkeypatch.setattr(CliClient, "nodes", silent)
    result = invoke(table_at(site, TABLE), "-P", "--noheader")
    assert result.stderr == ("pal: past runs are not shown, since the types of nodes are unknown: slurmctld is down\n")
    assert result.exit_code == 0 and result.stdout.startswith("bert|1|a100|8|6|12|10d|table\n")


def test_what_is_known_can_be_written_as_a_table(site: Path) -> None:
    observe(("mine", "n2", 0.5, DAY_S))
    target = str(site / "known.csv")
    assert invoke(table_at(site, TABLE), "--output", target).exit_code == 0
    written = store.read(target, NOW_S)
    assert set(written) == {
        ThroughputKey("bert", 1, "a100"), ThroughputKey("bert", 1, "v100"), ThroughputKey("bert", 8, "v100"),
        ThroughputKey("anna/mine", 1, "v100"),
    }  # fmt: skip
    assert written[ThroughputKey("anna/mine", 1, "v100")].age_s == pytest.approx(DAY_S, abs=1)


def test_a_job_name_that_cannot_stand_in_a_table_is_told(site: Path) -> None:
    observe(("mine", "n2", 0.5, DAY_S), ("x\x1b[31m", "n1", 0.1, 0.0))
    result = invoke("--output", str(site / "known.csv"))
    assert result.stderr == f"pal: 1 not written to {site}/known.csv: the job name is too long or not printable\n"
    assert set(store.read(str(site / "known.csv"), NOW_S)) == {ThroughputKey("anna/mine", 1, "v100")}


def test_what_cannot_run_has_no_unit(site: Path) -> None:
    """A table of relative speeds with a 0, beside a past run in steps/s, is written as a table that can be read."""
    observe(("bert", "n1", 0.1, 0.0))
    head = "application,gpus,type,relative_speed\n"
    path = table_at(site, head + "bert,1,a100,2\nbert,1,v100,1\nbert,1,k80,0\n")
    assert invoke(path, "--output", str(site / "known.csv")).exit_code == 0
    found = store.read(str(site / "known.csv"), NOW_S)
    assert [(key.type, entry.steps_per_s > 0, entry.relative) for key, entry in sorted(found.items())] == [
        ("a100", True, False), ("k80", False, False), ("v100", True, False),
    ]  # fmt: skip
    rows = [line.split("|") for line in invoke(str(site / "known.csv"), "-P", "--noheader").stdout.splitlines()]
    assert [row[3].startswith("~") for row in rows[:3]] == [False] * 3


def test_a_bad_table_is_one_line_and_an_exit_code(site: Path) -> None:
    result = invoke(table_at(site, HEAD + "bert,0,a100,8,,,\n"))
    assert isinstance(result.exception, DataError) and result.exception.exit_code == Exit.DATA
    assert str(result.exception).endswith("line 2: gpus = '0' must be a whole number from 1 to 100000")


# -- the file -------------------------------------------------------------------------------


def test_a_csv_table(tmp_path: Path) -> None:
    text = '\ufefftype, gpus,application,relative_speed,steps_per_s\r\nh100,1,*,6,\r\n\r\na100,2,"a, b",,7.5\r\n'
    assert store.read(table_at(tmp_path, text), NOW_S) == {
        ThroughputKey("*", 1, "h100"): Entry(6.0, store.STATED_ERROR, relative=True),
        ThroughputKey("a, b", 2, "a100"): Entry(7.5, store.STATED_ERROR),
    }


def test_a_json_table(tmp_path: Path) -> None:
    rows = [
        {"application": "bert", "gpus": 1, "type": "a100", "steps_per_s": 7, "relative_error": 0.2, "count": 3},
        {"application": "bert", "gpus": 1, "type": "v100", "steps_per_s": 3.5, "measured": "2999-01-01"},
    ]
    path = table_at(tmp_path, json.dumps({"schema": store.SCHEMA, "throughputs": rows}), "t.json")
    assert store.read(path, NOW_S) == {
        ThroughputKey("bert", 1, "a100"): Entry(7.0, 0.2, 3),
        ThroughputKey("bert", 1, "v100"): Entry(3.5, store.STATED_ERROR),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_what_is_written_can_be_read(tmp_path: Path, name: str) -> None:
    entries = {
        ThroughputKey("bert", 1, "a100"): Entry(7.25, 0.125, 3, DAY_S),
        ThroughputKey('odd, "name"', 4, "v100"): Entry(0.0, 0.1),
        ThroughputKey("wrf", 2, "v100"): Entry(2.5, 0.3, relative=True),
    }  # fmt: skip
    path = str(tmp_path / name)
    odd = {ThroughputKey(name, 1, "a100"): Entry(1.0, 0.1) for name in ("anna/a\nb", "anna/ ", "x" * 201)}
    store.write(path, {**entries, **odd}, NOW_S)
    assert store.read(path, NOW_S) == entries
    assert os.stat(path).st_mode & 0o777 == 0o644
    with pytest.raises(DataError, match="cannot be written"):
        store.write(str(tmp_path / "none" / name), entries, NOW_S)


ROW = "bert,1,a100,7,,,\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the header has no application; needed are application,gpus,type,steps_per_s"),
        ("application,gpus,type\n", "has no steps_per_s"),
        ("application,gpus,type,steps_per_s,speed\n", "'speed', which is not a column"),
        ("application,gpus,type,steps_per_s,gpus\n", "has gpus twice"),
        (HEAD + "bert,1,a100\n", "line 2: 3 columns, but the header has 7"),
        (HEAD + 'bert,1,"a100\n', "cannot be read as CSV"),
        (HEAD + ",1,a100,7,,,\n", "line 2: application = '' must be a name"),
        (HEAD + "be\x07rt,1,a100,7,,,\n", "printable"),
        (HEAD + "bert,1.5,a100,7,,,\n", "gpus = '1.5' must be a whole number"),
        (HEAD + "bert,1,a100,fast,,,\n", "steps_per_s = 'fast' must be a number from 0"),
        (HEAD + "bert,1,a100,nan,,,\n", "steps_per_s = 'nan' must be a number"),
        (HEAD + "bert,1,a100,-2,,,\n", "steps_per_s = '-2' must be a number from 0"),
        (HEAD + "bert,1,a100,1e-12,,,\n", "must be 0 \\(cannot run there\\) or at least 1e-09"),
        (HEAD + "bert,1,a100,,,,\n", "one of steps_per_s and relative_speed, not none"),
        ("application,gpus,type,steps_per_s,relative_speed\nbert,1,a100,7,2\n", "not both"),
        (HEAD + "bert,1,a100,7,0,,\n", "relative_error = 0 must be above 0"),
        (HEAD + "bert,1,a100,7,,-1,\n", "count = '-1' must be a whole number from 0"),
        (HEAD + "bert,1,a100,7,,,yesterday\n", "measured = 'yesterday' must be a date"),
        (HEAD + ROW + ROW, "line 3: .* was given before, in line 2"),
        ("application,gpus,type,steps_per_s,relative_speed\nb,1,x,7,\nb,1,y,,2\n", "give all in"),
    ],
)
def test_each_kind_of_bad_csv(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        store.read(table_at(tmp_path, text), NOW_S)
    assert str(caught.value).startswith(f"{tmp_path}/t.csv: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "a table of throughputs is"),
        ('{"schema": "pal.throughputs/1", "throughputs": []}', "a table of throughputs is"),
        (f'{{"schema": "{store.SCHEMA}", "throughputs": [7]}}', "row 1: 7 is not an object"),
        (f'{{"schema": "{store.SCHEMA}", "throughputs": [{{"application": "a"}}]}}', "row 1 has no gpus"),
        (
            f'{{"schema": "{store.SCHEMA}", "throughputs": '
            '[{"application": "a", "gpus": true, "type": "t", "steps_per_s": 1}]}',
            "gpus = True must be a whole number",
        ),
        (
            f'{{"schema": "{store.SCHEMA}", "throughputs": '
            '[{"application": 3, "gpus": 1, "type": "t", "steps_per_s": 1}]}',
            "application = 3 must be a name",
        ),
    ],
)
def test_each_kind_of_bad_json(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        store.read(table_at(tmp_path, text, "t.json"), NOW_S)


def test_files_that_are_not_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        store.read(str(tmp_path / "none.csv"), NOW_S)
    path = Path(table_at(tmp_path, TABLE))
    path.write_bytes(b"\xff" + TABLE.encode())
    with pytest.raises(DataError, match="byte 1 is not UTF-8"):
        store.read(str(path), NOW_S)
    path.chmod(0o666)
    with pytest.raises(DataError, match="can be written by everyone"):
        store.read(str(path), NOW_S)


@given(text=st.text(max_size=200), name=st.sampled_from(["t.csv", "t.json"]))
def test_no_text_leads_to_anything_but_a_table_or_an_error(
    text: str, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / name
    path.write_text(HEAD + text if name == "t.csv" else text, encoding="utf-8", errors="replace", newline="")
    path.chmod(0o644)
    try:
        store.read(str(path), NOW_S)
    except DataError as error:
        assert str(error)
    finally:
        path.unlink()
