# SPDX-License-Identifier: MIT
"""Rounds of a forked job: quotas, merging, copies that come, go, are late or fail; nothing that counts is lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.slurm.client import Completed
from slurm_pal.submit import fork
from slurm_pal.submit.fork import BASE, CopyPace, Fork, ForkPlace, Task, making_way, place, quotas, result

TOTAL = 20000
MERGE = "m() { out=$1; shift; while [ $# -gt 0 ]; do cat $2/model >> $out/model; shift 2; done; }; m"


class Site:
    """The directories of one forked job. Copies work by moving the clock."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s, self.said = root, 0.0, list[str]()
        self.meeting = root / ".pal-elastic-77"
        self.meeting.mkdir()
        (self.meeting / "base").write_text("0 1 host\n")
        self.folder = root / ".pal-fork-77"

    def joins(self, copy: str, run: int = 0) -> None:
        (self.meeting / f"c.{copy}").write_text(f"{run} 0 1\n")

    def both_done(self) -> Task:
        """The base job and a copy have saved their first parts; the base job's."""
        self.joins("80")
        base = saved(self.base())
        saved(self.copy("80"))
        with pytest.raises(TimeoutError):  # it waits for the next round
            self.copy("80")
        self.now_s = 20.0
        return base

    def leaves(self, copy: str) -> None:
        (self.meeting / f"c.{copy}").unlink()

    def fork(self, copy: str, run: str = "0") -> Fork:
        until_s = self.now_s + 1000.0

        def sleep(seconds: float) -> None:
            self.now_s += seconds
            if self.now_s > until_s:
                raise TimeoutError

        where = ForkPlace(copy, "77", f"{copy}.{run}", str(self.folder), str(self.meeting))
        return Fork(where, self.said.append, clock=lambda: self.now_s, sleep=sleep)

    def base(self, merge: str = MERGE, total: int = TOTAL, run: str = "0", leave: Sequence[str] = ()) -> Task | None:
        return self.fork(BASE, run).lead(total, 100.0, merge, lambda copies: [*leave])

    def copy(self, copy: str, run: str = "0") -> Task | None:
        return self.fork(copy, run).follow()

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / "state.json").read_text())
        return found


def saved(task: Task | None, text: str = "x") -> Task:
    assert task is not None
    Path(task.target, "model").write_text(text)
    return task


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- quotas ---------------------------------------------------------------------------------


def quotas_of(speeds: dict[str, float], left: int, total: int, round_s: float, overhead_s: float) -> dict[str, int]:
    """Of copies that need no time but for their steps; speed 0: not known."""
    paces = {copy: CopyPace(1000, 1000 / speed) if speed else None for copy, speed in speeds.items()}
    return quotas(paces, left, total, round_s, overhead_s)


def test_quotas_go_by_speed() -> None:
    assert quotas_of({"a": 10.0, "b": 2.5}, 10**6, 10**6, 110.0, 10.0) == {"a": 1000, "b": 250}
    assert quotas_of({"a": 10.0, "b": 0.0}, 10**6, 10**6, 100.0, 0.0) == {"a": 125, "b": 62}
    assert quotas_of({"a": 0.0, "b": 0.0}, 10**6, 10**6, 100.0, 0.0) == {"a": 5000, "b": 5000}
    assert quotas_of({"a": 10.0, "b": 5.0}, 300, 10**6, 100.0, 0.0) == {"a": 200, "b": 100}
    assert quotas_of({"a": 1.0, "b": 1.0}, 1, 10, 100.0, 0.0) in ({"a": 1}, {"b": 1})
    assert quotas_of({"a": 10.0}, 10**6, 10**6, 10.0, 500.0) == {"a": 5000}  # as long as what else a round takes


def test_what_a_part_takes_besides_its_steps_is_no_speed() -> None:
    pace = CopyPace(100, 30.0).then(1000, 120.0)  # 20 s, and 10 steps/s
    assert (pace.fixed_s, pace.speed) == pytest.approx((20.0, 10.0))
    assert pace.then(1100, 130.0).speed == pytest.approx(10.0)
    assert pace.then(1100, 240.0).speed == pytest.approx(5.0)
    assert quotas({"a": pace}, 10**6, 10**6, 100.0, 5.0) == {"a": 750}
    assert quotas({"a": pace}, 10**6, 10**6, 10.0, 5.0) == {"a": 200}  # works as long as it takes to begin
    assert CopyPace(100, 30.0).then(1000, 25.0).speed == 160.0  # a node that was busy: not faster than four times


