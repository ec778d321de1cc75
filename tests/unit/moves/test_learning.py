# SPDX-License-Identifier: MIT
"""What jobs and moves teach: pace, GPUs that became slow, what predictions are worth."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Gpu
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move, Observation, Sample
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.moves.learning import (
    Corrections,
    agreed,
    calibration,
    calibrations,
    corrected,
    move_costs_s,
    observed_gain_s,
    remaining_s,
    sample,
    smoothed,
    step_time,
)
from slurm_pal.moves.learning import corrections as learn
from slurm_pal.store.snapshot import GpuScore, Snapshot, _columns

# -- the pace of one job -----------------------------------------------------------------------


def job(restarts: int = 0, job_id: int = 7) -> SlurmJob:
    return SlurmJob(
        job_id, "RUNNING", "None", "u", "train", "gpu", {"n1": (0,)}, ("n1",), (), (), 0.0, 100.0, 0.0, None, restarts,
        "", 1,
    )  # fmt: skip


def word(iteration: object, at: object, of: object = "", restarts: object = 0) -> dict[str, str]:
    pairs = {"it": str(iteration), "at": str(at), "r": str(restarts)}
    return pairs | ({"of": str(of)} if of != "" else {})


def test_step_time_is_what_passed_over_what_was_done() -> None:
    before = sample(word(100, 1000), job())
    assert before == Sample(7, 0, 100, 1000.0)
    assert step_time(before, word(300, 1050), job()) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("now", "restarts"),
    [
        (word(100, 1050), 0),  # no iteration since
        (word(50, 1050), 0),  # back to a checkpoint
        (word(300, 1000), 0),  # the clock stands still
        (word(300, 900), 0),  # or was set back
        (word(300, 1001), 0),  # whole seconds tell nothing of so short a time
        (word(300, 1050, restarts=1), 1),  # another incarnation
        (word(300, 1050), 1),  # its first words are still to come
        (word("x", 1050), 0),
        (word(300, "nan"), 0),
        (word("9" * 400, 1050), 0),
        ({}, 0),
    ],
)
def test_nothing_is_learnt_from_what_cannot_be_compared(now: dict[str, str], restarts: int) -> None:
    assert step_time(Sample(7, 0, 100, 1000.0), now, job(restarts)) is None
    assert step_time(None, now, job(restarts)) is None


def test_words_of_an_earlier_incarnation_are_not_this_ones() -> None:
    assert sample(word(100, 1000, restarts=0), job(1)) is None
    assert sample(word(100, 1000.5, restarts=1), job(1)) == Sample(7, 1, 100, 1000.5)


def test_a_job_id_that_was_given_again_is_another_job() -> None:
    assert step_time(Sample(8, 0, 100, 1000.0), word(300, 1050), job()) is None


@given(st.floats(1e-6, 1e6), st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20))
def test_one_look_never_does_more_than_its_share(first: float, looks: list[float]) -> None:
    mean = first
    for look in looks:
        before, mean = mean, smoothed(mean, look)
        assert 0.84 * before <= mean <= 1.31 * before
        assert min(before, look) * (1 - 1e-9) <= mean <= max(before, look) * (1 + 1e-9)
    assert smoothed(None, first) == first


def test_the_mean_follows_a_lasting_change() -> None:
    mean = 1.0
    for _ in range(20):
        mean = smoothed(mean, 1.5)
    assert mean == pytest.approx(1.5, rel=1e-3)


def test_time_to_go() -> None:
    assert remaining_s(word(100, 1, of=500), 0.5) == 200.0
    assert remaining_s(word(600, 1, of=500), 0.5) == 0.0
    assert remaining_s(word(100, 1), 0.5) is None
    assert remaining_s(word(100, 1, of="many"), 0.5) is None


# -- what jobs say of GPUs ---------------------------------------------------------------------


def seen(
    number: int,
    step_s: float,
    *gpus: Gpu,
    slowdown: float = 1.0,
    key: str = "u train 1 A",
    at_s: float | None = None,
    restarts: int = 0,
    sensitivity: str = "A",
) -> Observation:
    at_s = 1000.0 + number if at_s is None else at_s
    return Observation(key, number, restarts, sensitivity, gpus or (("n9", number),), slowdown, step_s, at_s)


def corrections(rows: Iterable[Observation], scores: Snapshot | None = None) -> Corrections:
    """As of one user who steers his own jobs."""
    return learn(rows, scores, users=1)


X, Y, Z = ("n1", 0), ("n1", 1), ("n1", 2)


def many(step_s: float, count: int = 6, first: int = 100, **more: str) -> list[Observation]:
    """Jobs of one key on GPUs of their own that run as predicted."""
    return [seen(first + k, step_s * (1.0 + 0.01 * (k % 3)), **more) for k in range(count)]  # type: ignore[arg-type]


def test_own_slowdown_is_step_over_the_median() -> None:
    found = corrections([*many(2.0), seen(1, 2.6, X, slowdown=1.3)])
    assert found.jobs[1] == pytest.approx(1.3, rel=0.03)
    assert found.jobs[100] == pytest.approx(1.0, rel=0.03)
    assert found.base_s["u train 1 A"] == pytest.approx(2.0, rel=0.03)
    assert found.exposed == ()


def test_one_observation_alone_says_nothing() -> None:
    assert corrections([seen(1, 2.0, X)]) == Corrections({}, {}, {}, {})
    assert corrections([]) == Corrections({}, {}, {}, {})


@pytest.mark.parametrize("true", [0.0, 0.5, 1.0, 2.0])
def test_sensitivity_is_the_part_of_the_prediction_that_is_felt(true: float) -> None:
    rows = [seen(k, 3.0 * p**true, slowdown=p) for k, p in enumerate([0.9, 1.0, 1.1, 1.3, 1.5, 1.0, 1.2, 0.95])]
    found = corrections(rows)
    assert found.sensitivity["u train 1 A"] == pytest.approx(true, abs=0.06)
    assert found.base_s["u train 1 A"] == pytest.approx(3.0, rel=0.02)
    assert found.jobs[4] == pytest.approx(1.5**true, rel=0.02)
    assert all(residual.factor == pytest.approx(1.0, abs=0.03) for residual in found.gpus.values())


@pytest.mark.parametrize("rows", [
    [seen(1, 1.0), seen(2, 1.2)],  # one prediction: no slope to be seen
    [seen(1, 1.0, slowdown=1.0), seen(2, 1.05, slowdown=1.001)],  # next to none
])  # fmt: skip
def test_sensitivity_stays_at_one_without_different_predictions(rows: list[Observation]) -> None:
    assert corrections(rows).sensitivity["u train 1 A"] == pytest.approx(1.0, abs=0.01)


def test_few_observations_are_believed_less_than_many() -> None:
    def learnt(count: int) -> float:
        rows = [seen(k, 1.0, slowdown=(1.0, 1.2)[k % 2]) for k in range(count)]
        return corrections(rows).sensitivity["u train 1 A"]

    assert 1.0 > learnt(2) > learnt(4) > learnt(40) > 0.0


def test_jobs_of_one_name_that_do_different_work_are_not_held_against_each_other() -> None:
    rows = [seen(k, step_s, X) for k, step_s in enumerate([1.0, 2.0, 4.0, 8.0, 16.0])]
    assert corrections(rows) == Corrections({}, {}, {}, {})
    same = [seen(9, 3.0, Y, restarts=0, at_s=1.0), seen(9, 3.6, X, restarts=1, at_s=2.0)]
    found = corrections([*rows, *same])
    assert found.jobs.keys() == {9} and found.jobs[9] == pytest.approx(3.6 / 3.3) and found.sensitivity == {}


def test_one_job_that_does_other_work_is_left_out() -> None:
    found = corrections([*many(1.0), seen(1, 5.0, X)])
    assert 1 not in found.jobs and (X, "A") not in found.gpus


def slow_on(gpu: Gpu, factor: float = 1.4, jobs: Iterable[int] = (1, 2, 3), **more: object) -> list[Observation]:
    return [seen(k, factor, gpu, **more) for k in jobs]  # type: ignore[arg-type]


def test_a_gpu_that_became_slow_is_exposed() -> None:
    found = corrections([*many(1.0), *slow_on(X)])
    assert [gpu for gpu, _ in found.exposed] == [X]
    assert found.exposed[0][1] == pytest.approx(1.4, rel=0.05)
    assert found.gpus[X, "A"].samples == 3 and found.gpus[X, "A"].slow_jobs == {1, 2, 3}


@pytest.mark.parametrize("rows", [
    slow_on(X, jobs=(1, 2)),  # two looks
    [seen(1, 1.4, X, restarts=k, at_s=1000.0 + k) for k in range(5)],  # one job
    slow_on(X, 1.08),  # not by much
    [*slow_on(X), *[seen(20 + k, 1.0, X) for k in range(8)]],  # it has recovered since
])  # fmt: skip
def test_a_gpu_is_not_accused_lightly(rows: list[Observation]) -> None:
    assert corrections([*many(1.0, 12), *rows]).exposed == ()


def test_nobody_alone_keeps_others_off_a_gpu() -> None:
    liar = [*many(1.0, 20), *slow_on(X, 1.9, jobs=range(1, 9))]
    found = learn(liar)
    assert found.exposed == () and found.jobs[1] == pytest.approx(1.9, rel=0.05), "his own jobs may believe him"
    other = [*many(1.0, first=300, key="v eval 1 A"), *slow_on(X, 1.4, jobs=(20,), key="v eval 1 A")]
    assert [gpu for gpu, _ in learn([*liar, *other]).exposed] == [X]
    same = [one._replace(key=one.key.replace("v eval", "u eval")) for one in other]
    assert learn([*liar, *same]).exposed == ()


def test_what_was_predicted_is_no_news() -> None:
    assert corrections([*many(1.0, 12), *[seen(k, 1.4, X, slowdown=1.4) for k in (1, 2, 3, 4)]]).exposed == ()


WIDE = {"key": "u wide 2 A"}


def test_of_a_wide_job_the_gpu_is_blamed_for_which_nobody_speaks() -> None:
    rows = [*many(1.0), *many(1.0, first=200, **WIDE), *[seen(50 + k, 1.0, Y) for k in range(3)]]
    found = corrections([*rows, *[seen(k, 1.4, X, Y, at_s=2000.0, **WIDE) for k in (1, 2, 3)]])  # type: ignore[arg-type]
    assert [gpu for gpu, _ in found.exposed] == [X]
    assert found.gpus[Y, "A"].factor == pytest.approx(1.0, abs=0.02) and not found.gpus[Y, "A"].slow_jobs


def test_a_wide_job_accuses_all_its_gpus_a_little() -> None:
    wide = [seen(k, 1.4, X, Y, at_s=2000.0 + k, **WIDE) for k in (1, 2, 3, 4)]  # type: ignore[arg-type]
    base = [*many(1.0), *many(1.0, 12, first=200, **WIDE)]
    found = corrections([*base, *wide])
    assert found.exposed == () and found.gpus[X, "A"].samples == found.gpus[Y, "A"].samples == 2.0
    twice = [one._replace(job_id=one.job_id + 10, at_s=one.at_s + 10) for one in wide]
    assert {gpu for gpu, _ in corrections([*base, *wide, *twice]).exposed} == {X, Y}


@pytest.mark.parametrize(("age_s", "blamed"), [(3600.0, {Y}), (2 * 86400.0, {X, Y})])
def test_yesterdays_word_does_not_clear_a_gpu(age_s: float, blamed: set[Gpu]) -> None:
    now_s = 1e6
    rows = [*many(1.0), *many(1.0, first=200, **WIDE), seen(50, 1.0, X, at_s=now_s - age_s)]
    found = corrections([*rows, seen(1, 1.4, X, Y, at_s=now_s, **WIDE)])  # type: ignore[arg-type]
    assert {gpu for (gpu, _), residual in found.gpus.items() if residual.slow_jobs} == blamed


@pytest.mark.parametrize(("speaker", "blamed"), [(1, {X, Y}), (2, {Y})])
def test_a_job_does_not_clear_its_own_gpus(speaker: int, blamed: set[Gpu]) -> None:
    fast = seen(speaker, 1.0, X, Z, at_s=2000.0, **WIDE)  # type: ignore[arg-type]
    slow = seen(1, 1.4, X, Y, at_s=2001.0, restarts=1, **WIDE)  # type: ignore[arg-type]
    found = corrections([*many(1.0, 12, first=200, **WIDE), fast, slow])
    assert {gpu for (gpu, _), residual in found.gpus.items() if residual.slow_jobs} == blamed


def scores(measured_s: float = 500.0, slowdown: float = 1.0, gpus: Sequence[Gpu] = (X, Y, Z)) -> Snapshot:
    rows = [
        GpuScore(node, k, "", "m", {"A": slowdown, "B": 1.0}, {"A": "v0", "B": "v0", "C": "?"}, measured_s, 1.0, ())
        for node, k in gpus
    ]
    return Snapshot({"centroids": {"A": [1.0, 1.2, 1.5], "B": [1.0]}, "epoch": 4}, *_columns(rows))


def test_a_new_measurement_knows_already() -> None:
    rows = [*many(1.0), *slow_on(X)]
    assert corrections(rows, scores(500.0)).exposed != ()
    assert corrections(rows, scores(1002.5)).gpus[X, "A"].samples == 1
    assert corrections(rows, scores(5000.0)).exposed == ()


def test_step_times_on_another_model_accuse_no_gpu() -> None:
    fast = [seen(k, 1.0, ("f", k)) for k in range(6)]
    slow = [seen(10 + k, 1.5, ("s", k)) for k in range(6)]
    rows = [
        GpuScore(node, k, "", node, {"A": 1.0, "B": 1.0}, {"A": "v0", "B": "v0", "C": "?"}, 500.0, 1.0, ())
        for node in "fs" for k in range(6)
    ]  # fmt: skip
    known = Snapshot({"centroids": {"A": [1.0], "B": [1.0]}, "epoch": 4}, *_columns(rows))
    found = learn([*fast, *slow], known, users=1)
    assert found.exposed == () and all(factor == pytest.approx(1.0) for factor in found.jobs.values())
    assert "u train 1 A" not in found.base_s  # it has one on each model


def test_corrected_scores_are_a_copy_with_slower_gpus() -> None:
    before = scores()
    learnt = corrections([*many(1.0), *slow_on(X)])
    after = corrected(before, learnt)
    assert after.slowdown("A", *X) == pytest.approx(1.4, rel=0.05)
    assert after.gpu(0).variability_class == {"A": "v2", "B": "v0", "C": "?"}
    assert [after.slowdown("A", *gpu) for gpu in (Y, Z)] == [1.0, 1.0]
    assert after.slowdown("B", *X) == 1.0, "jobs of class A alone have felt it"
    assert before.slowdown("A", *X) == 1.0 and before.gpu(0).variability_class["A"] == "v0"
    assert (after.epoch, after.centroids, after.nodes, len(after)) == (4, before.centroids, ["n1"], 3)


def test_what_insensitive_jobs_feel_all_feel() -> None:
    rows = [*many(1.0, sensitivity="C"), *slow_on(X, sensitivity="C")]
    after = corrected(scores(), corrections(rows))
    assert [after.slowdown(c, *X) for c in "ABC"] == pytest.approx([1.4] * 3, rel=0.05)  # an unknown one was 1.0


def test_jobs_that_feel_little_do_not_speak_for_those_that_feel_much() -> None:
    dull = [seen(300 + k, 1.0, X, key="u dull 1 C", sensitivity="C") for k in range(8)]
    found = corrections([*many(1.0), *dull, *slow_on(X)])
    assert [gpu for gpu, _ in found.exposed] == [X]
    assert found.gpus[X, "C"].factor == pytest.approx(1.0) and not found.gpus[X, "C"].slow
    assert [corrected(scores(), found).slowdown(c, *X) for c in "AB"] == pytest.approx([1.4, 1.0], rel=0.05)


def test_without_exposed_gpus_the_scores_are_the_same_object() -> None:
    before = scores()
    assert corrected(before, corrections(many(1.0))) is before
    stranger = corrections([*many(1.0), *slow_on(("n7", 0))])
    assert stranger.exposed and corrected(before, stranger).columns["slowdown_A"] == before.columns["slowdown_A"]


observed = st.builds(
    Observation,
    key=st.sampled_from(["a", "b"]),
    job_id=st.integers(1, 9),
    restarts=st.integers(0, 3),
    sensitivity=st.sampled_from(["A", "B", "C", "?"]),
    gpus=st.lists(st.sampled_from([X, Y, Z, ("n2", 0)]), min_size=1, max_size=4, unique=True).map(tuple),
    slowdown=st.floats(0.5, 2.0) | st.floats(),
    step_s=st.floats(0.5, 2.0) | st.floats(),
    at_s=st.floats(0.0, 1e5),
    level=st.integers(0, 3),
)


@given(st.lists(observed, max_size=30))
def test_whatever_is_observed_corrections_stay_in_bounds(rows: list[Observation]) -> None:
    found = corrections(rows, scores())
    assert all(0.0 <= value <= 3.0 for value in found.sensitivity.values())
    assert all(0.5 <= r.factor <= 2.0 and r.samples <= len(rows) + 1e-9 for r in found.gpus.values())
    assert all(1.1 < factor <= 3.0 for _, factor in found.exposed)
    assert all(math.isfinite(value) and value > 0 for value in found.jobs.values())
    before, after = scores(), corrected(scores(), found)
    exposed = {gpu for gpu, _ in found.exposed}
    for gpu in (X, Y, Z):
        for c in "ABC":
            old, new = before.slowdown(c, *gpu) or 1.0, after.slowdown(c, *gpu) or 1.0
            assert old <= new <= 3.0 * old + 1e-6 and (gpu in exposed or new == old)


@given(st.lists(observed, max_size=12, unique_by=lambda one: (one.job_id, one.restarts)), st.randoms())
def test_the_order_of_the_rows_does_not_matter(rows: list[Observation], draw: random.Random) -> None:
    shuffled = draw.sample(rows, len(rows))
    assert corrections(rows) == corrections(shuffled)


# -- what moves brought ------------------------------------------------------------------------


def move(
    observed: float | None, outcome: str = "moved", before: float = 1.3, after: float = 1.0, gain_s: float = 300.0
) -> Move:
    return Move(
        1, 7, "u", 0.0, 0, "n1:0", ("n2",), "n2:0", "", before, after, gain_s, 60.0, True, "",
        MoveStep.TARGETING, 0.0, MoveOutcome(outcome), observed=observed,
    )  # fmt: skip


def test_predictions_that_come_true_keep_their_weight() -> None:
    assert calibration([]) == 1.0
    assert calibration([move(1.3)] * 20) == pytest.approx(1.0)


def test_predictions_that_do_not_lower_the_appetite_the_more_the_more_often() -> None:
    found = [calibration([move(1.0)] * count) for count in (1, 4, 12, 40)]
    assert found == pytest.approx([4 / 5, 1 / 2, 1 / 4, 1 / 4])


def test_moves_that_failed_count_as_no_gain_and_silent_ones_not_at_all() -> None:
    assert calibration([move(None, "elsewhere"), move(1.3, "abandoned")]) == pytest.approx(4 / 6)
    assert calibration([move(None), move(None, ""), move(1.0, "ended"), move(1.0, "waiting")]) == 1.0
    assert calibration([move(1.0, before=1.0, after=1.0), move(1.0, before=0.0)]) == 1.0


def test_one_job_that_stood_still_does_not_end_all_moves() -> None:
    assert calibration([*[move(1.3)] * 20, move(1e-6)]) == pytest.approx(1.0 - (1.0 + 0.3 / 1.3) / (25 * 0.3 / 1.3))


@given(st.lists(st.builds(
    move, st.none() | st.floats(0.0, 100.0), st.sampled_from(["moved", "elsewhere", "abandoned", ""]),
    st.floats(0.0, 5.0), st.floats(0.0, 5.0)), max_size=10))  # fmt: skip
def test_calibration_stays_in_bounds(moves: list[Move]) -> None:
    assert 0.25 <= calibration(moves) <= 1.5


def test_observed_gain_is_the_predicted_one_where_the_prediction_came_true() -> None:
    assert observed_gain_s(move(1.3)) == pytest.approx(300.0)
    assert observed_gain_s(move(1.0)) == 0.0
    assert observed_gain_s(move(0.8)) == pytest.approx(-325.0)
    assert observed_gain_s(move(None)) is None and observed_gain_s(move(1.3, "abandoned")) is None


def timed(*costs_s: float, outcome: str = "moved") -> list[tuple[Move, list[tuple[str, float]]]]:
    return [(move(None, outcome)._replace(ended_s=1000.0 + s), [("a", 1000.0), ("b", 1000.5)]) for s in costs_s]


def test_the_cost_of_a_move_is_measured() -> None:
    assert move_costs_s([], 60.0) == {}
    assert move_costs_s(timed(10.0), 60.0) == {"u": pytest.approx(50.0)}
    assert move_costs_s(timed(*[10.0] * 96), 60.0) == {"u": pytest.approx(12.0)}
    assert move_costs_s([*timed(10.0, outcome="elsewhere"), (move(None), [])], 60.0) == {}
    assert move_costs_s(timed(-3600.0), 60.0) == {}, "the clock was set back"


def test_one_move_that_hung_does_not_set_the_cost() -> None:
    assert move_costs_s(timed(10.0, 10.0, 10.0, 90000.0), 10.0) == {"u": pytest.approx(12.5)}


def test_one_user_does_not_speak_for_all() -> None:
    honest = [move(1.3)._replace(user=user) for user in ("b", "c") for _ in range(5)]
    liar = [move(0.5)._replace(user="a") for _ in range(50)]
    assert calibrations(liar)["a"] < 0.4 and calibration([*honest, *liar]) == pytest.approx(1.0)
    slow = [(one._replace(user="a"), steps) for one, steps in timed(*[119.0] * 50)]
    others = [(one._replace(user=user), steps) for user in ("b", "c") for one, steps in timed(*[10.0] * 5)]
    costs_s = move_costs_s([*others, *slow], 60.0)
    assert costs_s["b"] == costs_s["c"] == move_costs_s(others, 60.0)["b"] and costs_s["a"] > 100.0


@given(st.lists(st.floats(0.25, 1.5), max_size=6), st.floats(0.25, 1.5), st.floats(0.25, 1.5))
def test_one_voter_alone_leads_nobody_beyond_what_others_say(others: list[float], liar: float, assumed: float) -> None:
    """Whatever X's moves seem to have brought, users without a record get no less and no more than others say."""
    said = [*others, assumed]
    assert min(said) <= agreed([*others, liar], assumed) <= max(said)
    assert agreed([liar], assumed) == assumed
