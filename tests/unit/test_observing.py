"""An observer put into a job's script: the script runs as if it were not there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.config import Config
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


def test_the_observer_was_started(tmp_path: Path) -> None:
    run(observing.with_observer(SCRIPT.encode(), f"{START[:-2]} & wait)"), tmp_path)
    assert (tmp_path / "seen").read_text() == "started\n"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"#!/usr/bin/env python3\nprint(1)\n", "python3"), (b"#!/bin/tcsh\necho 1\n", "tcsh"),
        (b"#!/bin/sh\n# nothing\n", "no command"), (b"echo 1\n", "sbatch takes"), (b"#!\necho\n", "nobody"),
        (b"#!/bin/sh\r\necho 1\r\n", "sbatch takes"),
    ],
)  # fmt: skip
def test_other_scripts_are_left_alone(body: bytes, part: str) -> None:
    with pytest.raises(CannotWrap, match=part):
        observing.with_observer(body, START)


@pytest.mark.parametrize("first", [b"#!/bin/sh", b"#! /bin/bash -l", b"#!/usr/bin/env bash", b"#!/bin/zsh"])
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
    assert text.startswith("('/opt/my env/python' -P -m slurm_pal.profiling.observer --seconds 120 --active 10 ")
    assert '--digest abc --stage probe --pid "$$" ' in text and text.endswith(" </dev/null >/dev/null 2>&1 &)")


@pytest.mark.parametrize(
    ("words", "asked", "part"),
    [
        (["-a", "1-3", "--gres=gpu:1", "x"], True, "array"), (["-N1", "x"], False, "no GPU"),
        (["-N1", ":", "-N2", "x"], True, "heterogeneous"),
    ],
)  # fmt: skip
def test_jobs_that_no_observer_is_for(words: list[str], asked: bool, part: str) -> None:
    with pytest.raises(CannotWrap, match=part):
        observing.check(parse(words), {}, Script(), asked)


def test_a_user_may_have_a_job_without_gpus_observed() -> None:
    observing.check(parse(["-N1", "x"]), {}, Script(), True)
    observing.check(parse(["--gpus=1", "x"]), {}, Script(), False)