@pytest.mark.parametrize("fixed_s", [0.0, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_rounds_that_are_too_short_become_long_enough(fixed_s: float, noise: float) -> None:
    """A busy node takes longer to begin than a round lasts: all the same its steps are not ever fewer."""
    draw = random.Random(1)
    pace: CopyPace | None = None
    done, used_s, rounds = 0, 0.0, 0
    while done < 9000:
        steps = quotas({"a": pace}, 9000 - done, 9000, 3.0, fixed_s / 2)["a"]
        seconds = fixed_s * draw.uniform(1 - noise, 1 + noise) + steps / 50
        pace = CopyPace(steps, seconds) if pace is None else pace.then(steps, seconds)
        done, used_s, rounds = done + steps, used_s + seconds, rounds + 1
    assert used_s < 3 * 180 + 8 * fixed_s  # 180 s of steps


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.floats(0, 100), min_size=1), st.integers(1, 10**6),
    st.floats(0, 500), st.floats(0, 500),
)  # fmt: skip
def test_quotas_are_never_more_than_is_left(
    speeds: dict[str, float], left: int, overhead_s: float, fixed_s: float
) -> None:
    paces = {
        copy: CopyPace(50, fixed_s / 2 + 50 / speed).then(1000, fixed_s + 1000 / speed) if speed > 1e-6 else None
        for copy, speed in speeds.items()
    }
    found = quotas(paces, left, 10**6, 360.0, overhead_s)
    assert found.keys() <= speeds.keys() and all(steps > 0 for steps in found.values()) and sum(found.values()) <= left
    alone = quotas(paces, 10**12, 10**6, 360.0, overhead_s)
    assert alone.keys() == speeds.keys() and (sum(found.values()) == left or found == alone)


# -- rounds ---------------------------------------------------------------------------------


def test_a_job_alone_goes_from_round_to_round(site: Site) -> None:
    first = saved(site.base())
    assert (first.steps, first.source) == (100, "")
    site.now_s += 10.0
    second = saved(site.base())
    assert second.source == first.target and second.steps == 1000  # 10 a second, rounds of 100 s
    site.now_s += 100.0
    done, rounds = 1100, 2
    while (task := site.base()) is not None:
        saved(task)
        site.now_s += task.steps / 10.0
        done, rounds = done + task.steps, rounds + 1
    assert done == TOTAL and rounds == 21 and site.said == []
    assert (Path(result(site.fork(BASE).where)[1]) / "model").read_text() == "x"
    assert len([*site.folder.glob("round_*")]) <= 2


def test_copies_work_at_their_own_speed_and_are_merged_by_steps(site: Site) -> None:
    site.joins("80")
    base, copy = saved(site.base(), "b"), saved(site.copy("80"), "c")
    assert (base.steps, copy.steps, copy.source) == (100, 100, "")
    site.now_s += 10.0
    waits = site.fork("80")
    with pytest.raises(TimeoutError):  # it has done its part, and waits for the next round
        waits.follow()
    site.now_s = 40.0
    second = site.base()
    assert second is not None and (Path(second.source) / "model").read_text() in ("cb", "bc")
    assert site.state()["done"] == 200
    assert site.state()["paces"] == {"80": [100, 10.0, 0.0], BASE: [100, 40.0, 0.0]}
    fast = site.copy("80")
    assert fast is not None and fast.steps == pytest.approx(4 * second.steps, rel=0.01)


def test_one_that_joins_later_waits_for_a_round(site: Site) -> None:
    saved(site.base())
    site.joins("80")
    site.now_s += 10.0
    base = site.base()
    assert base is not None and site.state()["open"] == {"steps": {BASE: 125, "80": 62}, "at_s": 10.0}
    later = site.copy("80")
    assert later is not None and later.source == base.source != ""


def test_a_copy_that_left_is_not_waited_for_and_its_steps_are_done_by_others(site: Site) -> None:
    site.joins("80")
    saved(site.base())
    saved(site.copy("80"))
    site.leaves("80")
    site.now_s += 10.0
    assert site.base() is not None and site.now_s == 10.0
    assert site.state()["done"] == 100 and "no result of 80" in site.said[0]


def test_a_copy_that_hangs_costs_half_a_round(site: Site) -> None:
    site.joins("80")
    saved(site.base())
    site.now_s += 10.0
    saved(site.base())
    assert 150.0 <= site.now_s < 151.0 and site.state()["done"] == 100
    saved(site.copy("80"))
    late = site.fork("80")
    site.now_s += 10.0
    saved(site.base())
    assert site.state()["done"] > 100
    task = late.follow()  # of the round before: it does not count, and it goes on with the present version
    assert task is not None and "is over" in site.said[-1] and (False, task.source) == result(late.where)


@pytest.mark.parametrize(
    ("merge", "why"),
    [("false", "failed with status 1"), ("true", "has written nothing"), ("sleep 60;", "has not ended after 0.3 s")],
)
def test_a_merge_that_fails_keeps_what_one_has_done(
    site: Site, merge: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "MERGE_S", 0.3)
    base = site.both_done()
    again = site.base(merge)
    assert again is not None and again.source == base.target and site.state()["done"] == 100
    assert len(site.said) == 1 and why in site.said[0] and "100 steps of others do not count" in site.said[0]


