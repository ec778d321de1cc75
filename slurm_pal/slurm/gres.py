# SPDX-License-Identifier: MIT
"""Texts about generic resources, `gpu:a100:4(S:0-1),nvme:2` and `gres/gpu=2`: GPUs with types and indexes, and others.

Texts of the usual forms are read without `re`, whose import palsub would feel; a pattern reads all others. A test
compares both.
"""

from __future__ import annotations

from slurm_pal.base.light import pattern
from slurm_pal.base.numbers import MOST_GPUS, amount, digits
from slurm_pal.slurm.told import NOTHING

GPUS = pattern(r"(?:gres[/:])?gpu((?:[:=/][^,():=]+)*?)(?:[:=]([0-9]{1,9}))?(?:\(([^()]*)\))?(?:,|$)")
"""One GPU resource: its types with what separates them, its number, and what stands in brackets."""
SPAN = pattern(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST_DIGITS = 9
_PREFIXES = ("gres:", "gres/")
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_AMOUNT_DIGITS = 12


def gpu_types(text: str) -> tuple[str, ...]:
    """One type per GPU index of a node's `Gres=`; "" for an untyped GPU.

    Slurm lists types one after another, and numbers the GPUs in that order.
    """
    types: list[str] = []
    for kind, count, _ in _gpus(text):
        types += [kind.strip(":=/")] * min(int(count or 1), MOST_GPUS)
    return tuple(types[:MOST_GPUS])


def gpu_count(text: str) -> int:
    """How many GPUs a text counts (`gpu:v0:1,gpu:v1:2` is 3)."""
    return sum(int(count or 1) for _, count, _ in _gpus(text))


def gpu_indexes(text: str) -> tuple[int, ...]:
    """The indexes in a job's `GRES=gpu:2(IDX:0-1)`; () where Slurm does not print them."""
    indexes: list[int] = []
    for _, _, detail in _gpus(text):
        if detail.startswith("IDX:"):
            for first, last in _spans(detail.removeprefix("IDX:")):
                indexes += range(first, min(last + 1, MOST_GPUS))
    return tuple(sorted(indexes))


def gpu_types_asked(text: str) -> frozenset[str]:
    """The types of GPUs in what a job asks for (`gres/gpu:a100=2`)."""
    found = set()
    at = text.find("gpu")
    while at >= 0:
        start = end = at + len("gpu:")
        letter, before = text[start : start + 1], text[at - 1 : at]
        if (text[start - 1 : start] or ".") in ":/=" and letter.isascii() and letter.isalpha() and not _in_word(before):
            while _in_word(text[end : end + 1]) or (text[end : end + 1] or ":") in ".-":
                end += 1
            found.add(text[start:end])
        at = text.find("gpu", max(end, at + len("gpu")))
    return frozenset(found)


def other_gres(text: str) -> dict[str, int]:
    """How many of each generic resource beside GPUs a text counts: by name, and by name:type where it says a type."""
    found: dict[str, int] = {}
    for part in _without_brackets(text).split(",") if text else ():
        name, _, rest = (part[5:] if part.startswith(_PREFIXES) else part).replace("=", ":").partition(":")
        kind, _, count = rest.rpartition(":")
        counted = amount(count, "KMGTP", _AMOUNT_DIGITS)
        if counted is None:  # a type alone, or nothing: one
            kind, number = rest, 1
        else:
            number = counted[0] << _SHIFTS[counted[1]]
        kinds = [word for word in kind.split(":") if word and word != "no_consume"]
        if name and name not in (*NOTHING, "gpu"):
            for key in (name, *(f"{name}:{word}" for word in kinds[:1])):
                found[key] = found.get(key, 0) + number
    return found


def _gpus(text: str) -> list[tuple[str, str, str]]:
    """What GPUS finds in a text."""
    found = []
    for part in _parts(text):
        if "gpu" in part:
            usual = _usual(part)
            if usual is None:
                return GPUS.findall(text)
            found.append(usual)
    return found


def _usual(part: str) -> tuple[str, str, str] | None:
    """What GPUS finds in one resource of the form `gpu:TYPE:NUMBER(...)`, parts of which may be missing; else None."""
    head, bracket, detail = (part[5:] if part.startswith(_PREFIXES) else part).partition("(")
    kind, words = head.removeprefix("gpu"), head.replace("=", ":").split(":")
    wrong_end = bracket and (not detail.endswith(")") or "(" in detail or ")" in detail[:-1])
    if words[0] != "gpu" or "" in words or wrong_end or "/" in kind or ")" in kind or not part.isprintable():
        return None
    count = words[-1] if len(words) > 1 and _short(words[-1]) is not None else ""
    return kind[: -len(count) - 1] if count else kind, count, detail[:-1]


def _parts(text: str) -> list[str]:
    """The text between the commas outside brackets."""
    found: list[str] = []
    for part in text.split(","):
        if found and "(" in found[-1] and not found[-1].endswith(")"):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _without_brackets(text: str) -> str:
    first, *rest = text.split("(")
    return first + "".join(piece.partition(")")[2] if ")" in piece else f"({piece}" for piece in rest)


def _spans(text: str) -> list[tuple[int, int]]:
    """(first, last) of each range in `0-3,5`."""
    found = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first, last = _short(low), _short(high if dash else low)
        if first is None or last is None:
            return [(int(a), int(b or a)) for a, b in SPAN.findall(text)]
        found.append((first, last))
    return found


def _short(text: str) -> int | None:
    return digits(text) if len(text) <= _MOST_DIGITS else None


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
