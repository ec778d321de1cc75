# SPDX-License-Identifier: MIT
"""The observer's word in a job's comment, and what the tick makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.base.errors import DataError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.publisher.observed import Collector, add
from slurm_pal.sensitivity import observed
from slurm_pal.sensitivity.behaviour import Behaviour, Traits
from slurm_pal.sensitivity.keys import name_key, script_key
from slurm_pal.sensitivity.observed import Observed
from slurm_pal.store import labels

NOW_S = 1_700_000_000.0
DIGEST = "0123456789abcdef"


def job(job_id: int, comment: str, name: str = "train", uid: int = 1000) -> SlurmJob:
    return SlurmJob(
        job_id, "RUNNING", "None", "u", name, "gpu", {"n0": (0,)}, ("n0",), (), (), 0.0, 0.0, 0.0, None, 0,
        comment, 1, uid=uid, batch=True, may_requeue=True,
    )  # fmt: skip


def said(sensitivity: str, confidence: float = 1.0, at_s: float = NOW_S, stage: str = "telemetry") -> str:
    seen = Behaviour(sensitivity, confidence, Traits(0.5, 0.9, 0.99), 120.0, "AA")
    return marks.word(observed.word(observed.of(seen, at_s, DIGEST, stage)))


@given(
    st.sampled_from("ABC"), st.floats(0, 1), st.floats(0, 1e6), st.sampled_from(["", DIGEST]),
    st.sampled_from(["telemetry", "probe"]), st.tuples(*[st.none() | st.floats(0, 2)] * 5),
)  # fmt: skip
def test_a_word_that_was_written_is_read(
    sensitivity: str, confidence: float, active_s: float, digest: str, stage: str,
    traits: tuple[float | None, ...],
) -> None:  # fmt: skip
    one = Observed(sensitivity, confidence, active_s, NOW_S, digest, stage, Traits(*traits))
    found = observed.read(f"my own words {marks.word(observed.word(one))}")
    assert found is not None
    assert (found.sensitivity, found.digest, found.stage, found.at_s) == (sensitivity, digest, stage, NOW_S)
    assert found.confidence == pytest.approx(confidence, abs=0.006) and found.active_s == pytest.approx(active_s, abs=1)
    assert [value is None for value in found.traits] == [value is None for value in traits]
    assert observed.evidence(found).stage == stage


@pytest.mark.parametrize(
    "word",
    [
        "", "pal:obs=Z;c=1.00;s=60;at=5", "pal:obs=A;c=9.9e9;s=60;at=5", "pal:obs=A;c=1.00;s=-1;at=5",
        "pal:obs=A;c=1.00;s=60", "pal:obs=A;c=;s=60;at=5", "pal:obs=A;c=1;s=60;at=5;duty=x", "pal:obs=?;c=1;s=1;at=1",
    ],
)  # fmt: skip
def test_a_word_that_no_observer_writes_is_none(word: str) -> None:
    assert observed.read(word) is None


def test_the_tick_takes_words_into_their_users_labels(tmp_path: Path) -> None:
    collector = Collector(str(tmp_path / "labels"))
    jobs = [job(1, said("B")), job(2, said("C"), uid=1001), job(3, "nothing")]
    assert collector.take(jobs, NOW_S) == 2
    assert collector.take(jobs, NOW_S + 15) == 0
    mine = labels.read(labels.path_of(str(tmp_path / "labels"), 1000))
    assert set(mine) == {name_key("train"), script_key(DIGEST)}
    assert mine[name_key("train")].sensitivity == "B"
    assert labels.read(labels.path_of(str(tmp_path / "labels"), 1001))[name_key("train")].sensitivity == "C"
    assert collector.take([job(1, said("B", 0.5, NOW_S + 60))], NOW_S + 60) == 1
    again = labels.read(labels.path_of(str(tmp_path / "labels"), 1000))[name_key("train")]
    assert again.jobs == 1 and again.seen[0].confidence == 0.5


def test_a_word_counts_only_if_slurm_shows_it_on_that_users_job(tmp_path: Path) -> None:
    """A job's name may hold what looks like another user's job: each is asked for by itself, and once."""
    mine, forged = job(1, said("B")), job(2, said("C"), uid=1001)
    of_another, changed = job(3, said("C"), uid=1001), job(4, said("A"))
    own = {1: mine, 3: job(3, said("C"), uid=0), 4: job(4, "")}
    asked: list[int] = []

    def ask(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        asked.extend(job_ids)
        return {job_id: own[job_id] for job_id in job_ids if job_id in own}

    collector = Collector(str(tmp_path), ask=ask)
    for _ in range(2):
        collector.take([mine, forged, of_another, changed], NOW_S)
    assert asked == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["1000.jsonl"]
    assert labels.read(labels.path_of(str(tmp_path), 1000))[name_key("train")].sensitivity == "B"


def test_where_slurm_does_not_answer_words_wait(tmp_path: Path) -> None:
    answers: list[object] = [SlurmError("scontrol: down"), {1: job(1, said("B"))}]

    def ask(job_ids: Sequence[int]) -> dict[int, SlurmJob]:
        found = answers.pop(0)
        if isinstance(found, SlurmError):
            raise found
        return found  # type: ignore[return-value]

    collector = Collector(str(tmp_path), ask=ask)
    with pytest.raises(DataError, match="of 1 jobs is left for the next time: scontrol: down"):
        collector.take([job(1, said("B"))], NOW_S)
    assert collector.take([job(1, said("B"))], NOW_S) == 1


def test_a_new_tick_counts_no_job_twice(tmp_path: Path) -> None:
    for _ in range(3):
        Collector(str(tmp_path)).take([job(1, said("B"))], NOW_S)
    assert labels.read(labels.path_of(str(tmp_path), 1000))[name_key("train")].jobs == 1


def test_a_users_own_tick_keeps_to_his_own_jobs(tmp_path: Path) -> None:
    assert Collector(str(tmp_path), only_uid=1000).take([job(2, said("C"), uid=1001)], NOW_S) == 0


def test_a_clock_that_is_wrong_does_not_make_a_label_the_newest_for_ever(tmp_path: Path) -> None:
    Collector(str(tmp_path)).take([job(1, said("B", at_s=NOW_S + 1e8))], NOW_S)
    assert labels.read(labels.path_of(str(tmp_path), 1000))[name_key("train")].seen[0].at_s <= NOW_S + 60


def test_a_damaged_file_is_replaced_and_a_locked_folder_told(tmp_path: Path) -> None:
    path = labels.path_of(str(tmp_path), 1000)
    Path(path).write_text("{}")
    assert Collector(str(tmp_path)).take([job(1, said("B"))], NOW_S) == 1
    assert labels.read(path)[name_key("train")].sensitivity == "B"


def test_a_probe_speaks_for_the_job_that_it_stands_for(tmp_path: Path) -> None:
    path = labels.path_of(str(tmp_path), 1000)
    word = observed.read(said("A", stage="probe"))
    assert word is not None
    add(path, job(9, "", "pal-probe:train"), word, NOW_S)
    assert labels.lookup(path, [name_key("train")])[name_key("train")].sensitivity == "A"


@pytest.mark.parametrize(
    ("comment", "sensitivity", "origin"),
    [
        ("pal:job=?;from=default", "C", "telemetry"),
        ("pal:job=A;from=script", "C", "telemetry"),
        ("pal:job=A;from=--pal-class", "A", "--pal-class"),
        ("pal:job=A;from=history", "A", "history"),
    ],
)
def test_a_running_job_is_what_it_was_seen_to_be_unless_somebody_knew(
    comment: str, sensitivity: str, origin: str
) -> None:
    found = facts_of(job(1, f"{comment} {said('C')}"), MoveSettings())
    assert (found.sensitivity, found.origin) == (sensitivity, origin)


def test_an_unsure_observation_changes_nothing() -> None:
    assert facts_of(job(1, f"pal:job=?;from=default {said('C', 0.7)}"), MoveSettings()).sensitivity == "?"
