# SPDX-License-Identifier: MIT
"""What would end a process that palsub leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base import survival

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with logind's folders and nothing in them."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name in ("a.d", "b.d", "linger"):
        (tmp_path / name).mkdir()
    places = (str(tmp_path / "a.d"), str(tmp_path / "logind.conf"), str(tmp_path / "b.d"))
    monkeypatch.setattr(survival, "LOGIND", places)
    monkeypatch.setattr(survival, "LINGER", str(tmp_path / "linger"))
    return tmp_path


def group(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    real = survival._text
    monkeypatch.setattr(survival, "_text", lambda path: text if path == "/proc/self/cgroup" else real(path))


@pytest.mark.parametrize(
    "text",
    [
        "1:memory:/slurm/uid_1000/job_17/step_batch/task_0\n",
        "0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n",
        "0::/system.slice/n1_slurmstepd.scope/job_17/step_extern\n",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_extern/user/task_special\n",
    ],
)
def test_inside_a_job(host: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    group(monkeypatch, text)
    assert survival.ends_with() == "this job"


@pytest.mark.parametrize(
    ("place", "ending"),
    [
        ("user.slice/user-1000.slice/user@1000.service/app.slice/nightly.service", "this service"),
        ("user.slice/user-1000.slice/user@1000.service/app.slice/app-term.slice/vte-spawn-1.scope", ""),
        ("user.slice/user-1000.slice/user@1000.service/init.scope", ""),
        ("system.slice/cron.service", ""),
        ("system.slice/sshd.service", ""),
    ],
)
def test_a_service_of_the_users_own(host: Path, monkeypatch: pytest.MonkeyPatch, place: str, ending: str) -> None:
    group(monkeypatch, f"0::/{place}\n")
    assert survival.ends_with() == ending


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        ({"logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, False),
        ({"logind.conf": "[Login]\nKillUserProcesses = yes\n"}, True),
        ({"logind.conf": "KillUserProcesses=yes\n", "b.d/1.conf": "KillUserProcesses=no\n"}, False),
        ({"a.d/1.conf": "KillUserProcesses=on\n", "b.d/readme": "KillUserProcesses=no\n"}, True),
        ({"a.d/1.conf": "KillUserProcesses=1\n", "logind.conf": "[Login]\n"}, True),
    ],
)
def test_a_logout(host: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], kills: bool) -> None:
    for name, text in files.items():
        (host / name).write_text(text)
    group(monkeypatch, SESSION)
    assert survival.ends_with() == ("your login" if kills else "")
    group(monkeypatch, "0::/system.slice/cron.service\n")
    assert survival.ends_with() == ""


def test_who_lingers_stays(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "logind.conf").write_text("KillUserProcesses=yes\n")
    group(monkeypatch, SESSION)
    assert survival.ends_with() == "your login"
    monkeypatch.setattr("pwd.getpwuid", lambda uid: type("Entry", (), {"pw_name": "anna"}))
    (host / "linger" / "anna").touch()
    assert survival.ends_with() == ""
