# SPDX-License-Identifier: MIT
"""The ladder: what carries a GPU up, what takes it down, and that nothing flaps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.online.ladder import QUIET_S, REMEMBERED_S, RESERVE_AFTER_S, Measured, RungStep, Terms, climb
from slurm_pal.store.late import RUNGS, Heard, LateGpu

NOW_S = 1_800_000_000.0
GPU = ("n1", 2)
SOUND = {GPU: Measured("u", NOW_S - 86400.0, {"A": 1.0, "B": 1.0, "C": 1.0})}


def said(
    job_id: int, user: str, at_s: float, factor: float = 1.08, sensitivity: str = "A"
) -> tuple[tuple[str, int], Heard]:
    return GPU, Heard(job_id, user, factor, sensitivity, at_s)


class Site:
    """One GPU's way."""

    def __init__(self, most: str = "drain", users: int = 2) -> None:
        self.known: tuple[LateGpu, ...] = ()
        self.steps: list[RungStep] = []
        self.terms, self.now_s, self.measured = Terms(most, users), NOW_S, dict(SOUND)

    def look(self, *jobs: tuple[int, str], after_s: float = 60.0, factor: float = 1.08) -> str:
        self.now_s += after_s
        heard = [said(job_id, user, self.now_s, factor) for job_id, user in jobs]
        self.known, steps = climb(self.known, heard, self.measured, self.terms, self.now_s)
        self.steps += steps
        return self.known[0].rung if self.known else ""

    def looks(self, times: int, *jobs: tuple[int, str]) -> str:
        return [self.look(*jobs) for _ in range(times)][-1]


ONE, TWO = ((1, "ada"),), ((1, "ada"), (2, "bob"))


def test_one_job_is_observed_and_annotated_and_no_more() -> None:
    site = Site()
    assert [site.look(*ONE) for _ in range(4)] == ["observe", "observe", "annotate", "annotate"]
    assert site.looks(50, *ONE) == "annotate"
    assert site.look((1, "ada"), (3, "ada")) == "annotate", "another job of the same user is no other user"


@pytest.mark.parametrize("most", ["observe", "annotate", "avoid", "reserve"])
def test_nobody_goes_further_than_the_site_says(most: str) -> None:
    site = Site(most)
    assert site.looks(60, *TWO) == most
    assert [step.gpu.rung for step in site.steps] == list(RUNGS[1 : RUNGS.index(most) + 1]), "one rung at a time"


def test_the_default_is_the_mildest() -> None:
    assert Terms().most == "observe"


def test_a_measurement_releases_and_a_known_slowness_is_no_news() -> None:
    site = Site("avoid")
    site.looks(6, *TWO)
    site.measured[GPU] = Measured("u", site.now_s + 1.0, {"A": 1.1})
    assert site.look(after_s=2.0) == "released" and site.steps[-1].why == "it was measured"
    assert site.looks(10, *TWO) == "released", "its score says so now"
    site.measured[GPU] = Measured("u", site.now_s, {"A": 1.0})
    assert site.look(*TWO) == "observe", "the measurement does not say so, and jobs still do"


def test_only_words_after_the_measurement_count() -> None:
    late_s = SOUND[GPU].measured_s
    known, steps = climb((), [said(1, "ada", late_s - 1.0)], SOUND, Terms(), NOW_S)
    assert known == () and steps == ()


def test_a_clock_that_is_ahead_gains_nothing() -> None:
    assert climb((), [said(1, "ada", NOW_S + 1e9)], SOUND, Terms(), NOW_S) == ((), ())
    site, word = Site(), said(1, "ada", NOW_S + 250.0)
    for _ in range(5):
        site.now_s += 30.0
        site.known, _ = climb(site.known, [word], site.measured, site.terms, site.now_s)
    assert (site.known[0].rung, site.known[0].heard[0].looks) == ("observe", 1), "one report, however often it is read"
    site.measured[GPU] = Measured("u", NOW_S + 400.0, {"A": 1.0})
    site.known, _ = climb(site.known, [word], site.measured, site.terms, NOW_S + 430.0)
    assert site.known[0].rung == "released", "a measurement ends it, although the word still stands on the job"


def test_after_a_week_without_a_word_it_is_released_and_after_a_month_forgotten() -> None:
    site = Site()
    site.looks(5, *TWO)
    assert site.look(after_s=QUIET_S - 60.0) == "reserve"
    assert site.look(after_s=120.0) == "released" and "week" in site.steps[-1].why
    assert site.look(after_s=REMEMBERED_S - 1.0) == "released"
    assert site.look(after_s=2.0) == ""


def test_another_gpu_in_the_slot_is_another_gpu() -> None:
    site = Site("avoid")
    site.looks(6, *TWO)
    site.measured[GPU] = Measured("other", SOUND[GPU].measured_s, {"A": 1.0})
    assert site.look() == "released" and site.steps[-1].why == "another GPU is there"


def test_it_is_reserved_after_a_while_and_drained_only_after_two_vain_measurements() -> None:
    site = Site()
    site.looks(5, *TWO)
    assert site.known[0].rung == "avoid"
    assert site.look(*TWO, after_s=RESERVE_AFTER_S) == "reserve"
    for again in (1, 2):
        assert site.looks(30, *TWO) == "reserve"
        site.measured[GPU] = Measured("u", site.now_s + 1.0, {"A": 1.0})
        assert site.look(after_s=2.0) == "released" and site.known[0].measured == again
        site.looks(5, *TWO)
        site.look(*TWO, after_s=RESERVE_AFTER_S)
    assert site.look(*TWO) == "drain"


def test_a_lower_rule_takes_steps_back_and_says_so() -> None:
    site = Site("avoid")
    site.looks(6, *TWO)
    site.terms = Terms("observe")
    assert site.look(*TWO) == "observe" and "rule" in site.steps[-1].why


def test_a_process_that_only_looks_climbs_no_further_and_lowers_nothing() -> None:
    site = Site("avoid")
    site.terms = Terms("avoid", 2, climbs=False)
    assert site.looks(6, *TWO) == "observe"
    site.terms = Terms("avoid", 2)
    assert site.looks(6, *TWO) == "avoid"
    site.terms = Terms("avoid", 2, climbs=False)
    assert site.looks(6, *TWO) == "avoid"


def test_steps_of_several_users_jobs_count_as_agreed() -> None:
    site = Site("avoid")
    for _ in range(4):
        site.now_s += 60.0
        heard = [(GPU, Heard(0, "", 1.2, "A", site.now_s, agreed=True))]
        site.known, _ = climb(site.known, heard, site.measured, site.terms, site.now_s)
    assert site.known[0].rung == "avoid"


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(1.0, 2.0)), min_size=1, max_size=40))
def test_without_a_measurement_it_only_goes_up(history: Iterable[tuple[bool, bool, float]]) -> None:
    site, rungs = Site(), [0]
    for ada, bob, factor in history:
        jobs = [job for job, speaks in (((1, "ada"), ada), ((2, "bob"), bob)) if speaks]
        rungs.append(RUNGS.index(site.look(*jobs, factor=factor) or "released"))
    assert all(a <= b <= a + 1 for a, b in pairwise(rungs))
