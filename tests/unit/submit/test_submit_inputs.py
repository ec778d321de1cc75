# SPDX-License-Identifier: MIT
"""Inputs of a submission: stated or guessed paths, the site's table, local copies that jobs report."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_pal.base import data_places
from slurm_pal.base.config import Config
from slurm_pal.base.data_places import DataPlace
from slurm_pal.base.errors import UsageError
from slurm_pal.cli.pal import pal
from slurm_pal.submit import argv, choice, copies, inputs
from slurm_pal.submit.script import scan

from ...doubles.partition_site import node

NODES = [node("n0"), node("n1", features=frozenset({"nvme"})), node("n2")]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_table() -> None:
    assert data_places.parse("/d", "nodes=n[0-3],n7 gib_per_s=2") == DataPlace("n[0-3],n7", "", 2.0)
    assert data_places.parse("/d", "feature=nvme") == DataPlace("", "nvme", 1.0)
    for prefix, value in (("d", "nodes=a"), ("/d", ""), ("/d", "nodes=a feature=b"), ("/d", "nodes"), ("/d", "what=1"),
                          ("/d", "nodes=a gib_per_s=0"), ("/d", "nodes=a gib_per_s=x"), ("/d", 3)):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            data_places.parse(prefix, value)


def test_the_longest_prefix_counts_by_whole_parts() -> None:
    table = {"/data": DataPlace("n0"), "/data/set": DataPlace("n1")}
    assert inputs.place_of("/data/set/a", table) == table["/data/set"]
    assert inputs.place_of("/data/settle", table) == table["/data"]
    assert inputs.place_of("/database", table) is None


def paths(*words: str, script: str = "#!/bin/sh\nrun\n", **table: str) -> tuple[list[str], bool]:
    config = Config()
    config.data = {f"/{name}": data_places.parse(f"/{name}", value) for name, value in table.items()}
    line = argv.parse([*words, "job.sh"])
    read = scan(script.encode())._replace(body=script.encode())
    return inputs.paths(choice.choice(line), {}, read, config)


def test_what_is_stated_counts_and_guesses_are_few() -> None:
    assert paths("--pal-input=/a,/b") == (["/a", "/b"], True)
    assert paths(script="#!/bin/sh\n#PAL input=/c/../d\nrun\n") == (["/d"], True)
    body = "#!/bin/sh\n# cp /no /no\ntar xf /data/a.tar\ncp $HOME/x /data/b\nrun --data-dir=/data/c --data /data/e\n"
    assert paths(script=body) == ([], False)
    assert paths(script=body, data="nodes=n0") == (["/data/a.tar", "/data/b", "/data/c", "/data/e"], False)
    assert paths(script="#!/bin/sh\necho --data=$(rm -rf /) > /data/x; rsync /data/*.gz .\n", data="nodes=n0") == (
        [],
        False,
    )


def test_nodes_that_have_it(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 4096)
    config, said = Config(), list[str]()
    config.data = {str(tmp_path): DataPlace("", "nvme", 2.0)}
    found = inputs.nearness([str(folder)], True, config, NODES, 0.0, said)
    assert found is not None and found.whole == 4096 and found.seconds(("n1",)) == 0.0 < found.seconds(("n0",))
    assert inputs.nearness(["/not/there"], True, config, NODES, 0.0, said) is None and "cannot be looked at" in said[0]
    assert inputs.nearness(["/not/there"], False, config, NODES, 0.0, []) is None


def test_a_job_reports_its_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(b"x" * 1000)
    run = CliRunner()
    outside = run.invoke(pal, ["have", "/data/set"])
    assert isinstance(outside.exception, UsageError) and "no job" in str(outside.exception)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert run.invoke(pal, ["have", "/data/set", "--at", str(copy)]).exit_code == 0
    assert isinstance(run.invoke(pal, ["have", "/not/there"]).exception, UsageError)
    assert isinstance(run.invoke(pal, ["have", "/a", "/b", "--at", str(copy)]).exception, UsageError)
    found = inputs.nearness(["/data/set/part"], True, Config(), NODES, 1e9, said := [])
    assert found is not None and found.seconds(("n2",)) == 0.0 and not said
    assert run.invoke(pal, ["have", "/data/set", "--gone"]).exit_code == 0
    assert copies.covers(copies.read(0.0)["n2"], "/data/set") == 0


def test_copies_are_believed_for_a_week(tmp_path: Path) -> None:
    copies.add("n0", {"/d": 10}, 1000.0)
    assert copies.covers(copies.read(1000.0 + copies.BELIEVED_S)["n0"], "/d/x") == 10
    assert copies.read(1001.0 + copies.BELIEVED_S)["n0"] == {}
    file = next((tmp_path / "state").rglob("n0.json"))
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text('{"schema": "pal.copies/1", "copies": [1]}')
    assert copies.read(0.0) == {"n0": {}}
