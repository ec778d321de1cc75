# SPDX-License-Identifier: MIT
"""The SPANK plug-in in sbatch, srun, salloc and slurmstepd of a real Slurm."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import MissingPackageError, UsageError
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import account_name, find_programs

from . import queue_of

pytestmark = pytest.mark.real_slurm

SPANK = Path(__file__).parents[2] / "spank"
PATIENCE_S = 60.0  # how long to wait for what must come; never what a test is about
SCORES = """# pal.gpus/1 epoch=17 written_s=1763712345 cluster=palab
n0 0:A=v1@1.037:B=v0@0.99 1:A=v0@0.98:B=v1@1.02 2:A=v2@1.1 3:A=v0@0.97
n1 0:A=v2@1.2 1:A=v1@1.1 2:A=v0@1.0 3:A=v0@0.9
# end 17
"""
# What the site's filter sees of the options goes where `scontrol show job` shows it.
JOB_SUBMIT = """
function slurm_job_submit(job, partitions, uid)
  local seen = {}
  for i = 0, (job.spank_job_env_size or 0) - 1 do seen[#seen + 1] = job.spank_job_env[i] end
  table.sort(seen)
  job.admin_comment = "seen:" .. table.concat(seen, ",")
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
SHOW = 'echo "class=$SLURM_PAL_CLASS gpus=$SLURM_PAL_GPUS cuda=$CUDA_VISIBLE_DEVICES node=$SLURMD_NODENAME"'


ALLOWED = {
    "class": "A, B or C",
    "app": "1 to 64 letters, digits and _ . -",
    "avoid-slow": "a slowdown between 1.0 and 10, such as 1.10 for GPUs that are 10 % slower than the median",
}


def key(name: str) -> str:
    return f"_SLURM_SPANK_OPTION_pal_pal_{name}"


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what the test waits for did not come"
        time.sleep(queue_of.LOOK_S)


class Site:
    """A lab whose plugstack.conf has the plug-in."""

    def __init__(self, lab: Lab, plugin: Path) -> None:
        self.lab = lab
        self._plugin = plugin
        self.gpus = Path(lab.directory("pal", "gpus.txt"))
        self.output = Path(lab.directory("pal", "out"))
        self.errors = Path(lab.directory("pal", "err"))

    def arguments(self, *words: str) -> None:
        """The plug-in's arguments from now on: commands and steps read the file when they start."""
        line = " ".join(["optional", str(self._plugin), *words])
        Path(self.lab.directory("etc", "plugstack.conf")).write_text(line + "\n")

    def scores(self, *words: str) -> None:
        self.gpus.write_text(SCORES)
        self.arguments(f"gpus={self.gpus}", *words)

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return subprocess.run(
            argv, env=self.lab.environ(bare) | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE_S, check=False, cwd=self.lab.directory("pal"),  # jobs leave files there
        )  # fmt: skip

    def sbatch(self, *options: str, body: str = SHOW, **variables: str) -> str:
        """Submit a script, wait for its end, and return the job's id; the output is in `output` and `errors`."""
        for path in (self.output, self.errors):
            path.unlink(missing_ok=True)
        argv = ["sbatch", "--parsable", "-o", str(self.output), "-e", str(self.errors)]
        done = self.run(*argv, *options, "--wrap", body, **variables)
        assert done.returncode == 0, done.stderr
        self.wait_for(done.stdout.strip())
        return done.stdout.strip()

    def wait_for(self, job: str) -> None:
        wait_until(lambda: self.run("squeue", "-h", "-j", job).stdout == "")
        assert "JobState=COMPLETED" in self.run("scontrol", "show", "job", "-o", job).stdout

    def seen(self, job: str) -> str:
        """What job_submit saw of the options of a job or of a component of one."""
        text = self.run("scontrol", "show", "job", "-o", job).stdout
        return text.partition(" AdminComment=seen:")[2].partition(" ")[0].rstrip()  # 26.05: at the end

    def node_logs(self) -> str:
        return "".join(Path(self.lab.directory.log(f"slurmd-{node}")).read_text() for node in ("n0", "n1"))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("make") or not shutil.which("gcc"):
        pytest.skip("make and gcc are needed to build the plug-in: apt-get install make gcc")
    probe = ["gcc", "-fsyntax-only", "-include", "slurm/spank.h", "-x", "c", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("Slurm's headers are needed to build the plug-in: apt-get install libslurm-dev libc6-dev")
    build = tmp_path_factory.mktemp("spank")
    subprocess.run(["make", "-s", "-C", str(SPANK), f"BUILD={build}"], check=True, capture_output=True)
    return build / "pal_spank.so"


@pytest.fixture(scope="module")
def module_site(plugin: Path) -> Iterator[Site]:
    try:
        find_programs()
        account_name()
    except (MissingPackageError, UsageError) as error:
        pytest.skip(str(error))
    parent = tempfile.mkdtemp(prefix="pal")
    try:
        with Lab.up(os.path.join(parent, "lab"), nodes=2, gpus=4, seed=1) as lab:
            Path(lab.directory("etc", "job_submit.lua")).write_text(JOB_SUBMIT)
            with open(lab.directory.conf, "a", encoding="utf-8") as stream:
                stream.write("JobSubmitPlugins=lua\n")
            site = Site(lab, plugin)
            site.arguments()
            site.run("scontrol", "reconfigure")
            wait_until(lambda: site.seen(site.sbatch("--pal-class=A")))
            yield site
    finally:
        with contextlib.suppress(UsageError):  # no lab there any more
            Lab(os.path.join(parent, "lab")).down()
        shutil.rmtree(parent)


@pytest.fixture
def site(module_site: Site) -> Site:
    """The lab with the plug-in as a site has it at first: no arguments."""
    module_site.arguments()
    return module_site


# -- options ------------------------------------------------------------------------


def test_options_of_sbatch(site: Site) -> None:
    job = site.sbatch("--pal-class=B", "--pal-app=resnet50", "--pal-explain")
    assert site.seen(job) == f"{key('app')}=resnet50,{key('class')}=B,{key('explain')}=(null)"
    assert site.output.read_text().startswith("class=B gpus= ")
    assert site.errors.read_text() == ""


def test_an_option_with_an_optional_value(site: Site, tmp_path: Path) -> None:
    assert site.seen(site.sbatch("--pal-avoid-slow")) == f"{key('avoid_slow')}=(null)"
    assert site.seen(site.sbatch("--pal-avoid-slow=1.25")) == f"{key('avoid_slow')}=1.25"
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --pal-avoid-slow --pal-class=A\ntrue\n")
    done = site.run("sbatch", "--parsable", "-o", "/dev/null", str(script))
    assert site.seen(done.stdout.strip()) == f"{key('avoid_slow')}=(null),{key('class')}=A", done.stderr
    show = "echo job=$SLURM_JOB_ID; srun true"
    done = site.run("salloc", "--pal-avoid-slow", "sh", "-c", show)  # its steps inherit the option, and accept it
    assert done.returncode == 0 and site.seen(done.stdout.partition("job=")[2].strip()) == f"{key('avoid_slow')}=(null)"
    for value in ("1", "1.5"):
        done = site.run("srun", "sh", "-c", "echo $SLURM_JOB_ID", SLURM_PAL_AVOID_SLOW=value)
        assert site.seen(done.stdout.strip()) == f"SLURM_PAL_AVOID_SLOW={value}", done.stderr


def test_options_of_srun(site: Site) -> None:
    done = site.run("srun", "--pal-class=C", "sh", "-c", f"{SHOW}; echo job=$SLURM_JOB_ID")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("class=C ")
    assert site.seen(done.stdout.partition("job=")[2].strip()) == f"{key('class')}=C"


def test_options_of_salloc(site: Site) -> None:
    done = site.run("salloc", "--pal-class=C", "sh", "-c", f"echo job=$SLURM_JOB_ID; srun sh -c '{SHOW}'")
    assert done.returncode == 0, done.stderr
    assert "class=C " in done.stdout
    assert site.seen(re.findall(r"job=(\d+)", done.stdout)[0]) == f"{key('class')}=C"


def test_options_in_the_script(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --pal-class=A\n#SBATCH --pal-app=resnet-50.v2_b\n{SHOW}\n")
    done = site.run("sbatch", "--parsable", "-o", str(site.output), str(script))
    assert done.returncode == 0, done.stderr
    site.wait_for(done.stdout.strip())
    assert site.seen(done.stdout.strip()) == f"{key('app')}=resnet-50.v2_b,{key('class')}=A"
    assert site.output.read_text().startswith("class=A ")


def test_the_last_of_repeated_options_counts(site: Site) -> None:
    job = site.sbatch("--pal-class=A", "--pal-class", "C")
    assert site.seen(job) == f"{key('class')}=C"
    assert site.output.read_text().startswith("class=C ")


def test_every_task_of_an_array_has_the_class(site: Site) -> None:
    site.sbatch("--array=1-3", "--pal-class=B", "--open-mode=append", body=SHOW)
    assert site.output.read_text().count("class=B ") == 3


def test_components_of_a_hetjob_on_the_command_line(site: Site) -> None:
    body = f"srun --het-group=0 sh -c '{SHOW}'; srun --het-group=1 sh -c '{SHOW}'"
    job = site.sbatch("--pal-class=A", "-n1", ":", "--pal-class=B", "-n1", body=body)
    assert [site.seen(f"{job}+{part}") for part in range(2)] == [f"{key('class')}=A", f"{key('class')}=B"]
    assert site.output.read_text().count("class=A ") == 2  # steps have what the batch script has


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("class", "X", "X"),
        ("class", "a", "a"),
        ("class", "?", "?"),
        ("class", "", ""),
        ("class", "y" * 10_000, "y" * 64 + "..."),
        ("app", "", ""),
        ("app", "a b", "a b"),
        ("app", "a\x1b[1m\n", r"a\x1b[1m\x0a"),
        ("app", "x" * 65, "x" * 64 + "..."),
        ("avoid-slow", "", ""),
        ("avoid-slow", "0.9", "0.9"),
        ("avoid-slow", "1.2.3", "1.2.3"),
    ],
)
@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_wrong_values_are_refused(site: Site, command: str, option: str, value: str, shown: str) -> None:
    allowed = ALLOWED[option]
    payload = ["--wrap", "true"] if command == "sbatch" else ["true"]
    done = site.run(command, f"--pal-{option}={value}", *payload)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        f"{command}: error: pal: --pal-{option}={shown} is not allowed: give {allowed}"
    )


