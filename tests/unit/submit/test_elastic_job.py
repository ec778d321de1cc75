# SPDX-License-Identifier: MIT
"""What base job and companions do beside the script, beside a Slurm that only answers as a test wants it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.elastic import Elastic, part

from ...doubles.processes import in_session

PATIENCE_S = 30.0
SQUEUE = """#!/bin/sh
[ "$1 $2 $4" = "-h -j -O" ] || exit 9
echo >> "$SITE/asked"
[ ! -e "$SITE/mute" ] || exit 1
cat "$SITE/job.$3"
"""
NOTES = '#!/bin/sh\necho "${0##*/} $*" >> "$SITE/orders"\n[ ! -e "$SITE/refuse" ]\n'
SCRIPT = "#!/bin/bash\necho $$ >> begun\nuntil [ -e stop ]; do sleep 0.05; done\nexit 4\n"


class Site:
    """A directory with Slurm's commands, in which jobs run."""

    def __init__(self, root: Path) -> None:
        self.root, self.jobs = root, list[subprocess.Popen[bytes]]()
        for name in ("bin", "tmp"):
            (root / name).mkdir()
        for name, text in (("squeue", SQUEUE), ("scontrol", NOTES), ("scancel", NOTES)):
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        self.folder, self._beats = root / "meet-77", count(1)

    def slurm(self, job: int, said: str) -> None:
        self.write(f"job.{job}", said + "\n")

    def write(self, name: str, text: str) -> None:
        """At once, as Slurm's answers and a job's beats are read."""
        (self.root / "new").write_text(text)
        os.replace(self.root / "new", self.root / name)

    def start(
        self, job: int, base: int | None = None, hook: str = "", script: str = SCRIPT, **environment: str
    ) -> None:
        wanted = Elastic(1, 3, "", hook, f"{self.root}/meet-", beat_s=0.1, stale_s=2, wait_s=3)
        (self.root / f"script.{job}").write_bytes(render(script.encode(), "", part=part(wanted, base)))
        env = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}", "TMPDIR": str(self.root / "tmp"), "SITE": str(self.root),
            "SLURM_JOB_ID": str(job),
        }  # fmt: skip
        argv, pipe = ["/bin/bash", f"script.{job}"], subprocess.PIPE
        begun = subprocess.Popen(
            argv, cwd=self.root, env=env | environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
            start_new_session=True,
        )  # fmt: skip
        self.jobs.append(begun)

    def end(self) -> tuple[int, str]:
        """Exit status and stderr of the last job, which leaves no file of its own."""
        job = self.jobs[-1]
        err = job.communicate(timeout=60)[1].decode()
        assert list((self.root / "tmp").iterdir()) == []
        return job.returncode, err

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, {path.name: path.read_text() for path in self.root.glob("*.*[0-9]")}
            time.sleep(0.02)

    def read(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.root / name).read_text()
        return ""

    def size(self) -> str:
        return self.read("meet-77/workers").strip()

    def heard(self, size: int, *companions: int) -> bool:
        """Whether the size is this, while these companions are heard."""
        for job in companions:
            self.write(f"meet-77/c.{job}", f"0 {job - 100} {next(self._beats)}\n")
        return self.size() == str(size)

    def base_runs(self, beat: int = 1) -> None:
        """Without one: its answer by Slurm, and its file."""
        self.slurm(77, "RUNNING 0")
        self.folder.mkdir(exist_ok=True)
        self.write("meet-77/base", f"0 {beat} host7\n")

    def kill(self) -> None:
        for job in self.jobs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            for pid in in_session(job.pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.kill()


def test_the_base_job_counts_those_it_hears(site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    site.start(77)
    site.until(lambda: site.size() == "1")
    site.write("meet-77/c.105", "1 0 1\n")  # of another run of the base job
    site.write("meet-77/c.106", "nonsense\n")
    site.until(lambda: site.heard(3, 100, 102))
    (site.folder / "c.100").unlink()
    site.until(lambda: site.heard(2, 102))
    site.until(lambda: site.heard(1))
    site.until(lambda: site.heard(2, 102))
    (site.root / "stop").touch()
    assert site.end() == (4, "")
    assert not site.folder.exists()
    assert site.read("orders") == f"scancel --name=pal-elastic-77 --user={os.getuid()}\n"


@pytest.mark.parametrize("variables", [{"BASHOPTS": "failglob:nullglob"}, {"SHELLOPTS": "errexit:nounset:noglob"}])
def test_options_of_the_users_shell_change_nothing(variables: dict[str, str], site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    site.start(
        77,
        script='#!/bin/bash\necho "$SHELLOPTS:$BASHOPTS" >> begun\nuntil test -e stop; do sleep 0.05; done\n',
        **variables,
    )
    site.until(lambda: site.heard(1))
    site.until(lambda: site.heard(2, 100))
    (site.root / "stop").touch()
    assert site.end() == (0, "")
    assert all(f":{option}:" in f":{site.read('begun').strip()}:" for option in "".join(variables.values()).split(":"))


def test_the_hook_runs_once_for_each_change_and_never_twice_at_once(site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    hook = 'echo "in $SLURM_PAL_WORKERS $PAL_PAYLOAD_PID" >> hook; until [ -e go ]; do sleep 0.02; done; '
    hook += "echo out >> hook; exit 5"
    site.start(77, hook=hook)
    site.until(lambda: site.size() == "1" and site.read("begun") != "")
    site.until(lambda: site.heard(2, 100) and site.read("hook").startswith("in 2"))
    site.until(lambda: site.heard(3, 100, 101))
    assert site.read("hook").count("in") == 1
    (site.root / "go").touch()
    site.until(lambda: site.read("hook").count("out") >= 2)
    (site.root / "stop").touch()
    status, err = site.end()
    rows = site.read("hook").split("\n")
    assert [row.split(" ")[0] for row in rows[:4]] == ["in", "out", "in", "out"]
    assert rows[0] == f"in 2 {site.read('begun').strip()}"
    assert status == 4 and err.startswith("palsub: the hook failed with status 5 (2 workers)\n")


def test_a_companion_that_started_anew_elsewhere_ends_here(site: Site) -> None:
    site.base_runs()
    site.start(100, base=77)
    site.until(lambda: site.read("begun") != "")
    # Each beat overwrites the file, and so does the other incarnation.
    site.until(lambda: site.write("meet-77/c.100", "0 1 1\n") is None and site.jobs[-1].poll() is not None)
    assert site.end() == (0, "palsub: this companion ends: it runs elsewhere, too\n")
    assert site.read("orders") == ""


def test_a_base_job_that_is_only_silent_is_not_given_up(site: Site) -> None:
    """Neither where Slurm knows that it runs, nor where Slurm is silent, too."""
    site.base_runs()
    site.start(100, base=77)
    site.until(lambda: site.read("begun") != "")
    (site.root / "mute").touch()
    site.until(lambda: site.read("asked").count("\n") >= 5)  # more than once after it was given up for lost
    assert site.jobs[-1].poll() is None
    (site.root / "mute").unlink()
    (site.folder / "base").unlink()
    site.slurm(77, "COMPLETED 0")
    assert site.end() == (0, "palsub: this companion ends: job 77 has ended\n")
    assert site.read("orders") == f"scancel --state=PENDING --name=pal-elastic-77 --user={os.getuid()}\n"


def test_a_companion_follows_a_base_job_that_starts_anew(site: Site) -> None:
    site.base_runs()
    site.start(100, base=77)
    site.until(lambda: site.read("begun") != "")
    (site.folder / "base").unlink()
    site.slurm(77, "PENDING 1")
    site.until(lambda: site.read("orders") == "scontrol requeue 100\nscontrol update JobId=100 Dependency=after:77\n")
    assert site.jobs[-1].poll() is None  # Slurm ends it
    site.slurm(100, "COMPLETING 1")
    site.jobs[-1].send_signal(signal.SIGTERM)
    assert site.end() in ((143, ""), (-15, ""))
    assert not site.folder.exists()


def test_a_companion_that_cannot_be_requeued_ends(site: Site) -> None:
    site.base_runs()
    site.start(100, base=77)
    site.until(lambda: site.read("begun") != "")
    (site.root / "refuse").touch()
    site.write("meet-77/base", "1 1 host7\n")
    site.slurm(77, "RUNNING 1")
    assert site.end() == (0, "palsub: this companion ends: job 77 starts anew\n")


@pytest.mark.parametrize(
    ("said", "status", "text", "orders"),
    [
        ("COMPLETED 0", 0, "job 77 has ended: this companion has nothing to do", "scancel --state=PENDING"),
        ("", 0, "job 77 has ended: this companion has nothing to do", "scancel --state=PENDING"),
        ("RUNNING 0", 1, "is that on a file system of all nodes?", ""),
        ("COMPLETING 0", 1, "is not to be seen in", ""),
    ],
)
def test_a_companion_without_base_job_does_not_begin(
    said: str, status: int, text: str, orders: str, site: Site
) -> None:
    site.slurm(77, said)
    site.start(100, base=77)
    code, err = site.end()
    assert code == status and text in err and err.count("\n") == 1
    assert site.read("orders").startswith(orders) and site.read("begun") == ""


@pytest.mark.parametrize(("said", "status"), [("RUNNING 0", 9), ("FAILED 0", 0)])
def test_a_companions_failure_counts_unless_its_base_job_is_why(said: str, status: int, site: Site) -> None:
    site.base_runs()
    script = "#!/bin/sh\nuntil [ -e stop ]; do sleep 0.05; done\nexit 9\n"
    site.start(100, base=77, script=script)
    site.until(lambda: site.read("meet-77/c.100") != "")
    site.slurm(77, said)
    (site.root / "stop").touch()
    beat = 1

    def ended() -> bool:
        nonlocal beat
        beat += 1
        if said.startswith("RUNNING"):
            site.base_runs(beat)
        return site.jobs[-1].poll() is not None

    site.until(ended)
    assert site.end()[0] == status


def test_a_signal_of_the_users_ends_nothing(site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    site.start(77, script="#!/bin/bash\ntrap 'echo x >> got' TERM USR1\n" + SCRIPT.partition("\n")[2])
    site.until(lambda: site.read("begun") != "")
    for times, number in enumerate((signal.SIGTERM, signal.SIGUSR1), 1):
        site.jobs[-1].send_signal(number)
        site.until(lambda times=times: site.read("got") == "x\n" * times)
    site.until(lambda: site.heard(2, 100))  # what counts is alive
    assert site.read("orders") == ""
    (site.root / "stop").touch()
    assert site.end() == (4, "")


def test_the_end_by_slurm_dismisses_the_companions_before_the_script_has_ended(site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    site.start(77, script="#!/bin/bash\ntrap '' TERM\n" + SCRIPT.partition("\n")[2])
    site.until(lambda: site.read("begun") != "")
    site.slurm(77, "COMPLETING 0")
    site.jobs[-1].send_signal(signal.SIGTERM)
    site.until(lambda: "scancel --name=pal-elastic-77" in site.read("orders"))
    assert site.jobs[-1].poll() is None and not (site.folder / "base").exists()
    (site.root / "stop").touch()
    assert site.end() == (4, "")


def test_a_requeue_of_the_base_job_leaves_the_companions_in_the_queue(site: Site) -> None:
    site.slurm(77, "RUNNING 0")
    site.start(77)
    site.until(lambda: site.read("begun") != "")
    site.slurm(77, "COMPLETING 1")
    site.jobs[-1].send_signal(signal.SIGTERM)
    assert site.end() in ((143, ""), (-15, ""))
    assert site.read("orders") == "" and [path.name for path in site.folder.iterdir()] == ["workers"]
    (site.root / "stop").touch()
    site.slurm(77, "RUNNING 1")
    site.start(77, SLURM_RESTART_COUNT="1")
    assert site.end() == (4, "")
    assert not site.folder.exists() and "scancel" in site.read("orders")


def test_a_link_in_place_of_the_directory_is_not_followed(site: Site) -> None:
    (site.root / "mine").mkdir()
    (site.root / "mine" / "c.1").touch()
    site.folder.symlink_to(site.root / "mine")
    site.slurm(77, "RUNNING 0")
    (site.root / "stop").touch()
    site.start(77, script='#!/bin/sh\necho "$(cat "$SLURM_PAL_WORKERS_FILE")" > size; exit 4\n')
    status, err = site.end()
    assert status == 4 and "no companion can join" in err
    assert site.read("size") == "1\n" and [path.name for path in (site.root / "mine").iterdir()] == ["c.1"]
