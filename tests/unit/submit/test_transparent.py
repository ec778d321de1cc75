# SPDX-License-Identifier: MIT
"""Transparent checkpoints: which jobs get them and why not, and the wrapper with a stand-in for CRIU."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.submit import auto_checkpoint, transparent
from slurm_pal.submit.argv import no_site_options, parse
from slurm_pal.submit.auto_checkpoint import Means
from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.choice import choice, moving
from slurm_pal.submit.script import scan

from .test_checkpoint import Job
from .test_recipes import pal

APART = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "slave", "--mount-proc"]
APART += [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made, images, program = Config(), tmp_path / "images", tmp_path / "criu"
    images.mkdir()
    images.chmod(0o1777)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    made.set("submit", "checkpoint_images", str(images), "test")
    made.set("submit", "criu", str(program), "test")
    return made


def found(
    config: Config, *words: str, script: str = "#!/bin/bash\npython3 work.py\n", elastic: bool = False
) -> tuple[Means, list[str]]:
    line, read, warnings = parse([*words, "job.sh"], no_site_options), scan(script.encode()), list[str]()
    read = read._replace(body=script.encode())
    asked = moving(choice(line), {}, read.pal, warnings)
    among = auto_checkpoint.wanted(asked, line, {}, read, config)
    assert among is not None
    found = auto_checkpoint.found(asked, line, {}, read, config, elastic, among, warnings)
    assert found is not None
    return found, warnings


def test_its_place_in_auto(config: Config) -> None:
    means, _ = found(config, "--pal-checkpoint=auto")
    assert (means.name, means.moving.checkpoint, means.moving.movable) == ("transparent", "transparent", True)
    assert found(config, "--pal-checkpoint=auto", script="#!/bin/bash\ngmx mdrun -cpi\n")[0].name == "recipe gromacs"
    assert found(config, "--pal-checkpoint=auto", script="#!/bin/bash\n#PAL checkpoint=a\n")[0].name == "command"
    assert found(Config(), "--pal-checkpoint=auto")[0].name == "none"
    means, _ = found(config, "--pal-checkpoint=auto", "--gpus=1")  # it would fail each time
    assert means.name == "none" and means.why.endswith("CRIU's plug-in for CUDA or cuda-checkpoint is not here")
    assert found(config, "--pal-checkpoint=auto", "--pal-movable", "-N2")[0].name == "requeue"
    means, _ = found(config, "--pal-checkpoint=transparent:hold", "--gpus=1", script="#!/usr/bin/python3\n# srun x\n")
    assert (means.name, means.moving.checkpoint) == ("transparent", "transparent:hold")


@pytest.mark.parametrize(
    ("words", "script", "lacks"),
    [
        (["-N2"], "", "the job asks for --nodes=2"),
        (["-N1-4"], "", "the job asks for --nodes=1-4"),
        (["-n4"], "", "the job asks for --ntasks=4"),
        (["--ntasks-per-node=2"], "", "the job asks for --ntasks-per-node=2"),
        ([], "#SBATCH --nodes=2\n", "the job asks for --nodes=2"),
        ([], "cd x && time srun ./a\n", "line 2: processes that srun starts"),
        ([], "true\nif mpirun -np 4 ./a; then true; fi\n", "line 3: processes that mpirun starts"),
    ],
)
def test_a_job_that_cannot_have_them_is_refused(words: list[str], script: str, lacks: str, config: Config) -> None:
    with pytest.raises(UsageError, match="checkpoint 'transparent': ") as refused:
        found(config, "--pal-checkpoint=transparent", *words, script=f"#!/bin/bash\n{script}")
    assert lacks in str(refused.value)


def test_what_looks_alike_is_not_refused(config: Config) -> None:
    for script in ("# srun x\n", "echo srun\n", "./srunner\n", "#SBATCH -N1 -n1\n"):
        assert found(config, "--pal-checkpoint=transparent", script=f"#!/bin/bash\n{script}")[0].name == "transparent"
    with pytest.raises(UsageError, match="an elastic job"):
        found(config, "--pal-checkpoint=transparent", elastic=True)
    with pytest.raises(UsageError, match="'transparent:holt' is neither transparent nor transparent:hold"):
        found(config, "--pal-checkpoint=transparent:holt")


@pytest.mark.parametrize(
    ("key", "value", "lacks"),
    [
        ("checkpoint_images", "", "the site has no folder for images (submit.checkpoint_images)"),
        ("checkpoint_images", "images", "submit.checkpoint_images = 'images' is not an absolute path"),
        ("checkpoint_images", "{}/none", "{}/none: No such file or directory (submit.checkpoint_images)"),
        ("checkpoint_images", "{}/criu", "{}/criu is no folder (submit.checkpoint_images)"),
        ("checkpoint_images", "{}/open", "{}/open has no sticky bit: others could replace a user's images (chmod +t)"),
        ("criu", "criu", "submit.criu = 'criu' is not an absolute path"),
        ("criu", "{}/none", "there is no program {}/none (submit.criu)"),
    ],
)
def test_a_site_that_cannot(key: str, value: str, lacks: str, config: Config, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    config.set("submit", key, value.format(tmp_path), "test")
    with pytest.raises(UsageError) as refused:
        found(config, "--pal-checkpoint=transparent")
    assert str(refused.value) == f"checkpoint 'transparent': {lacks.format(tmp_path)}"


def test_the_sites_words_are_data(config: Config) -> None:
    hostile = "/it's $(touch pwned) `touch pwned` @CRIU@"
    config.set("submit", "checkpoint_images", hostile, "test")
    text = transparent.part("transparent:hold", config) + b'printf %s "$pal_images|$pal_hold"'
    assert subprocess.run(["bash", "-c", text], capture_output=True, check=True).stdout.decode() == f"{hostile}|1"


CRIU = """#!/bin/bash
action=$1
while [ $# != 0 ]; do
  case $1 in --images-dir) images=$2 ;; --pidfile) pid=$2 ;; esac
  shift
