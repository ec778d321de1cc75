# SPDX-License-Identifier: MIT
"""What is said of a job that goes on after its time limit."""

from __future__ import annotations

import pytest

from slurm_pal.report.continued import continued, line

from ...doubles.running_factory import job

WORDS = "pal:job=A;from=--pal-class;mov=1;ck=1 pal:cont=2;of=3"


@pytest.mark.parametrize(
    ("state", "comment", "restarts", "said"),
    [
        ("RUNNING", WORDS, 2, "2 of at most 3 times"),
        ("RUNNING", WORDS, 5, "2 of at most 3 times (requeued 5 times in all)"),
        ("PENDING", WORDS, 2, "2 of at most 3 times; it waits to go on from its checkpoint"),
        ("COMPLETED", WORDS, 2, "2 of at most 3 times; its script has ended by itself (COMPLETED)"),
        ("CANCELLED", WORDS, 2, "2 of at most 3 times; it is CANCELLED"),
        ("TIMEOUT", WORDS, 2, "2 of at most 3 times; its time limit ended it before it had made its checkpoint"),
        ("TIMEOUT", WORDS + " pal:ack=1.1", 2, "its time limit ended it before it had made its checkpoint"),
        ("TIMEOUT", WORDS + " pal:ack=2.1;failed=1", 2, "its time limit ended it, since its checkpoint had failed"),
        ("TIMEOUT", WORDS + " pal:ack=2.1", 2, "after its checkpoint: it could not be requeued"),
        ("TIMEOUT", "pal:cont=3;of=3 pal:ack=3.1", 3, "since it was continued as often as it may be"),
    ],
)
def test_how_often_and_why_no_further(state: str, comment: str, restarts: int, said: str) -> None:
    found = continued(job(7, {"n0": [0]}, state=state, comment=comment, restarts=restarts), None)
    assert found is not None and line(found).startswith("Continued after its time limit: ") and said in line(found)


def test_before_the_first_time_the_record_says_how_often() -> None:
    saving = {"before_s": 300, "times": 10, "array": False, "checkpoint": "USR1"}
    found = continued(job(7, {"n0": [0]}), {"saving": saving})
    assert found == {"times": 0, "most": 10, "restarts": 0, "why": ""}


def test_nothing_is_said_of_other_jobs() -> None:
    assert continued(job(7, {"n0": [0]}), None) is None and continued(job(7, {"n0": [0]}), {"decision": 1}) is None
    assert continued(None, {"saving": {"times": 3}}) is None