def test_a_wrong_value_in_the_script_is_refused(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --pal-class=Z\ntrue\n")
    done = site.run("sbatch", str(script))
    assert done.returncode != 0
    assert done.stderr.startswith("sbatch: error: pal: --pal-class=Z is not allowed")


# -- the environment in place of options ----------------------------------------------


@pytest.mark.parametrize("more", [[], ["--export=NONE"]])
def test_variables_reach_job_submit_under_their_own_names(site: Site, more: list[str]) -> None:
    variables = {"SLURM_PAL_CLASS": "C", "SLURM_PAL_APP": "bert"}
    job = site.sbatch(*more, **variables)
    assert site.seen(job) == "SLURM_PAL_APP=bert,SLURM_PAL_CLASS=C"
    assert site.output.read_text().startswith("class=C ")
    done = site.run("srun", *more, "/bin/sh", "-c", f"{SHOW}; echo job=$SLURM_JOB_ID", **variables)
    assert done.stdout.startswith("class=C ")
    assert site.seen(done.stdout.partition("job=")[2].strip()) == "SLURM_PAL_APP=bert,SLURM_PAL_CLASS=C"


def test_an_option_beats_its_variable(site: Site) -> None:
    job = site.sbatch("--pal-class=A", SLURM_PAL_CLASS="C")
    assert site.seen(job) == f"{key('class')}=A"
    assert site.output.read_text().startswith("class=A ")


def test_off_by_variable(site: Site) -> None:
    site.scores("gpu_order=best", "note=1")
    job = site.sbatch("--gres=gpu:2", "--pal-class=A", SLURM_PAL_OFF="1")
    assert site.seen(job) == f"SLURM_PAL_OFF=1,{key('class')}=A"
    assert "gpus= cuda=0,1 " in site.output.read_text()
    assert site.errors.read_text() == ""
    assert site.seen(site.sbatch(SLURM_PAL_OFF="0")) == ""


def test_steps_of_a_batch_script_have_its_class_unless_told_otherwise(site: Site) -> None:
    body = f"srun sh -c '{SHOW}'; SLURM_PAL_CLASS=C srun sh -c '{SHOW}'; srun --pal-class=B sh -c '{SHOW}'"
    site.sbatch("--pal-class=A", body=body)
    assert [line.split()[0] for line in site.output.read_text().splitlines()] == ["class=A", "class=C", "class=B"]


def test_steps_of_a_batch_script_are_off_with_it_unless_told_otherwise(site: Site) -> None:
    body = f"srun sh -c '{SHOW}'; SLURM_PAL_OFF=0 srun --pal-class=B sh -c '{SHOW}'"
    site.sbatch("--pal-off", "--pal-class=A", body=body)
    assert [line.split()[0] for line in site.output.read_text().splitlines()] == ["class=", "class=B"]


SUBMIT = "sbatch --parsable -o /dev/null --wrap true"


@pytest.mark.parametrize("around", ["sbatch", "srun", "salloc"])
@pytest.mark.parametrize(
    ("options", "inside", "seen"),
    [
        (["--pal-class=C"], SUBMIT, ""),
        (["--pal-class=C", "--export=NONE"], SUBMIT, ""),
        (["--pal-off"], SUBMIT, ""),
        (["--pal-class=C"], SUBMIT.replace("--wrap", "--pal-class=A --wrap"), f"{key('class')}=A"),
        (["--pal-class=C"], f"SLURM_PAL_CLASS=B {SUBMIT}", "SLURM_PAL_CLASS=B"),
        (["--pal-class=C"], "env -u SLURM_JOB_ID srun sh -c 'echo $SLURM_JOB_ID'", ""),
    ],
)
def test_a_job_submitted_inside_another_has_nothing_of_it(
    site: Site, around: str, options: list[str], inside: str, seen: str
) -> None:
    if around == "salloc" and "--export=NONE" in options:
        pytest.skip("salloc has no --export")
    kept = {"PATH": os.environ["PATH"], "SLURM_CONF": str(site.lab.directory.conf)}
    body = "; ".join([*(f"export {name}='{value}'" for name, value in kept.items()), inside])
    if around == "sbatch":
        site.sbatch(*options, body=body)
        said = site.output.read_text()
    else:
        done = site.run(around, *options, "/bin/sh", "-c", body)
        assert done.returncode == 0, done.stderr
        said = done.stdout
    job = said.strip().splitlines()[-1]
    site.wait_for(job)
    assert site.seen(job) == seen


@pytest.mark.parametrize("variable", ["", "C"])
def test_what_the_plugin_sets_has_a_mark_and_what_the_user_sets_has_none(site: Site, variable: str) -> None:
    body = 'echo "$SLURM_PAL_CLASS/$SLURM_PAL_JOB_CLASS"; srun sh -c \'echo "$SLURM_PAL_CLASS/$SLURM_PAL_JOB_CLASS"\''
    if variable:
        site.sbatch(body=body, SLURM_PAL_CLASS=variable)
    else:
        site.sbatch("--pal-class=C", body=body)
    assert site.output.read_text().splitlines() == ["C/" if variable else "C/C"] * 2


def test_wrong_variables_are_warned_about_once_and_ignored(site: Site) -> None:
    done = site.run("sbatch", "--wrap", "true", SLURM_PAL_CLASS="Z\x1b", SLURM_PAL_OFF="maybe")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "pal: warning: SLURM_PAL_CLASS=Z\\x1b is ignored: give A, B or C",
        "pal: warning: SLURM_PAL_OFF=maybe is ignored: give 0 or 1",
    ]
    assert site.seen(done.stdout.split()[-1]) == ""


