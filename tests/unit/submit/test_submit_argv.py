# SPDX-License-Identifier: MIT
"""palsub's command line: our words go, sbatch's stay in order, the script's are not looked at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.cli.palsub import VALUES
from slurm_pal.submit.argv import PAL_VALUES, parse, read_options, without
from slurm_pal.submit.options_table import LONG, NONE, OPTIONAL, REQUIRED, SHORT, from_help


@pytest.mark.parametrize(
    ("words", "options", "script"),
    [
        (["-N2", "job.sh"], [("nodes", "2")], "job.sh"),
        (["-N", "2", "job.sh"], [("nodes", "2")], "job.sh"),
        (["-Jname", "-Hn4", "job.sh"], [("job-name", "name"), ("hold", ""), ("ntasks", "4")], "job.sh"),
        (["-HQ", "job.sh"], [("hold", ""), ("quiet", "")], "job.sh"),
        (["--part=a", "--nodel", "n1", "job.sh"], [("partition", "a"), ("nodelist", "n1")], "job.sh"),
        (["--exclusive", "job.sh"], [("exclusive", "")], "job.sh"),
        (["--exclusive=user", "job.sh"], [("exclusive", "user")], "job.sh"),
        (["-k", "job.sh"], [("no-kill", "")], "job.sh"),
        (["-koff", "job.sh"], [("no-kill", "off")], "job.sh"),
        (["-J", "--pal-off", "job.sh"], [("job-name", "--pal-off")], "job.sh"),
        (["--wrap", "--pal-off"], [("wrap", "--pal-off")], None),
        (["--wrap=a b"], [("wrap", "a b")], None),
        (["--", "job.sh", "--pal-off"], [], "job.sh"),
        (["-", "x"], [], "-"),
        (["", "x"], [], ""),
    ],
)
def test_words_are_read_as_getopt_reads_them(words: list[str], options: list[tuple[str, str]], script: str) -> None:
    line = parse(words)
    assert list(line.options) == options
    assert line.script == script
    assert not line.unsure and not line.pal
    assert [*line.before, *line.after] == words


def test_only_our_words_before_the_script_are_taken_out() -> None:
    words = ["--pal-class", "A", "-N1", "--pal-explain", "--pal-app=x", "job.sh", "--pal-off", "--pal-class=Z"]
    line = parse(words)
    assert line.before == ("-N1",)
    assert line.after == ("job.sh", "--pal-off", "--pal-class=Z")
    assert line.pal == (("class", "A"), ("explain", ""), ("app", "x"))


def test_after_two_dashes_everything_is_the_scripts() -> None:
    line = parse(["-N1", "--", "--pal-off", "--pal-json"])
    assert line.before == ("-N1",) and line.after == ("--", "--pal-off", "--pal-json")
    assert line.script == "--pal-off" and not line.pal


def test_a_word_of_ours_may_have_a_value_or_none() -> None:
    line = parse(["--pal-checkpoint", "a b", "--pal-movable", "600", "--pal-movable=600"])
    assert line.pal == (("checkpoint", "a b"), ("movable", "")) and line.script == "600"
    assert parse(["--pal-movable=600", "job.sh"]).pal == (("movable", "600"),)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["-N1", "--wrap", "a b", "-J", "--wrap"], ("-N1", "-J", "--wrap")),
        (["--wrap=x", "--wra", "y", "-Hn", "4"], ("-Hn", "4")),
        (["-N1"], ("-N1",)),
        (["--wrap"], ("--wrap",)),  # lacks its value: sbatch will say so
    ],
)
def test_one_option_can_be_left_out(words: list[str], kept: tuple[str, ...]) -> None:
    assert without(words, "wrap") == kept


@pytest.mark.parametrize(
    "words", [["--pal-clas=A"], ["--pal-off=1"], ["--pal-class"], ["--pal-"], ["--pal-movable="], ["--pal-checkpoint"]]
)
def test_a_wrong_word_of_ours_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="--pal-"):
        parse(words)


def test_a_heterogeneous_job_is_seen() -> None:
    assert parse(["-N1", ":", "-N2", "job.sh"]).hetjob
    assert not parse(["-N1", "job.sh", "a:b"]).hetjob


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--no", "job.sh"], ("job.sh",)),  # ambiguous
        (["--bogus", "job.sh"], ("job.sh",)),
        (["--bogus=1", "job.sh"], ("job.sh",)),
        (["-Z", "job.sh"], ("job.sh",)),
        (["--hold=1", "job.sh"], ("job.sh",)),
        (["--job-name"], ()),
    ],
)
def test_a_doubtful_reading_says_so(words: list[str], after: tuple[str, ...]) -> None:
    line = parse(words)
    assert line.unsure
    assert line.after == after
    assert [*line.before, *line.after] == words


def test_an_ambiguous_name_whose_meanings_all_take_a_value_takes_it() -> None:
    line = parse(["--ntasks-per", "4", "job.sh"])
    assert line.script == "job.sh" and "--ntasks-per-node" in line.unsure


def test_site_options_are_asked_for_once_and_only_when_unknown() -> None:
    asked: list[int] = []

    def site() -> dict[str, int]:
        asked.append(1)
        return {"mycompany": REQUIRED, "fast": NONE}

    line = parse(["-N1", "--time=5", "--mycompany", "x", "--fast", "job.sh"], site)
    assert dict(line.options)["mycompany"] == "x" and line.script == "job.sh" and not line.unsure
    assert len(asked) == 2  # the caller keeps the answer
    parse(["-N1", "job.sh"], site)
    assert len(asked) == 2


def test_help_text_tells_which_options_take_values() -> None:
    text = "  -a, --array=indexes  x\n      --bogus  y\n      --exclusive[=user]  z\n      --pal-x=K  [pal] w\n"
    found = from_help(f"{text}      --pal-y=[Z]\n")
    assert found == {"array": REQUIRED, "bogus": NONE, "exclusive": OPTIONAL, "pal-x": REQUIRED, "pal-y": OPTIONAL}


def test_every_short_option_has_a_long_one() -> None:
    assert set(SHORT.values()) <= set(LONG)


_word = st.one_of(
    st.sampled_from(["-N1", "-J", "name", "--gres=gpu:1", "--pal-off", "--", "--wrap", "job.sh", "--mem", "-Hx", ":"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)


@given(st.lists(_word, max_size=8))
def test_no_word_is_lost_added_or_moved(words: list[str]) -> None:
    try:
        line = parse(words)
    except UsageError:
        return
    taken = list(words)
    for kept in [*line.before, *line.after]:  # what is left is a subsequence of what was given
        while taken and taken[0] != kept:
            taken.pop(0)
        assert taken.pop(0) == kept
    removed = len(words) - len(line.before) - len(line.after)
    assert len(line.pal) <= removed <= 2 * len(line.pal)


@given(st.lists(_word, max_size=8))
def test_directive_words_never_break_the_reader(words: list[str]) -> None:
    assert 0 <= read_options(words).end <= len(words)


def test_those_who_submit_where_we_fail_know_our_options() -> None:
    """Neither of them can ask this table: what they would take for sbatch's would keep the job from sbatch."""
    ours = {f"--pal-{name}" for name in PAL_VALUES}
    assert ours == VALUES
    program = (Path(__file__).parents[3] / "bin" / "palsub").read_text()
    assert ours <= set(re.findall(r"--pal-[a-z-]+", program.partition("# their values are ours")[0]))


def test_what_was_meant_is_shown() -> None:
    for word, meant in (("--pal-dryrun", "--pal-dry-run"), ("--pal-checkpint=none", "--pal-checkpoint")):
        with pytest.raises(UsageError, match=rf"^unknown option --pal-\w.*; known are .*; did you mean {meant}\?$"):
            parse([word, "job.sh"])
    with pytest.raises(UsageError, match=r"known are .*--pal-watch$"):
        parse(["--pal-zzzzzz", "job.sh"])
