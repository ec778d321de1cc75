# SPDX-License-Identifier: MIT
"""The cascade: which stage decides, whose word counts, and that nothing dearer is asked than needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.sensitivity.cascade import HISTORY, SCRIPT, UNKNOWN, WORD, Evidence, decide

SURE = {HISTORY: 0.8, SCRIPT: 0.8}
SAID_B = Evidence(WORD, "B", 1.0, "--pal-class")


def measured(sensitivity: str, confidence: float = 0.9) -> Evidence:
    return Evidence(HISTORY, sensitivity, confidence, "3 jobs")


def shown(sensitivity: str, confidence: float = 0.9) -> Evidence:
    return Evidence(SCRIPT, sensitivity, confidence, "resnet50")


@pytest.mark.parametrize(
    ("past", "script", "stage", "sensitivity", "considered"),
    [
        (measured("C"), shown("A"), HISTORY, "C", 1),
        (measured("C", 0.5), shown("A"), SCRIPT, "A", 2),
        (None, shown("A"), SCRIPT, "A", 1),
        (None, shown("A", 0.79), "", "?", 1),
        (measured("?", 1.0), None, "", "?", 1),
        (None, None, "", "?", 0),
    ],
)
def test_the_first_stage_that_is_sure_enough_decides(
    past: Evidence | None, script: Evidence | None, stage: str, sensitivity: str, considered: int
) -> None:
    found = decide(None, lambda: past, [lambda: script], SURE)
    assert (found.stage, found.sensitivity, len(found.considered)) == (stage, sensitivity, considered)
    assert found.measured == past


def test_a_stage_that_nobody_needs_is_not_asked() -> None:
    def never() -> Evidence | None:
        raise AssertionError("asked for nothing")

    assert decide(None, lambda: measured("A"), [never], SURE).stage == HISTORY
    assert decide(SAID_B, lambda: None, [never], SURE).stage == WORD


@pytest.mark.parametrize(
    ("trust", "past", "sensitivity"),
    [
        ("user", "C", "B"), ("user", "A", "B"), ("measured", "C", "C"), ("measured", "A", "A"),
        ("more-sensitive", "C", "B"), ("more-sensitive", "A", "A"), ("measured", "B", "B"),
    ],
)  # fmt: skip
def test_the_site_says_whose_word_counts(trust: str, past: str, sensitivity: str) -> None:
    found = decide(SAID_B, lambda: measured(past), [], SURE, trust)
    assert found.sensitivity == sensitivity
    assert found.measured == measured(past)
    assert [one.stage for one in found.considered] == [WORD, HISTORY]
    if sensitivity != "B":
        assert "the user said B" in found.why and found.stage == HISTORY


@pytest.mark.parametrize(
    ("word", "past", "script", "is_measured"),
    [
        (None, measured("C"), None, True), (None, None, shown("C"), False),
        (None, measured("C", 0.5), shown("C"), False),
        ("C", None, None, False), ("C", measured("C"), None, True), ("C", measured("C", 0.5), None, False),
        ("C", measured("A"), None, False), (None, None, None, False),
    ],
)  # fmt: skip
def test_whether_a_class_was_measured_whoever_states_it(
    word: str | None, past: Evidence | None, script: Evidence | None, is_measured: bool
) -> None:
    said = None if word is None else Evidence(WORD, word, 1.0, "--pal-class")
    assert decide(said, lambda: past, [lambda: script], SURE).is_measured is is_measured


def test_an_unsure_measurement_never_beats_the_user() -> None:
    assert decide(SAID_B, lambda: measured("C", 0.7), [], SURE, "measured").sensitivity == "B"


def test_a_threshold_above_one_switches_a_stage_off() -> None:
    assert decide(None, lambda: measured("C", 1.0), [], {HISTORY: 1.1}) == UNKNOWN._replace(
        considered=(measured("C", 1.0),), measured=measured("C", 1.0)
    )


def test_each_stage_bears_what_it_cost() -> None:
    times = iter([10.0, 10.5, 20.0, 20.25])
    found = decide(None, lambda: measured("C", 0.1), [lambda: shown("A")], SURE, clock=lambda: next(times))
    assert [one.cost_s for one in found.considered] == [0.5, 0.25]


@given(
    st.sampled_from(["A", "B", "C"]),
    st.sampled_from(["A", "B", "C"]),
    st.floats(0, 1),
    st.sampled_from(["user", "measured", "more-sensitive"]),
)
def test_more_sensitive_never_lowers_what_the_user_said(word: str, past: str, confidence: float, trust: str) -> None:
    found = decide(Evidence(WORD, word, 1.0, "x"), lambda: measured(past, confidence), [], SURE, trust)
    assert found.sensitivity in (word, past)
    if trust == "more-sensitive":
        assert found.sensitivity <= word
