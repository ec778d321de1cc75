# SPDX-License-Identifier: MIT
"""The commands of `pal lab` that need no running Slurm: what they print and refuse."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.errors import MissingPackageError, PalError, UsageError
from slurm_pal.cli.lab import lab
from slurm_pal.emulation import gpus
from slurm_pal.lab.conf import node_names
from slurm_pal.lab.directory import LabDirectory


def invoke(*argv: str) -> Result:
    return CliRunner().invoke(lab, list(argv))


def refused(*argv: str) -> str:
    """The one line of the error, which the program `pal` prints."""
    error = invoke(*argv).exception
    assert isinstance(error, PalError)
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabDirectory:
    """The files of a lab that does not run."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    made = LabDirectory(str(tmp_path / "lab"))
    made.make()
    made.write_facts({"nodes": 2, "gpus": 2, "seed": 1, "port": 17000, "slurm": "22.05"})
    made.make_rooms(2)
    gpus.write_registry(made.registry, gpus.draw_registry(node_names(2), 2, 1))
    return made


@pytest.mark.parametrize("command", ["", *sorted(lab.commands)])
def test_help(command: str) -> None:
    result = invoke(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: lab {command}".rstrip())
    described = lab.commands[command].help if command else lab.help
    assert described
    assert described.split("\n")[0] in " ".join(result.output.split())  # lines are wrapped


def test_every_option_is_explained() -> None:
    for command in lab.commands.values():
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"{command.name} {parameter.name}"


def test_env_quotes_for_a_shell(stopped: LabDirectory) -> None:
    output = invoke("env", "--dir", stopped.path).output
    done = subprocess.run(
        ["sh", "-c", output + 'printf "%s\\n" "$SLURM_CONF" "$SLURM_PAL_CONFIG"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [stopped.conf, stopped.pal_toml]
    assert all(shlex.split(line)[0] == "export" for line in output.splitlines())


def test_env_without_a_lab(tmp_path: Path) -> None:
    assert f"there is no lab in {tmp_path}: pal lab up --dir {tmp_path}" == refused("env", "--dir", str(tmp_path))


def test_status_of_a_lab_that_does_not_run(stopped: LabDirectory) -> None:
    shown = invoke("status", "--dir", stopped.path)
    assert (shown.exit_code, shown.output) == (1, f"no lab runs in {stopped.path}\n")
    table = json.loads(invoke("status", "--dir", stopped.path, "--json").output)
    assert table == {
        "schema": "pal.lab-status/1",
        "directory": stopped.path,
        "state": "down",
        "nodes": 2,
        "gpus_per_node": 2,
        "seed": 1,
        "slurm": "22.05",
        "port": 17000,
        "daemons": {"munged": 0, "slurmctld": 0, "slurmd": 0},
        "node_states": {},
        "jobs": {},
    }


def test_gpus_reveals_the_truth(stopped: LabDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = gpus.load_registry(stopped.registry)
    lines = invoke("gpus", "--dir", stopped.path).output.splitlines()
    assert lines[0].split() == ["NODE", "GPU", "UUID", "A", "B", "C", "FAULTS"]
    first = registry.gpus[0]
    assert lines[1].split() == ["n0", "0", first.uuid, *(f"{first.slowdown[c]:.4f}" for c in "ABC"), "-"]
    assert len(lines) == 5
    bare = invoke("gpus", "--noheader", "--dir", stopped.path).output.splitlines()
    assert [line.split() for line in bare] == [line.split() for line in lines[1:]]
    table = json.loads(invoke("gpus", "--dir", stopped.path, "--json").output)
    assert (table["schema"], table["seed"]) == ("pal.lab-gpus/1", 1)
    assert table["gpus"] == [gpu._asdict() for gpu in registry.gpus]
    monkeypatch.setenv("SLURM_CONF", stopped.conf)
    assert invoke("gpus").output.splitlines() == lines


def test_help_names_every_fault() -> None:
    said = invoke("fault", "--help").output
    assert all(f"    {name}: " in said for name in gpus.FLAGS)
    assert all(f"    {name} FACTOR: " in said for name in gpus.FACTORS)


def test_faults_and_swaps(stopped: LabDirectory) -> None:
    where = ["--dir", stopped.path]
    assert invoke("fault", "n0:1", "ecc", *where).output.endswith(" faults: ecc\n")
    assert invoke("fault", "n0:1", "drift", "1.3", *where).output.endswith(" faults: ecc,drift=1.3\n")
    assert invoke("swap", "n0:1", "n1:0", *where).output == "n0:1 and n1:0 exchanged\n"
    assert invoke("gpus", "--noheader", *where).output.splitlines()[2].endswith("  ecc,drift=1.3")
    uuid = gpus.load_registry(stopped.registry).gpu("n1", 0).uuid
    assert invoke("fault", uuid[:12], "drift", "off", *where).output == f"n1:0 {uuid} faults: ecc\n"
    assert invoke("fault", uuid, "ecc", "off", *where).output == f"n1:0 {uuid} faults: -\n"
    assert invoke("swap", uuid, "n0:1", *where).output == "n1:0 and n0:1 exchanged\n"
    assert gpus.load_registry(stopped.registry).gpu("n0", 1).uuid == uuid


def test_node_and_index_as_two_words(stopped: LabDirectory) -> None:
    where = ["--dir", stopped.path]
    found = invoke("fault", "n0", "1", "ecc", *where)
    assert (found.output.split()[0], found.output.endswith(" faults: ecc\n"), found.stderr) == ("n0:1", True, "")
    assert invoke("fault", "n0", *where, "1", "drift", "1.3").output.endswith(" faults: ecc,drift=1.3\n")
    assert invoke("fault", "n0", "1", "drift", "off", *where).output.endswith(" faults: ecc\n")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["fault", "n0", "1", "drift"], "fault drift needs a factor"),
        (["fault", "n0", "1", "drift", "much"], "VALUE 'much' must be a factor like 1.3, or off"),
        (["fault", "n0", "1", "ecc", "2"], "fault ecc takes no value"),
        (["fault", "n0", "1", "rust"], "fault 'rust' is not one of hang,"),
        (["fault", "n9", "1", "ecc"], "no GPU 'n9:1': the nodes are n[0-1]; write NODE:INDEX"),
        (["fault", "n0:1", "drift", "1.3", "4"], "give a GPU, a fault and perhaps a value (4 given)"),
        (["fault", "n0:1"], "give a GPU, a fault and perhaps a value (1 given)"),
        (["fault", "n0", "x", "ecc"], "no GPU 'n0': that node has n"),
        (["swap", "n0", "n1:0"], "no GPU 'n0': that node has n"),
        (["swap", "n0:0", "n1:x"], "no GPU 'n1:x': that node has n"),
        (["swap", "n0:0", "n1:7"], "no GPU 'n1:7': that node has n"),
    ],
)
def test_what_cannot_be_done_changes_nothing(stopped: LabDirectory, argv: list[str], complaint: str) -> None:
    before = Path(stopped.registry).read_bytes()
    assert complaint in refused(*argv, "--dir", stopped.path)
    assert Path(stopped.registry).read_bytes() == before


def test_work_outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "not inside a Slurm job" in refused("work", "--class", "A", "--seconds", "1")
    assert "--class 'Z' is not one of A, B, C" in refused("work", "--class", "Z")


def test_up_checks_before_it_makes_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_pal.lab import lab as lab_module

    def absent(*_: bool) -> dict[str, str]:
        raise MissingPackageError("a lab needs slurmd")

    assert "--nodes 0 must be in 1..2000" in refused("up", "--dir", str(tmp_path / "l"), "--nodes", "0")
    assert "may have 107" in refused("up", "--dir", str(tmp_path / ("l" * 100)))
    monkeypatch.setattr(lab_module, "find_programs", absent)
    monkeypatch.setattr(LabDirectory, "check_name", lambda self: None)  # tmp_path may be too long
    assert refused("up", "--dir", str(tmp_path / "l")) == "a lab needs slurmd"
    assert list(tmp_path.iterdir()) == []


def test_down_of_nothing_is_fine_and_of_something_else_is_not(tmp_path: Path) -> None:
    nothing = invoke("down", "--dir", str(tmp_path / "none"))
    assert (nothing.exit_code, nothing.output) == (0, f"0 processes ended, 0 jobs cancelled: {tmp_path}/none\n")
    (tmp_path / "mine").write_text("")
    error = invoke("down", "--dir", str(tmp_path)).exception
    assert isinstance(error, UsageError)
    assert (tmp_path / "mine").exists()


def test_status_and_down_mean_the_lab_of_this_shell(
    stopped: LabDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    default = f"{tmp_path}/state/slurm-pal/lab"
    monkeypatch.setenv("SLURM_CONF", stopped.conf)
    monkeypatch.setenv("SLURM_PAL_CONFIG", stopped.pal_toml)
    assert invoke("status").output == f"no lab runs in {stopped.path}\n"
    assert invoke("status", "--dir", str(tmp_path / "other")).output == f"no lab runs in {tmp_path}/other\n"
    assert invoke("down").exit_code == 0 and not stopped.exists()
    os.makedirs(default)
    Path(default, "mine").write_text("what pal lab down would complain about")
    again = invoke("down")  # that lab is gone; the default one is not meant
    assert (again.exit_code, again.output.rpartition(": ")[2]) == (0, f"{stopped.path}\n")
    for name in ("SLURM_CONF", "SLURM_PAL_CONFIG"):
        monkeypatch.delenv(name)
    assert isinstance(invoke("down").exception, UsageError)


@pytest.mark.parametrize("pal_toml", ["etc/pal.toml", "elsewhere.toml"])
def test_a_real_cluster_is_no_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pal_toml: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "slurm.conf").write_text("ClusterName=c\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "etc" / "slurm.conf"))
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(tmp_path / pal_toml))
    assert invoke("status").output == f"no lab runs in {tmp_path}/state/slurm-pal/lab\n"


def test_down_removes_a_lab_that_does_not_run(stopped: LabDirectory) -> None:
    assert invoke("down", "--dir", stopped.path, "--keep").exit_code == 0
    assert stopped.is_lab()
    assert invoke("down", "--dir", stopped.path).exit_code == 0
    assert not stopped.exists()