def test_what_a_merge_prints_is_not_for_the_shell(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    site.both_done()
    site.base(f"echo rm; {MERGE}")
    told = capfd.readouterr()
    assert told.out == "" and told.err == "rm\n" and site.said == []


def test_what_a_merge_has_started_ends_with_it(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "MERGE_S", 0.5)
    site.both_done()
    site.base(f"sleep 321 & echo $! > {tmp_path}/pid; wait;")
    stat = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    deadline_s = time.monotonic() + 20.0
    while stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z":  # nobody may be there to reap it
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_script_that_is_started_anew_does_its_part_again(site: Site) -> None:
    site.joins("80")
    base, copy = site.base(), site.copy("80")
    assert base is not None and copy is not None
    Path(copy.target, "half").touch()
    again = site.copy("80", run="1")  # the copy was requeued, and is back within the round
    assert again == copy and "interrupted" in site.said[-1] and [*Path(copy.target).iterdir()] == []
    anew = site.base(run="1")
    assert anew is not None and anew.source == "" and site.state()["done"] == 0
    assert anew.target != base.target


def test_a_round_that_others_have_done_counts_though_the_base_job_was_started_anew(site: Site) -> None:
    site.joins("80")
    site.base()
    copy = saved(site.copy("80"))
    with pytest.raises(TimeoutError):
        site.fork("80").follow()
    site.now_s = 30.0
    anew = site.base(run="1")
    assert anew is not None and anew.source == copy.target and site.state()["done"] == 100


def test_copies_of_an_earlier_run_are_none(site: Site) -> None:
    site.joins("80", run=1)
    (site.meeting / "c.x").write_text("0 0 1\n")
    site.base()
    assert site.state()["open"] == {"steps": {BASE: 100}, "at_s": 0.0}


def test_a_copy_that_makes_way_gets_no_part(site: Site) -> None:
    site.joins("80")
    site.joins("81")
    site.base(leave=["81"])
    assert site.state()["open"] == {"steps": {BASE: 100, "80": 100}, "at_s": 0.0}


def test_what_was_not_saved_is_an_error_of_one_line(site: Site) -> None:
    site.base()
    with pytest.raises(UsageError, match=r"nothing was saved in .*PAL_FORK_TO"):
        site.base()


def test_a_damaged_state_is_one_line(site: Site) -> None:
    saved(site.base())
    for text in ("{", "[]", '{"schema": "pal.fork/9"}'):
        (site.folder / "state.json").write_text(text)
        with pytest.raises(DataError, match=r"state\.json"):
            site.base()


def test_a_version_stays_as_long_as_it_is_the_newest(site: Site) -> None:
    base = saved(site.base())
    site.now_s += 10.0
    site.base()
    for run in "1234":  # started anew again and again, and nothing comes of it
        task = site.base(run=run)
        assert task is not None and task.source == base.target and (Path(task.source) / "model").exists()


def test_copies_end_with_the_job(site: Site) -> None:
    site.joins("80")
    saved(site.base(total=2), "b")
    saved(site.copy("80"), "c")
    with pytest.raises(TimeoutError):
        site.fork("80").follow()
    site.now_s = 5.0
    assert site.base(total=2) is None and site.copy("80") is None


# -- where, and for whom --------------------------------------------------------------------

INSIDE = {
    "SLURM_PAL_ROLE": "companion", "SLURM_PAL_BASE": "77", "SLURM_JOB_ID": "80", "SLURM_PAL_RUN": "80.0.0",
    "SLURM_PAL_WORKERS_FILE": "/shared/.pal-elastic-77/workers",
}  # fmt: skip


def test_where_a_copy_is() -> None:
    assert place(INSIDE) == ForkPlace("80", "77", "80.0.0", "/shared/.pal-fork-77", "/shared/.pal-elastic-77")
    assert place(INSIDE | {"SLURM_PAL_ROLE": "base"}).copy == BASE
    for name in ("SLURM_PAL_ROLE", "SLURM_PAL_BASE", "SLURM_PAL_WORKERS_FILE", "SLURM_JOB_ID"):
        with pytest.raises(UsageError, match="--pal-fork"):
            place({key: value for key, value in INSIDE.items() if key != name})


def test_copies_make_way_for_as_many_jobs_as_wait() -> None:
    orders: list[Sequence[str]] = []

    def run(argv: Sequence[str], stdin: str) -> Completed:
        orders.append(argv)
        text = (
            "80|p\n81|p\n82|q\n" if "-j" in argv else "Resources|a\nPriority|b\nPriority|pal-elastic-99\nDependency|c\n"
        )
        return Completed(0 if argv[-1] != "81" else 1, text, "")

    assert making_way(run, ["80", "81", "82"]) == ["80"]  # 81 cannot be requeued: it has just ended
    assert [argv for argv in orders if argv[0] == "scontrol"] == [["scontrol", "requeue", k] for k in ("80", "81")]
    assert making_way(lambda argv, stdin: Completed(1, "", "no"), ["80"]) == []
    assert making_way(run, []) == []
