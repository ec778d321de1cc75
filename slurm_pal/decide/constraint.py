# SPDX-License-Identifier: MIT
"""The part of sbatch's --constraint language that can be judged per node.

Names joined by `&` or by `|`, with parentheses. Counts (`a*2`), matching sets
(`[a|b]`) and a mixture of `&` and `|` without parentheses, whose order Slurm decides,
are left to Slurm.
"""

from __future__ import annotations

from slurm_pal.base.light import Callable

Predicate = Callable[[frozenset[str]], bool]

MOST_CHARACTERS = 4096
MOST_PARENTHESES = 50
"""Deeper than anybody writes by hand; bounds the recursion of the parser."""


def compile_constraint(text: str) -> Predicate | None:
    """A test of a node's active features; None when one node cannot answer it."""
    short = len(text) <= MOST_CHARACTERS and text.count("(") <= MOST_PARENTHESES
    tokens = _tokens(text) if short else None
    if tokens is None:
        return None
    parsed = _expression(tokens, 0)
    return parsed[0] if parsed is not None and parsed[1] == len(tokens) else None


def _tokens(text: str) -> list[str] | None:
    tokens: list[str] = []
    name = ""
    for char in text:
        if char in "&|()":
            tokens += [name, char] if name else [char]
            name = ""
        elif char.isalnum() or char in "_-.:=/":
            name += char
        else:
            return None
    return [*tokens, name] if name else tokens


def _expression(tokens: list[str], position: int) -> tuple[Predicate, int] | None:
    parts: list[Predicate] = []
    operator = ""
    while True:
        term = _term(tokens, position)
        if term is None:
            return None
        parts.append(term[0])
        position = term[1]
        following = tokens[position] if position < len(tokens) else ""
        if following not in ("&", "|"):
            return _joined(parts, operator), position
        if operator and following != operator:
            return None
        operator = following
        position += 1


def _term(tokens: list[str], position: int) -> tuple[Predicate, int] | None:
    if position >= len(tokens) or tokens[position] in ("&", "|", ")"):
        return None
    if tokens[position] == "(":
        inner = _expression(tokens, position + 1)
        if inner is None or inner[1] >= len(tokens) or tokens[inner[1]] != ")":
            return None
        return inner[0], inner[1] + 1
    name = tokens[position]
    return (lambda features: name in features), position + 1


def _joined(parts: list[Predicate], operator: str) -> Predicate:
    if operator == "|":
        return lambda features: any(part(features) for part in parts)
    return lambda features: all(part(features) for part in parts)
