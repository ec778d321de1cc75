# SPDX-License-Identifier: MIT
"""An observer put into a job's script: the script runs as if it were not there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.submit import observing
from slurm_pal.submit.argv import no_site_options, parse
from slurm_pal.submit.checkpoint import CannotWrap
from slurm_pal.submit.script import Script, scan

START = '(sh -c "echo started > seen" </dev/null >/dev/null 2>&1 &)'

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1

# first a comment
set -eu; echo "$0 $# $1" ; cat <<'END'
here
END
f() {
  echo "line $LINENO"
}
f
exit 3
"""


def run(body: bytes, where: Path) -> tuple[int, bytes, bytes]:
    path = where / "slurm_script"
    path.write_bytes(body)
    done = subprocess.run(["bash", "slurm_script", "x y"], cwd=where, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("start", [START, "(/no/such/program -P </dev/null >/dev/null 2>&1 &)"])
def test_the_script_runs_as_it_would_alone(start: str, tmp_path: Path) -> None:
    body = SCRIPT.encode()
    changed = observing.with_observer(body, start)
    assert changed.count(b"\n") == body.count(b"\n")
    assert run(changed, tmp_path) == run(body, tmp_path)
    assert scan(changed)._replace(body=b"") == scan(body)


def test_a_script_that_is_traced_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"#!/bin/bash -x\ntrue\n")
    (tmp_path / "b").write_bytes(
        observing.with_observer(b"#!/bin/bash -x\ntrue\n", observing.command(Config(), 60.0, ""))
    )
    for name in "ab":
        done = subprocess.run(["bash", "-x", name], cwd=tmp_path, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"+ true\n")


def test_the_observer_was_started(tmp_path: Path) -> None:
    run(observing.with_observer(SCRIPT.encode(), f"{START[:-2]} & wait)"), tmp_path)
    assert (tmp_path / "seen").read_text() == "started\n"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"#!/usr/bin/env python3\nprint(1)\n", "python3"), (b"#!/bin/tcsh\necho 1\n", "tcsh"),
        (b"#!/bin/sh\n# nothing\n", "no command"), (b"echo 1\n", "not accept"), (b"#!\necho\n", "nobody"),
        (b"#!/bin/sh\r\necho 1\r\n", "not accept"), (b"#!/usr/bin/env -S -i python3 -u\nprint(1)\n", "python3"),
        (b"#!/" + b"x" * 100 + b"\necho 1\n", "for x{40}, and"), (b"#!/usr/bin/env\necho 1\n", "nobody"),
    ],
)  # fmt: skip
def test_other_scripts_are_left_alone(body: bytes, part: str) -> None:
    with pytest.raises(CannotWrap, match=part):
        observing.with_observer(body, START)


@pytest.mark.parametrize(
    "first",
    [
        b"#!/bin/sh",
        b"#! /bin/bash -l",
        b"#!/usr/bin/env bash",
        b"#!/bin/zsh",
        b"#!/usr/bin/env -S bash -e",
        b"#! /usr/bin/env -S A=1 bash",
    ],
)
def test_every_shell_can_start_one(first: bytes) -> None:
    assert START.encode() + b"; true" in observing.with_observer(first + b"\ntrue\n", START)


@given(
    st.lists(st.sampled_from([b"", b"# c", b"#SBATCH -N1", b"  # c", b"#PAL observe"]), max_size=5),
    st.binary(max_size=40),
)
def test_nothing_but_the_one_line_changes(header: list[bytes], rest: bytes) -> None:
    rest = rest.replace(b"\0", b"").replace(b"\r\n", b"").replace(b"\n", b"").rstrip(b"\r")
    body = b"\n".join([b"#!/bin/sh", *header, b"true " + rest, b"end"])
    changed = observing.with_observer(body, START)
    assert changed.replace(START.encode() + b"; ", b"", 1) == body


