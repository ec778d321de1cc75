# SPDX-License-Identifier: MIT
"""What the pages say to type is read by the programs' own command lines: no option, command or setting is misspelt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_pal.base.config import load
from slurm_pal.submit.options_table import LONG, SHORT

from ...doubles.page_commands import (
    Block,
    blocks,
    commands,
    complaint,
    known_options,
    pages,
    script_complaint,
    span_complaint,
    spans,
)

OTHERS = {
    "--arch", "--config", "--data", "--data-dir", "--epochs", "--evaluate", "--lr",  # users' programs
    "-cpi", "-int", "-reprod", "-usr2",
    "--container-mounts", "--image", "--uenv",  # plug-ins of sites
    "--immediate",  # srun
    "--max-restarts",  # torchrun
    "--nvcc", "--replays", "--wait-share",  # programs in our tests and studies
    "-I", "-vv", "--pal-",
}  # fmt: skip
"""Options on the pages that are not ours and not sbatch's."""
NOT_SETTINGS = {"docs/lab.md": "[slurm]  #", "docs/recipes.md": "[our-solver]", "docs/traces.md": "[alexnet"}
"""TOML that is no pal.toml: how it begins, by page."""
MARKED = re.compile(r"^#\s*(SBATCH|PAL)\b", re.MULTILINE)


def every(kind: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.kind == kind]


def test_command_lines_are_those_of_the_programs() -> None:
    typed = [(block.place, words) for block in every("sh") for words in commands(block.text)]
    assert len(typed) > 120
    assert not [(place, *words, said) for place, words in typed if (said := complaint(words))]


def test_commands_named_in_sentences_exist() -> None:
    named = [(page.name, span) for page in pages() for span in spans(page)]
    assert not [(page, span, said) for page, span in named if (said := span_complaint(span))]


def test_options_named_in_sentences_exist() -> None:
    known = known_options() | {f"--{name}" for name in LONG} | {f"-{letter}" for letter in SHORT} | OTHERS
    named = [
        (page.name, found[0])
        for page in pages()
        if page.name != "benchmarks.md"  # options of many studies
        for span in spans(page)
        if (found := re.match(r"--[a-z][a-z-]*|-[a-zA-Z]\b(?!-)", span))
    ]
    assert len(named) > 400
    assert not [(page, option) for page, option in named if option not in known]


def test_scripts_cause_no_warning() -> None:
    scripts = [block for kind in ("sh", "python") for block in every(kind) if MARKED.search(block.text)]
    assert len(scripts) >= 9
    for block in scripts:
        text = block.text if block.text.startswith("#!") else f"#!/bin/sh\n{block.text}"
        assert not script_complaint(text), block.place


def test_settings_are_those_of_pal_toml(tmp_path: Path) -> None:
    path, read = tmp_path / "pal.toml", 0
    for block in every("toml"):
        if not block.text.startswith(NOT_SETTINGS.get(block.page, "\0")):
            path.write_text(block.text)
            load({"SLURM_PAL_CONFIG": str(path)})
            read += 1
    assert read >= 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pal gpus --jsno", "No such option"),
        ("pal gpu", "No such command"),
        ("if pal lab up --nodes four; then", "not a valid integer"),
        ("x=$(pal explain --lats)", "No such option"),
        ('eval "$(pal lab evn)"', "No such command"),
        ("sudo -u slurm /opt/bin/pal-profile run --bugdet 50  # it's", "No such option"),
        ("pal-profile bench --lsit", "unrecognized"),
        ("srun --gres=gpu:1 pal-profile selftest --gpus 2", "No such option"),
        ("palsub --pal-clas A job.sh", "--pal-clas"),
        ("palsub --pal-class D job.sh", "not one of"),
        ("palsub --pal-checkpoint USR1 --pal-save-before never job.sh", "never"),
        ("palsub --gress=gpu:1 job.sh", "--gress"),
        ("palsub --gres=gpu:1 \\\n  --wrap 'pal lab work --clas A'", "No such option"),
        ("pal simulate --site [--dasy 60]", "No such option"),
    ],
)
def test_a_misspelt_command_line_is_found(text: str, said: str) -> None:
    assert said in "".join(map(complaint, commands(text)))


@pytest.mark.parametrize(
    "span", ["pal gpus --jsno", "pal lab up|donw", "pal-profile status [--cvs]", "palsub --pal-of"]
)
def test_a_misspelt_sentence_is_found(span: str) -> None:
    assert span_complaint(span)


@pytest.mark.parametrize(
    "text",
    [
        "#PAL clas=A", "#PAL class=D", "#PAL movable=soon", "#PAL checkpoint=", "#PAL save-before=x",
        "#PAL elastic=6:2", "#PAL alt=gpu:partition=a100", "#PAL fork=0",
        "#SBATCH --gress=gpu:1", "#SBATCH --gres='gpu:1",
    ],
)  # fmt: skip
def test_a_misspelt_script_is_found(text: str) -> None:
    assert script_complaint(f"#!/bin/sh\n#SBATCH --time=60\n{text}\n")
