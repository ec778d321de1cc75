# SPDX-License-Identifier: MIT
"""What spares palsub an import does what the import would have done."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import config, light
from slurm_pal.base.config import plain_toml


class _Ours(light.NamedTuple):
    """Doc."""

    number: int
    words: tuple[str, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.number

    @classmethod
    def of(cls, text: str) -> _Ours:
        return cls(int(text))


class _Typing(typing.NamedTuple):
    """Doc."""

    number: int
    words: tuple[str, ...] = ()


def test_a_named_tuple_is_as_that_of_typing() -> None:
    made = _Ours.of("3")
    assert made == (3, ()) == _Typing(3) and made.twice == 6
    assert made._replace(words=("a",)) == _Ours(number=3, words=("a",)) == copy.copy(_Ours(3, ("a",)))
    assert repr(made).replace("_Ours", "_Typing") == repr(_Typing(3))
    for name in (
        "_fields",
        "_field_defaults",
        "__match_args__",
        "__doc__",
        "__module__",
        "__slots__",
    ):
        assert getattr(_Ours, name) == getattr(_Typing, name), name
    assert _Ours.__qualname__ == _Ours.__name__ == "_Ours"
    with pytest.raises(TypeError, match="number"):
        _Ours()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        made.number = 4  # type: ignore[misc]


class _Two(light.NamedTuple):
    a: int
    b: str = "b"


def test_its_constructor_is_the_same_before_and_after_it_is_compiled() -> None:
    for made in (_Two(1, "x"), _Two(1, "x"), _Two(a=1, b="x"), _Two._make([1, "x"]), _Two(2, "x")._replace(a=1)):
        assert made == (1, "x") and type(made) is _Two and made.a == 1 and made.b == "x"
    assert _Two(1) == (1, "b") and pickle.loads(pickle.dumps(_Two(1))) == _Two(1)
    assert _Two(1)._asdict() == {"a": 1, "b": "b"}
    for wrong in (lambda: _Two(), lambda: _Two(1, "x", 2), lambda: _Two(1, c=2), lambda: _Two(1, a=2)):  # type: ignore
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: _Two._make([1]), lambda: _Two(1)._replace(c=2)):  # type: ignore
        with pytest.raises(TypeError):
            wrong()


def test_a_pattern_is_that_of_re() -> None:
    made = light.pattern(r"(?m)^a(b+)$")
    assert (
        made.search("x\nabb") is not None and made.findall("ab\nabb") == ["b", "bb"] and made.pattern == r"(?m)^a(b+)$"
    )
    assert light.pattern(rb"\s").split(b"a b") == [b"a", b"b"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
JSON_PIECES = st.sampled_from([
    *'{}[],:" \t\r\n\\/-+.019eEtrufalsn\x00\x1f\ufeff', "\\u00e9", "\\ud800", '"a"', "null", "NaN", "-Infinity",
    "1e999",
])  # fmt: skip


def _outcome(read: object, raw: str | bytes) -> object:
    try:
        return read.loads(raw)  # type: ignore[attr-defined]
    except (ValueError, RecursionError) as error:
        return ValueError if isinstance(error, ValueError) else RecursionError


@given(st.one_of(VALUES.map(json.dumps), st.lists(JSON_PIECES).map("".join)))
def test_json_is_read_as_json_reads_it(text: str) -> None:
    wanted = _outcome(json, text)
    for raw in (text, text.encode()):
        found = _outcome(light.json, raw)
        both_nan = isinstance(wanted, float) and math.isnan(wanted) and isinstance(found, float) and math.isnan(found)
        assert both_nan or repr(found) == repr(wanted) or (raw != text and text.startswith("\ufeff"))


@given(VALUES)
def test_json_is_written_as_json_writes_it(value: object) -> None:
    assert light.json.dumps(value) == json.dumps(value)


@pytest.mark.parametrize("value", [{1, 2}, {"a": b""}, {(1, 2): 3}, [float("nan")], {1: None, 2.5: True}, "\ud800"])
def test_what_json_refuses_is_refused(value: object) -> None:
    try:
        wanted = json.dumps(value)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            light.json.dumps(value)
    else:
        assert light.json.dumps(value) == wanted


def test_a_circle_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        light.json.dumps(circle)


def test_json_without_its_c_code_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light.json, "_scan", None)
    monkeypatch.setitem(sys.modules, "_json", None)
    assert light.json.loads(b' {"a": [1, 2.5, null]} ') == {"a": [1, 2.5, None]}
    assert light.json.dumps({"a": 1}, sort_keys=True) == light.json.dumps({"a": 1}) == '{"a": 1}'


PIECES = st.sampled_from([
    *"[]=\"#.'\\ \t\r\n_-+019aé", "\x7f", "\u200b", "true", "false", "[a]", "[a.b]", "[[a]]", "a = ", "b = ", "1",
    "0.5", "1e3", "0x1", "00", "inf", '"x y"', '"""', '"a#b"', "1_0", "12345678901234567890", " # why\n", "\n[b]\n",
    "\nc = 1\n", "[a] # b = c\n",
])  # fmt: skip
LINES = st.sampled_from([
    "[a]", "[b]", " [c-1] ", "x = 1", "x = 0", "y = 1.50", 'z = "/a b/ü.toml"  # where', "on = true # yes", "off=false",
    "# only words = here", "", "  ", 'q = ""', "k_1 = 123456789012345", 'w = "a # b" # c', "0 = 1", "- = 2", "x = 007",
    '"/data/set 1" = "nodes=n[0-3]"', '"" = 1', '"""a""" = 1', '"a=b" = 2', '"a" b = 1', '"a.b" = 3', "'a' = 1",
])  # fmt: skip


@given(st.one_of(st.lists(PIECES).map("".join), st.lists(LINES).map("\n".join)))
def test_plain_settings_are_read_as_tomllib_reads_them(text: str) -> None:
    found = plain_toml(text)
    if found is not None:
        wanted = tomllib.loads(text)
        assert found == wanted
        assert [[*map(type, body.values())] for body in found.values()] == [
            [*map(type, body.values())] for body in wanted.values()
        ]


def test_what_we_ship_and_what_admins_make_of_it_is_plain() -> None:
    text = (Path(__file__).parents[3] / "etc" / "pal.toml").read_text()
    uncommented = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    for variant in (text, uncommented):
        assert plain_toml(variant) == tomllib.loads(variant)
    assert set(plain_toml(uncommented) or ()) <= {*config.KEYS, *config.TABLES}


def test_palsub_does_not_load_what_light_stands_for() -> None:
    """Each of these was a part of palsub's time that anybody could measure."""
    code = (
        f"import sys; sys.path.append({str(Path(light.__file__).parents[2])!r})\n"
        "import slurm_pal.cli.palsub, slurm_pal.submit.submission, slurm_pal.submit.planner\n"
        "import slurm_pal.base.config\n"
        "import slurm_pal.decide.decide, slurm_pal.slurm.cli, slurm_pal.store.snapshot, slurm_pal.placement.class_fit\n"
        "slurm_pal.base.config.load()\n"
        "heavy = ('typing', 'tomllib', 'datetime', 'string', 'contextlib', 'importlib.abc', 'json', 'signal')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
