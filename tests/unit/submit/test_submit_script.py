# SPDX-License-Identifier: MIT
"""Job scripts as sbatch reads them; the rules were tried on sbatch 22.05."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.submit.script import Script, find, from_file, scan, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (' -J a#b -N "1"', ["-J", "a"]),  # an unquoted # ends the line, even inside a word
        (' -N "1" # c -n2', ["-N", "1"]),
        (' --comment="a b"c\\ d -N1', ["--comment=a bc d", "-N1"]),
        (" --comment='a \"b\\\\c' -N1", ['--comment=a "b\\c', "-N1"]),
        (' -N1 "# x"', ["-N1", "# x"]),
        (" -N1 \\# -n1", ["-N1", "#", "-n1"]),
        ("\t-N1\t", ["-N1"]),
        ('"', None),
        (' --comment="a b', None),
        (' -J "" -n1', ["-J"]),  # an empty word ends the line
        ("", []),
    ],
)
def test_directive_lines_split_as_sbatch_splits_them(text: str, words: list[str] | None) -> None:
    assert split_words(text) == words


def test_directives_stand_before_the_first_command() -> None:
    body = b"#!/bin/sh\n #SBATCH -N9\n\n   # x\n#SBATCH -N1\n#SBATCH-n1\n##SBATCH -n3\n#PAL class=B app=x\n"
    body += b"foo\n#SBATCH -n4\n"
    assert scan(body) == Script(("-N1", "-n1"), (("class", "B"), ("app", "x")))


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("movable", [("movable", "")]),
        ("class=A movable=600 # x", [("class", "A"), ("movable", "600")]),
        ("checkpoint=USR1", [("checkpoint", "USR1")]),
        (
            "movable checkpoint=a 'b  c' \\# \"d; class=C ",
            [("movable", ""), ("checkpoint", "a 'b  c' \\# \"d; class=C")],
        ),
        ("checkpoint=", [("checkpoint", "")]),
        ("nocheckpoint=x", [("nocheckpoint", "x")]),
    ],
)
def test_a_checkpoint_command_is_the_rest_of_its_line(line: str, pairs: list[tuple[str, str]]) -> None:
    assert scan(f"#!/bin/sh\n#PAL {line}\ntrue\n".encode()).pal == tuple(pairs)


def test_pal_lines_after_the_first_command_do_not_count() -> None:
    assert scan(b"#!/bin/sh\ntrue\n#PAL class=A\n").pal == ()
    assert scan(b"#!/bin/sh\n#PALETTE class=A\n").pal == ()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "#!"),
        (b"#SBATCH -N1\n", "#!"),
        (b"#!/bin/sh\r\n#SBATCH -N1\r\n", "DOS"),
        (b"#!/bin/sh\n#SBATCH --comment='a\n", "quote"),
        (b"#!/bin/sh\n\0\0\x7fELF", "binary"),
    ],
)
def test_what_sbatch_refuses_is_doubted(body: bytes, says: str) -> None:
    assert says in scan(body).doubt


def test_foreign_and_heterogeneous_directives_are_seen() -> None:
    assert scan(b"#!/bin/sh\n#PBS -l nodes=2\n").foreign
    assert scan(b"#!/bin/sh\n#SBATCH hetjob\n").hetjob


def test_names_are_looked_for_where_sbatch_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("job", "bin", "here"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find("x.sh", None) is None
    (tmp_path / "bin" / "x.sh").write_text("#!/bin/sh\n")
    assert find("x.sh", None) == str(tmp_path / "bin" / "x.sh")
    assert find("./x.sh", None) is None
    (tmp_path / "here" / "x.sh").write_text("#!/bin/sh\n")
    assert find("x.sh", None) == "./x.sh"
    (tmp_path / "job" / "x.sh").write_text("#!/bin/sh\n")
    assert find("x.sh", str(tmp_path / "job")) == str(tmp_path / "job" / "x.sh")


def test_a_pipe_given_as_script_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "only once" in from_file(str(tmp_path / "pipe"), None).doubt


_READER = "import os,sys;from slurm_pal.submit.script import from_stdin, scan;g=from_stdin();"
_SHOW = "print(g and scan(g.body).words, os.read(0 if g is None or g.stdin is None else g.stdin, 99))"


@pytest.mark.parametrize("kind", ["file", "pipe", "device"])
def test_stdin_can_still_be_read_by_sbatch(kind: str, tmp_path: Path) -> None:
    body = b"#!/bin/sh\n#SBATCH -N1\ntrue\n"
    (tmp_path / "job").write_bytes(b"before\n" + body)
    argv = [sys.executable, "-c", _READER + _SHOW]
    if kind == "pipe":
        done = subprocess.run(argv, input=body, capture_output=True, check=True)
    else:
        with open(tmp_path / "job" if kind == "file" else os.devnull, "rb") as stream:
            os.lseek(stream.fileno(), 7, os.SEEK_SET)
            done = subprocess.run(argv, stdin=stream, capture_output=True, check=True)
    expected = "None b''\n" if kind == "device" else f"('-N1',) {body!r}\n"
    assert done.stdout.decode() == expected


@given(st.binary(max_size=300))
def test_any_bytes_can_be_scanned(body: bytes) -> None:
    scan(b"#!" + body)


def test_a_megabyte_of_comments_or_one_long_line_is_scanned_in_one_pass() -> None:
    assert scan(b"#!/bin/sh\n" + b"# x\n" * 250_000 + b"#SBATCH -N1\ntrue\n").words == ("-N1",)
    assert len(scan(b"#!/bin/sh\n#SBATCH --comment=" + b"x" * 1_000_000 + b"\n").words[0]) == 1_000_010