def test_a_line_of_wrap_keeps_its_place() -> None:
    line = parse(["-N1", "--wrap", "python3 train.py", "--gres=gpu:1"])
    sent, script = observing.observed(line, None, Config(), 120.0, no_site_options)
    assert script is None and sent.before[:2] == ("-N1", "--gres=gpu:1")
    assert sent.before[2].startswith("--wrap=(") and sent.before[2].endswith("; python3 train.py")
    assert dict(sent.options)["wrap"] == sent.before[2].removeprefix("--wrap=")
    assert observing.sending(sent, script) == ("", b"", sent)


def test_the_observer_is_told_what_it_must_know() -> None:
    config = Config()
    config.set("sensitivity", "active_s", 10.0, "test")
    config.set("profile", "python", "/opt/my env/python", "test")
    text = observing.command(config, 120.0, "abc", "probe")
    assert text.startswith("('/opt/my env/python' -P -m slurm_pal.profiling.node.observer --seconds 120 --active 10 ")
    assert '--digest abc --stage probe --pid "$$" ' in text and text.endswith(
        " </dev/null >/dev/null 2>&1 &) 2>/dev/null"
    )


@pytest.mark.parametrize(
    ("words", "asked", "part"),
    [
        (["-N1", "x"], False, "no GPU"), (["-N1", ":", "-N2", "x"], True, "heterogeneous"),
        (["--gpus=1", "--no-such-option=3", "x"], True, "no-such-option"),
    ],
)  # fmt: skip
def test_jobs_that_no_observer_is_for(words: list[str], asked: bool, part: str) -> None:
    with pytest.raises(CannotWrap, match=part):
        observing.check(parse(words), {}, Script(), asked)


def test_a_user_may_have_a_job_without_gpus_observed() -> None:
    observing.check(parse(["-N1", "x"]), {}, Script(), True)
    observing.check(parse(["--gpus=1", "x"]), {}, Script(), False)


@pytest.mark.parametrize(
    "words",
    [
        ["--gres=gpu:1", "-d", "afterok:1"], ["--gpus=2", "-w", "n0"], ["--gres=gpu:1", "-b", "now+1hour"],
        ["--gpus-per-socket=1"], ["--gres=gpu:1", "-a", "1-3"], ["--tres-per-task=gres/gpu:1"],
    ],
)  # fmt: skip
def test_a_job_whose_nodes_are_left_to_slurm_is_observed_all_the_same(words: list[str]) -> None:
    """Where the site observes every job with GPUs."""
    observing.check(parse([*words, "x"]), {}, Script(), False)


ARRAY = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_JOB_ID": "70"}


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(
    ("task", "starts"),
    [
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "71"}, True),
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "4", "SLURM_JOB_ID": "72"}, False),
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "70"}, True),  # the last to start
    ],
)
def test_of_an_array_the_first_task_starts_one(
    task: dict[str, str], starts: bool, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the script runs in each of them as it would alone, under `set -eu`, too."""
    monkeypatch.setenv("SBATCH_ARRAY_INX", "3-1002")
    observer = tmp_path / "observer"
    observer.write_text(f"#!/bin/sh\necho x >> {tmp_path}/started\n")
    observer.chmod(0o755)
    config = Config()
    config.set("profile", "python", str(observer), "test")
    body = b"#!/bin/sh\nset -eu; echo $?; trap\n"
    script = scan(body)._replace(body=body)
    _, sent = observing.observed(parse(["x"]), script, config, 60.0, no_site_options)
    assert sent is not None
    (tmp_path / "script").write_bytes(sent.body.replace(b"2>&1 &)", b"2>&1 & wait)"))
    for words in (["-x"], ["-eu"]):
        argv = [shell, *words, "script"]
        done = subprocess.run(argv, cwd=tmp_path, env=task | {"PATH": os.defpath}, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"0\n") and b"observer" not in done.stderr
    assert (tmp_path / "started").exists() == starts
    alone = observing.observed(parse(["x"]), script, config, 60.0, no_site_options, "probe")[1]
    assert alone is not None and b"ARRAY" not in alone.body
