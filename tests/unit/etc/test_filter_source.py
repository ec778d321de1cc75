# SPDX-License-Identifier: MIT
"""pal.lua as it is put together from its parts and from what Python says."""

from __future__ import annotations

import re

import pytest

from slurm_pal.base.config import Config
from slurm_pal.decide.case import Settings
from slurm_pal.filter.source import PARTS, text_of
from slurm_pal.filter.terms import SETTINGS, literal
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import records
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import empty

from ...doubles.lua_filter import ROOT, parts


def test_what_a_part_of_the_filter_takes_an_earlier_one_gives() -> None:
    """Lua would take a name that is not there for nil."""
    given: dict[str, set[str]] = {}
    for part, text in parts().items():
        code = re.sub(r"--.*", "", text)
        for other in given:
            taken = set(re.findall(rf"\b{other}\.(\w+)", code)) - {"submit", "client"}
            assert taken <= given[other], (part, other)
        given[part] = set(re.findall(r"(\w+) = ", code.rpartition("\nreturn {")[2]))
        assert given[part]
    assert {path.stem for path in (ROOT / "etc" / "filter").iterdir()} == given.keys()


def test_the_filters_defaults_are_those_that_the_table_would_say() -> None:
    answers = standing(Overview((), (), (), {}), empty(), Settings())
    said = records(answers, Config(), 1)["settings"]
    assert set(SETTINGS.items()) <= {(word, float(value)) for word, value in (pair.split("=") for pair in said.split())}


def test_words_stay_words_in_lua() -> None:
    assert literal({"a": ('"]] .. os.exit()\n', 1.5, 7)}) == '{\n  ["a"] = { "\\034]] .. os.exit()\\010", 1.5, 7 },\n}'
    with pytest.raises(TypeError, match="None"):
        literal(None)


def test_pal_lua_says_what_it_is_made_of() -> None:
    head = text_of("pal.lua").partition("\nlocal ")[0]
    assert head.startswith("-- slurm-pal: ") and all(line.startswith("--") for line in head.strip().split("\n"))
    assert all(f" {part}" in head for part in PARTS)
