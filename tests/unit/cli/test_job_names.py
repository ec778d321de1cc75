# SPDX-License-Identifier: MIT
"""Jobs as users name them."""

from __future__ import annotations

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli.job_names import JobName, find_jobs, job_names
from slurm_pal.slurm import parse


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("4711", ["4711"]),
        ("4711_5", ["4711_5"]),
        ("4711,4713-4715", ["4711", "4713", "4714", "4715"]),
        ("1_[1-3]", ["1_1", "1_2", "1_3"]),
        ("1_[0,7-9:2%4],3", ["1_0", "1_7", "1_9", "3"]),
        ("1_2-3", ["1_2", "1_3"]),
        ("5,5,5-6", ["5", "6"]),
    ],
)
def test_lists_and_ranges(text: str, names: list[str]) -> None:
    assert [str(name) for name in job_names(text)] == names


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "5-4", "1_", "_1", "1_[1-3", "1_1]", "1_[]", "1_[1-3]]", "1,,2", "1-", "-1", "1_[3-1]", "1-9:0",
     "\u0661", "1 2", "9" * 19, "1_[1-3]x"],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^JOBID .* is not a job like 4711") as error:
        job_names(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["1-1001", "1-999999999999999999", "1_[0-999999999999999999]", "1-600,2001-2600"])
def test_a_thousand_jobs_are_enough(text: str) -> None:
    with pytest.raises(UsageError, match="more than 1000 jobs"):
        job_names(text)


class Client:
    """Knows job 9 and, as 20 and 21, tasks 1 and 2 of array 7."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def _job(self, number: int) -> SlurmJob | None:
        array = {20: (7, 1), 21: (7, 2), 7: (7, None)}.get(number, (None, None))
        if number not in (7, 9, 20, 21):
            return None
        return parse.nobodys(number, {"JobState": "RUNNING"})._replace(array_job_id=array[0], array_task_id=array[1])

    def job(self, number: int) -> SlurmJob | None:
        return self._job(number)

    def jobs_of(self, numbers: list[int]) -> dict[int, SlurmJob]:
        self.asked.append(("jobs", numbers))
        return {number: job for number in numbers if (job := self._job(number)) is not None}

    def tasks(self, array: int, indexes: list[int]) -> dict[int, int]:
        self.asked.append(("tasks", array, indexes))
        return {index: number for index, number in {1: 20, 2: 21}.items() if index in indexes and array == 7}


def test_slurm_is_asked_once_for_each_array_and_once_for_all_jobs() -> None:
    client = Client()
    found = find_jobs(client, job_names("7_[1-3],9,50"))  # type: ignore[arg-type]  # what it needs of a client
    assert [(one.number, one.job is not None) for one in found] == [
        (20, True), (21, True), (7, False), (9, True), (50, False)
    ]  # fmt: skip
    assert found[2].trouble.startswith("array 7 has no such task")
    assert client.asked == [("tasks", 7, [1, 2, 3]), ("jobs", [20, 21, 9, 50])]


def test_a_job_that_is_no_array_has_no_tasks() -> None:
    with pytest.raises(UsageError, match="job 9 is no array: leave out _4"):
        find_jobs(Client(), [JobName(9, 4)])  # type: ignore[arg-type]  # what it needs of a client
