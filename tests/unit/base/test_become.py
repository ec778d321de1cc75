# SPDX-License-Identifier: MIT
"""root gives its powers up before it touches files that are SlurmUser's, and only then."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_pal.base import become as giving_up

NOBODY = pwd.getpwnam("nobody")


class Process:
    """Stands in for `os`: a process of `uid`, a state directory of `owner` (None: not there), and what was given up."""

    def __init__(self, uid: int, owner: int | None) -> None:
        self._uid, self._owner = uid, owner
        self.done: list[tuple[str, object]] = []

    def geteuid(self) -> int:
        return self._uid

    def stat(self, path: str) -> SimpleNamespace:
        if self._owner is None:
            raise FileNotFoundError(path)
        return SimpleNamespace(st_uid=self._owner)

    def initgroups(self, user: str, gid: int) -> None:
        self.done.append(("initgroups", (user, gid)))

    def setgid(self, gid: int) -> None:
        self.done.append(("setgid", gid))

    def setuid(self, uid: int) -> None:
        self.done.append(("setuid", uid))


def become(monkeypatch: pytest.MonkeyPatch, process: Process) -> list[tuple[str, object]]:
    monkeypatch.setattr(giving_up, "os", process)
    giving_up.slurm_user()
    return process.done


@pytest.fixture
def slurm_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text("SlurmUser=nobody\n")
    monkeypatch.setenv("SLURM_CONF", str(path))
    monkeypatch.delenv("SLURM_PAL_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_PAL_PATHS_STATE_DIR", str(tmp_path / "state"))
    return path


def test_root_becomes_slurm_user_where_the_files_are_his(slurm_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid, gid = NOBODY.pw_uid, NOBODY.pw_gid
    # The groups first: without uid 0 they could no longer be given up.
    wanted = [("initgroups", ("nobody", gid)), ("setgid", gid), ("setuid", uid)]
    assert become(monkeypatch, Process(0, uid)) == wanted


@pytest.mark.parametrize(
    ("uid", "owner", "slurm_user"),
    [
        (0, 0, "nobody"),  # the files are root's
        (0, 1, "nobody"),  # or somebody else's
        (0, None, "nobody"),  # or not there yet
        (0, 0, "root"),
        (0, NOBODY.pw_uid, "no_such_user"),
        (NOBODY.pw_uid, NOBODY.pw_uid, "nobody"),  # SlurmUser already
        (1, NOBODY.pw_uid, "nobody"),
    ],
)
def test_everybody_else_stays_who_he_is(
    slurm_conf: Path, monkeypatch: pytest.MonkeyPatch, uid: int, owner: int | None, slurm_user: str
) -> None:
    slurm_conf.write_text(f"SlurmUser={slurm_user}\n")
    assert become(monkeypatch, Process(uid, owner)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has powers to give up")
def test_nothing_of_root_is_left(slurm_conf: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", NOBODY.pw_uid, NOBODY.pw_gid)
    program = (
        "import os\nfrom slurm_pal.base import become\nbecome.slurm_user()\n"
        "print(*os.getresuid(), *os.getresgid(), *os.getgroups())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*[str(NOBODY.pw_uid)] * 3, *[str(NOBODY.pw_gid)] * 4]
