# SPDX-License-Identifier: MIT
"""Round procedures of replica mode: who runs, who stays, who is killed (pal.md 3.3, 3.6)."""

from __future__ import annotations

import pytest
from hypothesis import given as cases
from hypothesis import settings as trials
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.research.replica.active import ActiveJob, Gpus, RoundSettings, RoundState
from slurm_pal.research.replica.published_policies import POLICIES, build
from slurm_pal.simulate.inputs.pal_profile import CLASSES, Profile, given
from slurm_pal.simulate.inputs.pal_rows import PalRow


def profile(n_nodes: int = 3, size: int = 2, slow: int | None = None) -> Profile:
    """Distinct slowdowns near 1.0; `slow` is one GPU at 3.0."""
    values = {c: [1.0 + (g * 7 % 5) / 100 + i / 1000 for g in range(n_nodes * size)] for i, c in enumerate(CLASSES)}
    if slow is not None:
        for column in values.values():
            column[slow] = 3.0
    return given(values, size)


def job(number: int, size: int, sensitivity: str = "A", gpus: Gpus = ()) -> ActiveJob:
    made = ActiveJob(number, PalRow(str(number), size, 0.0, 100.0, 1.0, sensitivity), 0.0)
    made.gpus = gpus
    return made


def place(
    policy: str, jobs: list[ActiveJob], cluster: Profile, settings: RoundSettings | None = None
) -> dict[int, Gpus]:
    settings = settings or RoundSettings()
    return dict(build(policy, cluster, settings)(RoundState(0.0, jobs, cluster, settings)))


JOBS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(CLASSES)), max_size=10)


@pytest.mark.parametrize("policy", POLICIES)
@trials(max_examples=60, deadline=None)
@cases(wanted=JOBS, backfill=st.booleans(), barred=st.booleans(), size=st.sampled_from([1, 2, 3]))
def test_capacity_and_sizes(
    policy: str, wanted: list[tuple[int, str]], backfill: bool, barred: bool, size: int
) -> None:
    cluster = profile(6 // size, size, slow=1)
    settings = RoundSettings(backfill=backfill, barred={"A": 1.5} if barred else {})
    jobs = [job(i, n, c) for i, (n, c) in enumerate(wanted)]
    placed = place(policy, jobs, cluster, settings)
    held = [g for gpus in placed.values() for g in gpus]
    assert len(held) == len(set(held)) and set(held) <= set(range(6))
    for number, gpus in placed.items():
        assert len(gpus) == jobs[number].size and list(gpus) == sorted(gpus)
        assert not (barred and jobs[number].sensitivity == "A" and 1 in gpus)
    if not barred:
        assert list(sorted(placed)) == expected_jobs(jobs, backfill, 6)


def expected_jobs(jobs: list[ActiveJob], backfill: bool, left: int) -> list[int]:
    """On an empty cluster without bars every rule places a job as soon as there are GPUs enough."""
    found = []
    for one in jobs:
        if one.size <= left:
            found.append(one.number)
            left -= one.size
        elif not backfill:
            break
    return found


def test_the_most_sensitive_class_is_served_first() -> None:
    cluster = given({c: [1.0, 1.0, 2.0] for c in CLASSES}, 1)
    assert place("pm-first", [job(0, 1, "D"), job(1, 2, "A")], cluster) == {0: (2,), 1: (0, 1)}


def test_backfilled_jobs_come_after_the_sorted_head() -> None:
    """As the artefact appends the rest of the queue, a late job of class A does not go before the head."""
    cluster = given({c: [1.0, 1.0, 2.0] for c in CLASSES}, 1)
    jobs = [job(0, 2, "D"), job(1, 3, "B"), job(2, 1, "A")]
    assert place("pm-first", jobs, cluster, RoundSettings(backfill=True)) == {0: (0, 1), 2: (2,)}
    assert place("pm-first", jobs, cluster) == {0: (0, 1)}


@pytest.mark.parametrize("policy", ["packed-s", "random-s"])
def test_sticky_keeps_gpus(policy: str) -> None:
    jobs = [job(0, 2, gpus=(1, 4)), job(1, 2), job(2, 1, gpus=(0,))]
    placed = place(policy, jobs, profile())
    assert placed[0] == (1, 4) and placed[2] == (0,)
    assert set(placed[1]) < {2, 3, 5}


def test_sticky_kills_from_the_tail_and_no_more_than_needed() -> None:
    jobs = [job(0, 2), job(1, 2, gpus=(0, 1)), job(2, 2, gpus=(2, 3)), job(3, 2, gpus=(4, 5))]
    assert place("packed-s", jobs, profile()) == {0: (4, 5), 1: (0, 1), 2: (2, 3)}


def test_what_a_killed_job_leaves_serves_the_next_too() -> None:
    jobs = [job(0, 3), job(1, 1), job(2, 2, gpus=(2, 3)), job(3, 2, gpus=(4, 5))]
    assert place("packed-s", jobs, profile()) == {0: (0, 1, 4), 1: (5,), 2: (2, 3)}


def test_jobs_killed_in_vain_stay_killed() -> None:
    jobs = [job(0, 4, gpus=(0, 1, 2, 3)), job(1, 4), job(2, 1, gpus=(4,))]
    assert place("packed-s", jobs, profile()) == {0: (0, 1, 2, 3)}


def test_backfilled_sticky_tries_the_killed_job_again() -> None:
    jobs = [job(0, 4, gpus=(0, 1, 2, 3)), job(1, 4), job(2, 1, gpus=(5,))]
    assert place("packed-s", jobs, profile(), RoundSettings(backfill=True)) == {0: (0, 1, 2, 3), 2: (4,)}


def test_random_goes_on_from_the_profiles_generator() -> None:
    cluster = profile()
    jobs = [job(0, 2)]
    assert place("random-ns", jobs, cluster) == place("random-ns", jobs, cluster)
    policy = build("random-ns", cluster, RoundSettings())
    answers = {tuple(policy(RoundState(0.0, jobs, cluster, RoundSettings())).items()) for _ in range(20)}
    assert len(answers) > 1


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match=r"policy 'best' is not one of packed-s, .*pal"):
        build("best", profile(), RoundSettings())
    with pytest.raises(UsageError, match="class 'E' to bar is not one of A, B, C, D"):
        build("pal", profile(), RoundSettings(barred={"E": 1.5}))
