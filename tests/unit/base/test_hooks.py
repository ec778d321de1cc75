# SPDX-License-Identifier: MIT
"""Programs of the site that are told what has happened: what they get, and what they cannot do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base import hooks
from slurm_pal.base.config import Config


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    hooks.wait()


def hook(folder: Path, text: str, name: str = hooks.ON_MOVE) -> Config:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    config = Config()
    config.set("hooks", name, str(path), "pal.toml")
    return config


def test_it_gets_its_name_one_object_and_little_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("HOME", "/home/u")
    config = hook(
        tmp_path, f"cat > {tmp_path}/got; echo $1 > {tmp_path}/name; env > {tmp_path}/env; pwd > {tmp_path}/cwd"
    )
    hooks.call(config, hooks.ON_MOVE, {"what": "moved", "job_id": 7, "name": "$(rm -rf /)"}, 12.3456)
    hooks.wait()
    got = json.loads((tmp_path / "got").read_text())
    assert got == {
        "schema": "pal.hook/1", "hook": "on_move", "at_s": 12.346, "what": "moved", "job_id": 7, "name": "$(rm -rf /)",
    }  # fmt: skip
    assert (tmp_path / "name").read_text() == "on_move\n" and (tmp_path / "cwd").read_text() == "/\n"
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert env["HOME"] == "/home/u" and env["PATH"] == "/usr/bin:/bin" and not {"SECRET", "LD_PRELOAD"} & set(env)


def test_nobody_waits_for_it_and_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hooks, "LIMIT_S", 1)
    config = hook(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    hooks.call(config, hooks.ON_MOVE, {}, 0.0)  # returns at once
    hooks.wait()
    assert "hooks.on_move was ended after 1 s" in capfd.readouterr().err
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")


def test_as_many_as_are_let_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hooks, "MOST_AT_ONCE", 2)
    config = hook(
        tmp_path, f"cat > /dev/null; mktemp -p {tmp_path} ran.XXXX; until [ -e {tmp_path}/go ]; do sleep .1; done"
    )
    for _ in range(3):
        hooks.call(config, hooks.ON_MOVE, {}, 0.0)
    assert "hooks.on_move was not run: 2 hooks run already" in capfd.readouterr().err
    (tmp_path / "go").touch()
    hooks.wait()
    assert len(list(tmp_path.glob("ran.*"))) == 2


def test_what_fails_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = hook(tmp_path, "exit 3")
    hooks.call(config, hooks.ON_MOVE, {}, 0.0)
    hooks.wait()
    assert capfd.readouterr().err == "slurm-pal: hooks.on_move ended with exit status 3\n"
    hooks.call(config, hooks.ON_SWEEP, {}, 0.0)  # nothing is set for it
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("mode", "path", "origin", "words"),
    [
        (0o755, "hook", "pal.toml", "a hook needs a whole path"),
        (0o644, "", "pal.toml", "cannot be executed: chmod +x"),
        (0o757, "", "pal.toml", "can be written by everyone: chmod o-w"),
        (0o755, "/nonexistent/hook", "pal.toml", "No such file or directory"),
        (0o755, "/", "pal.toml", "is not a regular file"),
        (0o755, "", "$SLURM_PAL_HOOKS_ON_MOVE", "hooks are believed from pal.toml only"),
    ],
)
def test_what_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: int, path: str, origin: str, words: str
) -> None:
    config = hook(tmp_path, f"touch {tmp_path}/ran")
    (tmp_path / "hook").chmod(mode)
    config.set("hooks", hooks.ON_MOVE, path or str(tmp_path / "hook"), origin)
    hooks.call(config, hooks.ON_MOVE, {}, 0.0)
    hooks.wait()
    said = capfd.readouterr().err
    assert said.startswith("slurm-pal: hooks.on_move was not run: ") and words in said and said.count("\n") == 1
    assert not (tmp_path / "ran").exists()
