# SPDX-License-Identifier: MIT
"""`Saver` in processes of its own, by real signals: when it is due, what it takes, whom it tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slurm_pal

ROOT = Path(__file__).parents[3]
HEAD = """
import os, signal, subprocess, sys, threading, time
from slurm_pal.frameworks import saver as module
from slurm_pal.frameworks.saver import Saver
me = os.getpid()
"""


class Job:
    """What is said to a process in a job: its environment, and a `pal` that writes down its words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, folder / "told"
        pal = folder / "bin" / "pal"
        pal.parent.mkdir()
        pal.write_text(f'#!/bin/sh\necho "$*" >> {self.told}\n')
        pal.chmod(0o755)
        self.env = {
            "PATH": f"{pal.parent}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_PAL_ACK": str(folder / "ack"),
        }  # fmt: skip

    def run(self, text: str, *words: str, code: int = 0, said: str = "", **env: str) -> str:
        argv = [sys.executable, "-P", "-c", HEAD + text, *words]
        done = subprocess.run(argv, env=self.env | env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (code, said)
        return done.stdout

    def words(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_it_is_due_once_for_a_signal_and_answers_by_the_file(job: Job, name: str) -> None:
    text = f"""
saver = Saver()
print(saver.due(1), end=" ")
os.kill(me, signal.{name})
print(saver.due(2), os.path.exists(os.environ["SLURM_PAL_ACK"]), end=" ")
saver.done()
print(os.path.exists(os.environ["SLURM_PAL_ACK"]), saver.due(3))
"""
    assert job.run(text) == "False True False True False\n"
    assert not [words for words in job.words() if words.startswith("ack")]


def test_where_the_file_is_not_to_be_seen_pal_ack_answers(job: Job, tmp_path: Path) -> None:
    text = """
saver = Saver()
os.kill(me, signal.SIGUSR1)
assert saver.due(1)
saver.done()
time.sleep(.3)
"""
    job.run(text, SLURM_PAL_ACK=str(tmp_path / "elsewhere" / "ack"))
    assert "ack" in job.words()
    job.run(text + "module.acknowledge(failed=True); time.sleep(.3)")
    assert "ack --failed" in job.words()


def test_a_signal_of_somebody_else_stays_theirs(job: Job) -> None:
    """submitit's handler stands before; Lightning's comes later, and finds one of ours only where it may."""
    text = """
def theirs(*_): print("theirs", end=" ")
signal.signal(signal.SIGUSR2, theirs)
saver = Saver()
os.kill(me, signal.SIGUSR2)
print(saver.due(1))
saver = Saver(signals=())
saver.take(["USR1"])
"""
    assert job.run(text) == "theirs False\n"


def test_children_do_not_die_of_the_signal_that_a_step_gets(job: Job) -> None:
    text = """
saver = Saver()
child = subprocess.Popen(["sleep", "30"])
child.send_signal(signal.SIGUSR1)
child.send_signal(signal.SIGUSR2)
time.sleep(.2)
print(child.poll())
child.kill(); child.wait()
"""
    assert job.run(text) == "None\n"


def test_a_thread_that_was_there_before_does_not_die_of_it_either(job: Job) -> None:
    """A signal for the process goes to any thread that does not block it: there the handler notes it."""
    text = """
over = threading.Event()
thread = threading.Thread(target=over.wait); thread.start()
saver = Saver()
os.kill(me, signal.SIGUSR1)
time.sleep(.2)
print(saver.due(1))
over.set(); thread.join()
"""
    assert job.run(text) == "True\n"


def test_an_ignored_signal_is_taken(job: Job) -> None:
    """As under `env --ignore-signal=USR1 torchrun`."""
    text = """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
saver = Saver()
os.kill(me, signal.SIGUSR1)
print(saver.due(1))
"""
    assert job.run(text) == "True\n"


def test_a_rank_that_hears_it_later_does_not_save_twice(job: Job) -> None:
    text = """
said = iter([True, False, False, False])
saver = Saver(lambda asked: next(said))
assert saver.due(1)  # another rank heard it
threading.Timer(.3, os.kill, (me, signal.SIGUSR1)).start()
saver.done()
print(signal.sigpending(), saver._asked)
"""
    assert job.run(text) == "set() False\n"


def test_all_ranks_have_saved_before_it_is_acknowledged(job: Job) -> None:
    text = """
calls = []
def agree(asked):
    calls.append((asked, os.path.exists(os.environ["SLURM_PAL_ACK"])))
    return asked
saver = Saver(agree)
os.kill(me, signal.SIGUSR1)
saver.due(1); saver.done()
print(calls, os.path.exists(os.environ["SLURM_PAL_ACK"]))
"""
    assert job.run(text) == "[(True, False), (False, False)] True\n"


def test_ranks_agree_in_each_so_many_steps_only(job: Job) -> None:
    text = """
steps = []
saver = Saver(lambda asked: not steps.append(step) and asked, every_steps=4)
os.kill(me, signal.SIGUSR1)
for step in range(1, 9):
    if saver.due(step):
        break
print(step, steps)
try:
    Saver(every_steps=0)
except ValueError as error:
    print(error)
"""
    assert job.run(text) == "4 [4]\nevery_steps is at least 1, not 0\n"


@pytest.mark.parametrize("env", [{"SLURM_PROCID": "1"}, {"LOCAL_RANK": "2"}], ids=str)
def test_only_the_first_task_speaks(job: Job, env: dict[str, str]) -> None:
    text = """
saver = Saver(lambda asked: asked)
os.kill(me, signal.SIGUSR1)
print(saver.due(1, 2))
saver.done()
time.sleep(.2)
print(os.path.exists(os.environ["SLURM_PAL_ACK"]))
"""
    assert job.run(text, **env) == "True\nFalse\n"
    assert job.words() == []


def test_progress_is_reported_at_most_once_a_minute_and_nobody_waits_for_it(job: Job) -> None:
    text = """
clock = [100.0]
module.time.monotonic = lambda: clock[0]
saver = Saver()
for step, now in ((1, 100), (2, 130), (3, 159.9), (4, 160.1), (9, 230)):
    clock[0] = now
    saver.due(step, 5)
    time.sleep(.2)
"""
    job.run(text)
    assert job.words() == ["progress 1 5 --every 50", "progress 4 5 --every 50", "progress 9 --every 50"]
    (job.folder / "bin" / "pal").write_text("#!/bin/sh\nexec sleep 30\n")
    job.run("saver = Saver(); began = time.monotonic(); saver.due(1, 5); assert time.monotonic() - began < 10; "
            "saver._program.kill(); saver._program.wait()")  # fmt: skip


def test_without_pal_the_training_goes_on(job: Job) -> None:
    (job.folder / "bin" / "pal").unlink()
    text = "module.sys.executable = '/none/python'; saver = Saver(); print(saver.due(1, 5))"
    assert job.run(text, said="slurm-pal: pal progress cannot be started: it is not in PATH\n") == "False\n"


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_tasks_that_cannot_agree_do_not_save(job: Job, name: str) -> None:
    """Each would save in a step of its own, and the first would speak for all. Said once; the job stays where it is."""
    text = "saver = Saver(); os.kill(me, signal.SIGUSR1); print(saver.due(1), saver.due(2))"
    said = "slurm-pal: asked for a checkpoint, but 4 tasks cannot agree on a step: pass agree= to Saver\n"
    assert job.run(text, said=said, **{name: "4"}) == "False False\n"


def test_outside_of_a_job_it_does_nothing(job: Job) -> None:
    del job.env["SLURM_JOB_ID"]
    text = "saver = Saver(); saver.take(['USR1']); print(saver.due(1, 2), signal.getsignal(signal.SIGUSR1).name)"
    assert job.run(text) == "False SIG_DFL\n" and job.words() == []


def test_in_another_thread_it_only_reports_progress(job: Job) -> None:
    text = """
def work():
    saver = Saver()
    print(saver.due(1, 2))
    time.sleep(.2)
thread = threading.Thread(target=work); thread.start(); thread.join()
"""
    said = "slurm-pal: made outside of the main thread: no checkpoint on demand\n"
    assert job.run(text, said=said) == "False\n" and job.words() == ["progress 1 2 --every 50"]


def test_only_the_standard_library_is_needed() -> None:
    """So that `pip install --no-deps` beside torch is enough."""
    path = str(Path(slurm_pal.__file__).parents[1])
    code = (
        f"import sys; sys.path.append({path!r}); import slurm_pal.frameworks.saver\n"
        "print({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'slurm_pal', '__main__'})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_each_page_example_is_there() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    names = sorted(path.name for path in (ROOT / "docs" / "examples" / "frameworks").iterdir())
    assert names and all(name in page for name in names)