# -- GPUs -----------------------------------------------------------------------------


def test_gpus_of_a_batch_script_and_its_steps(site: Site) -> None:
    site.scores()
    site.sbatch("-w", "n[0-1]", "--gres=gpu:4", "--pal-class=A", body=f"{SHOW}; srun --gres=gpu:2 sh -c '{SHOW}'")
    batch, *steps = site.output.read_text().splitlines()
    assert batch == "class=A gpus=0:v1:1.037,1:v0:0.980,2:v2:1.100,3:v0:0.970 cuda=0,1,2,3 node=n0"
    assert sorted(steps, key=lambda line: line[-1]) == [
        "class=A gpus=0:v1:1.037,1:v0:0.980 cuda=0,1 node=n0",
        "class=A gpus=0:v2:1.200,1:v1:1.100 cuda=0,1 node=n1",
    ]


def test_best_first(site: Site) -> None:
    site.scores("gpu_order=best")
    site.sbatch("-w", "n0", "--gres=gpu:4", "--pal-class=A", body=f"{SHOW}; srun --gres=gpu:3 sh -c '{SHOW}'")
    assert site.output.read_text().splitlines() == [
        "class=A gpus=3:v0:0.970,1:v0:0.980,0:v1:1.037,2:v2:1.100 cuda=3,1,0,2 node=n0",
        "class=A gpus=1:v0:0.980,0:v1:1.037,2:v2:1.100 cuda=1,0,2 node=n0",
    ]
    site.sbatch("-w", "n0", "--gres=gpu:4", "--pal-class=B")  # 2 and 3 are unknown: as good as the median
    assert "cuda=0,2,3,1 " in site.output.read_text()