done
if [ -e "ROOT/$action.fails" ]; then
  echo "(00.1) Error (criu/x.c:1): a reason" > "$images/$action.log"
  exit 1
fi
if [ "$action" = restore ]; then
  echo "$$" > "$pid"
  echo restored
  echo 4 > "${images%/*}/status"
fi
"""
BODY = """#!/bin/bash
echo begins
touch begun
until [ -e stop ]; do sleep 0.05; done
exit 3
"""
ASKS = '#!/bin/sh\ncase "$*" in *%i*) exit 1;; *%k*) cat "$COMMENT"; echo;; esac\n'
TELLS = """#!/bin/sh
echo "$*" >> told
[ "$1" != update ] || printf %s "${3#Comment=}" > "$COMMENT"
"""


@pytest.fixture
def start(config: Config, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this account may make no namespaces")
    jobs: list[Job] = []
    (tmp_path / "criu").write_text(CRIU.replace("ROOT", str(tmp_path)))

    def begin(said: str = "transparent", restarts: int = 0) -> Job:
        part = transparent.part(said, config)
        jobs.append(Job(tmp_path, BODY.encode(), said, restarts=restarts, slurm=(ASKS, TELLS), part=part, requeue_s=1))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def begun(job: Job) -> None:
    job.until("begun")
    (job.root / "begun").unlink()


def left(job: Job) -> list[str]:
    return [path.name for path in (job.root / "images").glob("pal.*/*/*")]


def test_it_goes_on_where_no_requeue_comes(start: Callable[..., Job]) -> None:
    job = start()
    begun(job)
    job.checkpoint("0.1")
    status, out, err = job.end()
    assert (status, out) == (4, b"begins\nrestored\n") and b"it goes on from its image" in err
    assert left(job) == []


def test_or_after_it(start: Callable[..., Job]) -> None:
    job = start()
    begun(job)
    job.checkpoint("0.1")
    job.process.terminate()  # as Slurm does when it requeues the job
    assert job.end()[0] in (143, -15) and "image.1" in left(job)
    assert start(restarts=1).end()[:2] == (4, b"restored\n") and left(job) == []


def test_a_new_job_of_its_number_begins(start: Callable[..., Job]) -> None:
    job = start()
    begun(job)
    job.checkpoint("0.1")
    job.process.terminate()
    job.end()
    job = start()
    begun(job)
    (job.root / "stop").touch()
    assert job.end()[:2] == (3, b"begins\n")


def test_a_refusal_costs_the_checkpoint(start: Callable[..., Job]) -> None:
    job = start()
    begun(job)
    (job.root / "dump.fails").touch()
    job.checkpoint("0.1;failed=1")
    (job.root / "dump.fails").unlink()
    (job.root / "stop").touch()
    status, out, err = job.end()
    assert (status, out) == (3, b"begins\n") and b"palsub: no checkpoint: (00.1) Error (criu/x.c:1): a reason" in err


def test_what_cannot_be_restored(start: Callable[..., Job]) -> None:
    job = start()
    begun(job)
    job.checkpoint("0.1")
    (job.root / "restore.fails").touch()
    begun(job)
    (job.root / "stop").touch()
    status, out, err = job.end()
    assert (status, out) == (3, b"begins\nbegins\n") and b"a reason; the job begins anew" in err
    assert left(job) == []


def test_or_it_is_held(start: Callable[..., Job]) -> None:
    job = start("transparent:hold")
    (job.root / "restore.fails").touch()
    begun(job)
    job.checkpoint("0.1")
    status, out, err = job.end()
    assert (status, out) == (1, b"begins\n") and b"the job is held, and its image is kept" in err
    assert "image.1" in left(job) and "requeuehold 77" in (job.root / "told").read_text()


@pytest.mark.parametrize(("hold", "again"), [(False, b"begins\n"), (True, b"")])
def test_a_node_without_criu(hold: bool, again: bytes, start: Callable[..., Job]) -> None:
    """The job runs as ever; it has no checkpoints, and its image is not forgotten where that is to be kept."""
    said = "transparent:hold" if hold else "transparent"
    job = start(said)
    begun(job)
    job.checkpoint("0.1")
    job.process.terminate()
    job.end()
    (job.root / "criu").chmod(0o644)
    job = start(said, restarts=1)
    if not hold:
        begun(job)
        job.checkpoint("1.1;failed=1")
        (job.root / "stop").touch()
    status, out, err = job.end()
    assert (status, out) == (1 if hold else 3, again) and b"there is no " in err
    assert ("image.1" in left(job)) is hold


def test_a_folder_of_somebody_else_is_not_used(start: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "images" / f"pal.{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    job = start()
    begun(job)
    job.checkpoint("0.1;failed=1")
    (job.root / "stop").touch()
    status, _, err = job.end()
    assert status == 3 and b"is no folder of yours" in err and list((tmp_path / "elsewhere").iterdir()) == []


def test_nothing_is_started_at_submission(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    for name in ("posix_spawn", "fork", "execv"):
        monkeypatch.setattr(os, name, never)
    monkeypatch.setattr(subprocess, "Popen", never)
    begun_s = time.perf_counter()
    assert found(config, "--pal-checkpoint=transparent")[0].name == "transparent"
    assert time.perf_counter() - begun_s < 5


def test_pal_recipes_says_so(config: Config, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n./work\n")
    for images, holds in ((config.text("submit", "checkpoint_images"), True), ("", False)):
        env = {"SLURM_PAL_SUBMIT_CHECKPOINT_IMAGES": images, "SLURM_PAL_SUBMIT_CRIU": config.text("submit", "criu")}
        shown = [pal("--check", "job.sh", *words, folder=tmp_path, env=env) for words in ((), ("--json",))]
        assert {done.returncode for done in shown} == {0 if holds else 1}
        assert "transparent: " in shown[0].stdout and ("not transparent: " in shown[0].stdout) is not holds
        assert json.loads(shown[1].stdout)["transparent"] is holds


def test_the_part_is_a_shell_script(config: Config) -> None:
    text = render(b"#!/bin/sh\n", "transparent", part=transparent.part("transparent", config))
    subprocess.run(["bash", "-n"], input=text, check=True)