def test_an_unstated_class_reads_as_a(site: Site) -> None:
    site.scores("gpu_order=best")
    site.sbatch("-w", "n0", "--gres=gpu:2")
    assert site.output.read_text() == "class= gpus=1:v0:0.980,0:v1:1.037 cuda=1,0 node=n0\n"


def test_all_tasks_of_a_step_see_one_order(site: Site) -> None:
    site.scores("gpu_order=best")
    done = site.run("srun", "-w", "n1", "-n", "8", "--gres=gpu:4", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout.splitlines() == ["3,2,1,0"] * 8


def test_tasks_bound_to_a_gpu_each(site: Site) -> None:
    site.scores("gpu_order=best")
    done = site.run("srun", "-w", "n0", "-n", "2", "--gpus-per-task=1", "--gpu-bind=single:1", "sh", "-c", SHOW)
    assert sorted(done.stdout.splitlines()) == [
        "class= gpus=0:v1:1.037 cuda=0 node=n0",
        "class= gpus=1:v0:0.980 cuda=1 node=n0",
    ]


def test_a_step_without_gpus_inherits_no_gpus(site: Site) -> None:
    site.scores()
    site.sbatch("-w", "n0", "--gres=gpu:2", body=f"srun --gres=none sh -c '{SHOW}'")
    assert site.output.read_text() == "class= gpus= cuda= node=n0\n"


def test_the_note_is_written_once(site: Site) -> None:
    site.scores("note=1")
    site.sbatch("-w", "n0", "--gres=gpu:2", "-n", "2", "--pal-class=A", body="srun true; srun true")
    said = [line for line in site.errors.read_text().splitlines() if not line.startswith("srun: ")]  # that it must wait
    assert said == ["pal: class A; n0: GPU 0 v1 1.04, GPU 1 v0 0.98"]
    done = site.run("srun", "-w", "n[0-1]", "-n", "4", "--gres=gpu:1", "true")
    assert done.stderr == "pal: class A (not stated); n0: GPU 0 v1 1.04\n"


def test_explain_asks_for_the_note(site: Site) -> None:
    site.scores()
    site.sbatch("-w", "n1", "--gres=gpu:1", "--pal-explain", "--pal-class=B")
    assert site.errors.read_text() == "pal: class B; n1: GPU 0 without score\n"


# -- what must change nothing -----------------------------------------------------------


@pytest.mark.parametrize("argument", ["colour=red", "gpu_order=worst", "note=yes", "gpus=relative.txt"])
def test_wrong_arguments_switch_the_plugin_off(site: Site, argument: str) -> None:
    site.scores("gpu_order=best", "note=1", argument)
    site.sbatch("-w", "n0", "--gres=gpu:2", "--pal-class=A", "--pal-explain")
    assert site.output.read_text() == "class= gpus= cuda=0,1 node=n0\n"
    assert site.errors.read_text() == ""
    assert f'error: pal: plugstack.conf: argument "{argument}" is' in site.node_logs()


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(10_000_000))


def truncated(path: Path) -> None:
    path.write_text(SCORES.rpartition("# end")[0])


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def long_line(path: Path) -> None:
    path.write_text(SCORES.replace("n0 ", "n0" + " " * 70_000))


def missing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize("make", [garbage, truncated, directory, pipe, long_line, missing])
def test_an_unusable_file_changes_nothing(site: Site, make: Callable[[Path], None]) -> None:
    site.scores("gpu_order=best", "note=1")
    site.gpus.unlink()
    make(site.gpus)
    try:
        site.sbatch("-w", "n0", "--gres=gpu:2", "-n", "2", "--pal-class=A", body=f"{SHOW}; srun true")
    finally:
        if site.gpus.is_dir():
            site.gpus.rmdir()
        else:
            site.gpus.unlink(missing_ok=True)
    assert site.output.read_text() == "class=A gpus= cuda=0,1 node=n0\n"
    assert site.errors.read_text() == ""
    assert "pal: no use of scores: " in site.node_logs()
