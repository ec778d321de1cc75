# SPDX-License-Identifier: MIT
"""What one user writes on their jobs changes nothing for others, or no more than is stated here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import throughputs
from slurm_pal.allocation.throughputs import Entry, ThroughputKey
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import MoveSettings
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease_marks import ending
from slurm_pal.decide.offers import claimed_gpus, used_indexes
from slurm_pal.journal.journal import Move, Observation
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.moves.learning import MOST_CORRECTION, corrected, corrections
from slurm_pal.moves.planning import MovePlan, MoveTerms, Running, plan
from slurm_pal.moves.steps import no_checkpoint, requeued_otherwise
from slurm_pal.moves.worth import stated_limit_s
from slurm_pal.partitions import claimants
from slurm_pal.partitions.claimants import Known
from slurm_pal.partitions.history import heard
from slurm_pal.tick.steered import Memory, steered

from ...doubles.running_factory import HOUR_S, NOW_S, TERMS, job, node, overview, running, scores
from ...doubles.slurm_pairs import shown
from ...doubles.trials import trials

X, Y, Z = "x", "y", "z"

words = st.fixed_dictionaries({
    "remaining_s": st.none() | st.floats(0, 1e15),
    "factor": st.none() | st.floats(1e-6, 1e6),
    "lost_s": st.floats(0, 1e9),
    "checkpoint": st.booleans(),
})  # fmt: skip
"""All that a job's own words can make of it, its class aside, which is its user's to say."""


# -- whose job gets the better GPU -------------------------------------------------------------


def planned(jobs: Sequence[Running], table: Mapping[str, Sequence[float]], terms: MoveTerms = TERMS) -> MovePlan:
    nodes = [node(name, len(row)) for name, row in table.items()]
    return plan(overview(nodes, [one.job for one in jobs]), scores(table), jobs, terms, NOW_S)


ONE_BETTER = {"n0": [1.5], "n1": [1.5], "n2": [1.0]}


@given(words, st.booleans(), st.floats(0.5, 20.0))
@trials(60)
def test_words_never_win_a_gpu_from_another_user(said: dict[str, object], limited: bool, ran_h: float) -> None:
    """X's job is as good as Y's but for a second that it has run longer: nothing X says brings it before Y's."""
    times = {"start_s": NOW_S - ran_h * HOUR_S} | ({} if limited else {"time_limit_s": None})
    terms = TERMS._replace(expected_run_s=24 * HOUR_S)
    theirs = running(job(2, {"n1": (0,)}, user=Y, **times))
    times["start_s"] = NOW_S - ran_h * HOUR_S - 1.0
    liar = running(job(1, {"n0": (0,)}, user=X, **times))
    silent = [move.user for move in planned([liar, theirs], ONE_BETTER, terms).moves]
    loud = [move.user for move in planned([liar._replace(**said), theirs], ONE_BETTER, terms).moves]
    assert silent in ([Y], []) and (loud == [Y] or not silent)


def test_a_huge_total_is_no_longer_than_the_job_has_shown_to_run() -> None:
    """Without a time limit a job that says it has years to go is believed as long again as it ran, at most."""
    for ran_s, longest_s in ((900.0, HOUR_S), (10 * HOUR_S, 10 * HOUR_S)):
        free = job(1, {"n0": (0,)}, time_limit_s=None, start_s=NOW_S - ran_s)
        (move,) = planned([running(free, remaining_s=1e12)], ONE_BETTER).moves
        assert move.gain_s == pytest.approx(longest_s / 1.5 * 0.5)
    (move,) = planned([running(job(1, {"n0": (0,)}), remaining_s=1e12)], ONE_BETTER).moves
    assert move.gain_s == pytest.approx(22 * HOUR_S / 1.5 * 0.5)


def test_of_two_with_equal_claims_nobody_wins_each_time() -> None:
    """X claims up to twice what Y does, by asking for more time: of 30 moves in turn X gets at most 2 of 3."""
    for hours, most in ((24, 15), (46, 20)):
        lately = {X: 0, Y: 0}
        for _ in range(30):
            mine = running(job(1, {"n0": (0,)}, user=X, time_limit_s=hours * 3600))
            theirs = running(job(2, {"n1": (0,)}, user=Y, time_limit_s=24 * 3600))
            (move,) = planned([mine, theirs], ONE_BETTER, TERMS._replace(lately=lately)).moves
            lately[move.user] += 1
        assert abs(lately[X] - most) <= 1


def test_a_year_is_no_time_limit() -> None:
    """In a partition without a limit backfill shows a year: not half a year is expected of such a job."""
    one = job(1, {"n0": (0,)}, time_limit_s=365 * 86400)
    assert stated_limit_s(one) is None and stated_limit_s(job(1, {}, time_limit_s=None)) is None
    assert stated_limit_s(job(1, {}, time_limit_s=3600)) == 3600
    young = {"start_s": NOW_S - 900.0}
    backfilled = running(job(1, {"n0": (0,)}, user=X, time_limit_s=365 * 86400, **young))
    theirs = running(job(2, {"n1": (0, 1)}, user=Y, time_limit_s=None, **young))
    two_better = {"n0": [1.5], "n1": [1.5, 1.5], "n2": [1.0, 1.0]}
    found = planned([backfilled, theirs], two_better, TERMS._replace(per_tick=1))
    assert [move.user for move in found.moves] == [Y]
    for text in ("UNLIMITED", "365-00:00:00"):
        fields = {"TimeLimit": text, "NumNodes": "1", "NumCPUs": "1", "TresPerNode": "gres:gpu:1"}
        assert request_of(job(1, {}, state="PENDING", fields=fields)).time_limit_s is None


def move(outcome: str, detail: str = "") -> Move:
    return Move(
        1,
        7,
        X,
        NOW_S,
        0,
        "n0:0",
        ("n2",),
        "n2:0",
        "",
        1.5,
        1.0,
        600.0,
        60.0,
        True,
        "",
        MoveStep.SIGNALLING,
        NOW_S,
        MoveOutcome(outcome),
        detail,
    )


def test_checkpoints_that_never_come_are_taken_from_the_moves_of_their_user() -> None:
    table = {"n0": [1.5] * 4, "n1": [1.0] * 4}
    jobs = [running(job(k, {"n0": (k,)}, user=X if k < 3 else Y)) for k in range(4)]
    for failed, mine in ((0, 2), (1, 1), (2, 0), (9, 0)):
        found = planned(jobs, table, TERMS._replace(failed={X: failed}))
        assert sorted(one.user for one in found.moves) == [X] * mine + [Y]
    assert "no checkpoint came for 2 moves of jobs of x lately" in {
        passed.why.rpartition(", but ")[2]
        for passed in planned(jobs, table, TERMS._replace(failed={X: 2})).passed
    }  # fmt: skip
    silent = [move("abandoned", "no checkpoint after 120 s"), move("abandoned", "its checkpoint failed")]
    others = [move("abandoned", "the plan is 11 s old"), move("moved"), move("elsewhere", "no checkpoint after")]
    assert all(map(no_checkpoint, silent)) and not any(map(no_checkpoint, others))
    selfish = move("abandoned", "somebody else has requeued it")
    assert requeued_otherwise(selfish) and not any(map(requeued_otherwise, (*silent, *others)))
    asked = job(7, {"n0": (0,)}, comment="pal:job=A;mov=1;app=1;ck=1", fields={"BatchFlag": "1", "Requeue": "1"})
    known = Memory({}, {}, frozenset(), {7: (*silent, *others, selfish)}, frozenset(), {})
    (one,) = steered(overview([node("n0")], [asked]), known, MoveSettings()).running
    assert one.moves == 5


# -- what is said of GPUs ----------------------------------------------------------------------

GPU = ("n0", 0)
looks = st.lists(
    st.builds(
        Observation, st.sampled_from([f"{X} a 1 A", f"{X} b 1 C", f"{X} c 2 A"]), st.integers(100, 130),
        st.integers(0, 3), st.sampled_from("ABC"),
        st.sets(st.sampled_from([GPU, ("n0", 1), ("n1", 0), ("n1", 1)]), min_size=1).map(sorted).map(tuple),
        st.sampled_from([1.0, 1.2, 0.9]), st.floats(0.1, 10.0), st.floats(NOW_S, NOW_S + 1000.0),
    ),
    max_size=25,
)  # fmt: skip
"""Whatever X's jobs say, of whatever GPUs."""
MEASURED = {"n0": [1.0, 1.3], "n1": [1.0, math.nan]}


def train(user: str, first: int, step_s: float = 1.0, gpus: Sequence[tuple[str, int]] = (GPU,)) -> list[Observation]:
    """Jobs that all take a second for a step on GPUs of their own, and three that take `step_s` on these."""
    key = f"{user} train {len(gpus)} A"
    own = [Observation(key, first + k, 0, "A", (("n9", first + k),), 1.0, 1.0, NOW_S + k) for k in range(8)]
    return own + [Observation(key, first + 10 + k, 0, "A", tuple(gpus), 1.0, step_s, NOW_S + 10 + k) for k in range(3)]


@given(looks, st.floats(0.9, 1.09))
@trials(50)
def test_one_user_makes_no_gpu_slow_though_another_was_there(said: list[Observation], honest: float) -> None:
    found = corrections([*said, *train(Y, 1, honest), *train(Z, 40, 1.0)], scores(MEASURED))
    assert found.exposed == () and corrected(scores(MEASURED), found).columns == scores(MEASURED).columns


@given(looks)
@trials(50)
def test_one_user_clears_no_gpu_and_turns_nothing_against_another_one(said: list[Observation]) -> None:
    """Two users feel one GPU of two that is slow. X can take neither of them from what they found, nor choose it."""
    true = [*train(Y, 1, 1.4), *train(Z, 40, 1.4)]
    known = scores(MEASURED)
    found = corrections([*said, *true], known)
    assert [gpu for gpu, _ in found.exposed] == [GPU] and found.exposed[0][1] == pytest.approx(1.4, rel=0.03)
    both = [*train(Y, 1, 1.4, [GPU, ("n1", 0)]), *train(Z, 40, 1.4, [GPU, ("n1", 0)])]
    alone, beside = ({gpu for gpu, _ in corrections([*more, *both], known).exposed} for more in ([], said))
    assert beside == alone == {GPU, ("n1", 0)}


@given(st.lists(st.builds(
    Observation, st.sampled_from([f"{user} a 1 A" for user in "vwxyz"]), st.integers(1, 60), st.integers(0, 3),
    st.sampled_from("ABC"), st.sampled_from([((name, k),) for name in ("n0", "n1") for k in (0, 1)]),
    st.sampled_from([1.0, 1.2]), st.floats(0.1, 10.0), st.floats(NOW_S, NOW_S + 1000.0)), max_size=40),
    st.sampled_from([1.05, math.inf]))  # fmt: skip
@trials(50)
def test_whoever_says_what_no_gpu_gets_faster_nor_slower_than_the_bound(said: list[Observation], most: float) -> None:
    before = scores(MEASURED)
    after = corrected(before, corrections(said, before), most)
    for c in "ABC":
        for name, row in MEASURED.items():
            for k in range(len(row)):
                was, now = before.slowdown(c, name, k), after.slowdown(c, name, k)
                if was is None or now is None:
                    assert was is now
                else:
                    assert was <= now <= max(was, min(most, MOST_CORRECTION * was))


def test_what_users_say_of_a_gpu_ends() -> None:
    true = [*train(Y, 1, 1.4), *train(Z, 40, 1.4)]
    assert corrections(true, scores(MEASURED), since_s=NOW_S).exposed
    assert not corrections(true, scores(MEASURED), since_s=NOW_S + 60.0).exposed


@given(words)
@trials(40)
def test_what_others_say_of_a_gpu_drives_nobody_off_it(said: dict[str, object]) -> None:
    """Two accounts say that Y's GPU is slow. Y's job stays unless its own steps say so."""
    table = {"n0": [1.0], "n1": [1.5], "n2": [1.0]}
    lied = scores({"n0": [2.0], "n1": [1.5], "n2": [1.0]})
    theirs, liar = running(job(2, {"n0": (0,)}, user=Y)), running(job(1, {"n1": (0,)}, user=X), **said)
    seen = overview([node(name, 1) for name in table], [theirs.job, liar.job])
    assert Y not in {one.user for one in plan(seen, lied, [theirs, liar], TERMS, NOW_S, scores(table)).moves}
    felt = theirs._replace(factor=2.0)
    assert Y in {one.user for one in plan(seen, lied, [felt], TERMS, NOW_S, scores(table)).moves}


# -- GPUs that are spoken for ------------------------------------------------------------------


def pinned(number: int, nodes: Sequence[str], gpus: int, **fields: str) -> SlurmJob:
    waits = job(number, {}, state="PENDING", reason="Resources", user=X, req_nodes=tuple(nodes), gpus_per_node=gpus)
    return shown(waits, {"Priority": str(1000 - number)} | fields)


@pytest.mark.parametrize("fields", [
    {}, {"NumNodes": "3", "NumCPUs": "48"}, {"MinMemoryNode": "62G"}, {"OverSubscribe": "NO"}, {"Exclusive": "YES"},
])  # fmt: skip
def test_a_job_that_waits_for_a_busy_node_hides_no_free_one(fields: dict[str, str]) -> None:
    """n0 is X's: a CPU and some memory, or a GPU where the job asks for nothing else. n1 and n2 are idle."""
    nodes = [node("n0", cpus_used=1, memory_used_mib=2000), node("n1"), node("n2")]
    holds = job(1, {"n0": (0,)}, user=X) if not fields else job(1, {}, user=X)
    ghost = pinned(9, ("n0", "n1", "n2"), 4, **fields)
    assert claimed_gpus([holds, ghost], nodes, used_indexes([holds])) == {}
    idle = [node("n0"), *nodes[1:]]
    assert claimed_gpus([ghost], idle, {}) == {"n0": 4, "n1": 4, "n2": 4}
    assert claimed_gpus([pinned(9, ("n1",), 0)], idle, {}) == {}, "it asks for no GPU"
    assert claimed_gpus([pinned(9, ("n1",), 0, TresPerTask="gres:gpu:1")], idle, {}) == {"n1": 1}


@given(
    st.lists(st.tuples(st.sets(st.sampled_from(["n0", "n1", "n2", "n7"]), min_size=1), st.integers(0, 9)), max_size=9)
)
def test_claims_are_no_more_than_is_free(wanted: list[tuple[set[str], int]]) -> None:
    nodes = [node("n0", 4), node("n1", 2), node("n2", 4, states=frozenset({"IDLE", "DRAIN"}))]
    jobs = [pinned(k, sorted(names), gpus) for k, (names, gpus) in enumerate(wanted)]
    claimed = claimed_gpus(jobs, nodes, {"n0": {1}})
    assert claimed.get("n0", 0) <= 3 and claimed.get("n1", 0) <= 2 and claimed.keys() <= {"n0", "n1"}


# -- the queue ---------------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(1, 20), st.integers(2, 40))
@trials(40)
def test_thousands_of_jobs_of_one_hide_nobodys(mine: int, theirs: int, depth: int) -> None:
    """However many X has, and of whatever priority: half of what a tick looks at is Y's, or all that Y has."""

    def waits(number: int, user: str, priority: int) -> SlurmJob:
        return job(number, {}, state="PENDING", user=user, comment="pal:job=A", fields={"Priority": str(priority)})

    jobs = [waits(k, X, 10_000 - k) for k in range(mine)] + [waits(1000 + k, Y, 500 - k) for k in range(theirs)]
    nothing = Memory({}, {}, frozenset(), {}, frozenset(), {})
    seen = steered(overview([node("n0")], jobs), nothing, MoveSettings(), depth=depth)
    looked = [one.job for one in seen.waiting]
    assert len(looked) == min(depth, len(jobs)) and seen.behind == len(jobs) - len(looked)
    assert sum(one.user == Y for one in looked) >= min(theirs, depth // 2)
    assert [one.priority for one in looked] == sorted((one.priority or 0 for one in looked), reverse=True)


MARK = r"(pal:lease=[0-9]{1,9};req=[a-z0-9,\[\]-]{0,9};act=(nodelist|exclude);set=n[0-3] ?)+"


@given(st.text(max_size=200) | st.from_regex(MARK, fullmatch=True))
def test_whatever_a_mark_says_it_is_for_its_own_job(comment: str) -> None:
    forged = job(1, {}, state="PENDING", user=X, req_nodes=("n1",), exc_nodes=("n3",), comment=comment)
    for now_s in (NOW_S - 4 * HOUR_S, NOW_S, NOW_S + 1e9):
        update = ending(forged, now_s, 3.0)
        assert update is None or update.job_id == forged.job_id


# -- throughputs -------------------------------------------------------------------------------

TYPES = {"a": "a100", "v": "v100"}
KNOWN = {"bert": "bert"}
runs = st.lists(
    st.builds(
        Observation, st.sampled_from([f"{user} {name} 1 A" for user in (X, "x2") for name in ("bert", "own")]),
        st.integers(1, 99), st.just(0), st.just("A"), st.sampled_from([(("a", 0),), (("v", 0),), (("a", 0), ("a", 1))]),
        st.just(1.0), st.floats(1e-6, 1e6), st.just(NOW_S),
    ),
    max_size=20,
)  # fmt: skip


def bert(user: str, number: int, step_s: float) -> Observation:
    return Observation(f"{user} bert 1 A", number, 0, "A", (("a", 0),), 1.0, step_s, NOW_S)


@given(runs)
def test_steps_of_two_accounts_teach_others_nothing(said: list[Observation]) -> None:
    all_, own = heard(said, TYPES, KNOWN, NOW_S)
    assert all_ == {} and own.keys() <= {X, "x2"}
    theirs = [bert(Y, 200, 0.5)]
    assert heard([*said, *theirs], TYPES, KNOWN, NOW_S)[1][Y] == heard(theirs, TYPES, KNOWN, NOW_S)[1][Y]


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.lists(st.floats(0.1, 10.0), min_size=3, max_size=5))
def test_one_of_four_leads_no_throughput_beyond_the_others(lies: list[float], honest: list[float]) -> None:
    said = [bert(X, k, step_s) for k, step_s in enumerate(lies)]
    true = [bert(f"h{k}", 100 + k, step_s) for k, step_s in enumerate(honest)]
    entry = heard([*said, *true], TYPES, KNOWN, NOW_S)[0][ThroughputKey("bert", 1, "a100")]
    assert 1 / max(honest) <= entry.steps_per_s * (1 + 1e-9) and entry.steps_per_s <= (1 + 1e-9) / min(honest)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0.01, 0.5))
@trials(30)
def test_own_steps_count_as_far_as_the_sites_errors_leave_room(slow: float, fast: float, error: float) -> None:
    types = ["a100", "v100"]
    stated = {ThroughputKey("bert", 1, "v100"): Entry(1.0, error), ThroughputKey("bert", 1, "a100"): Entry(3.0, error)}
    told = {ThroughputKey("bert", 1, "v100"): Entry(slow, 0.01), ThroughputKey("bert", 1, "a100"): Entry(fast, 0.01)}
    known = Known(throughputs.model(stated, types), {name: name for name in types}, KNOWN)
    mine = known._replace(own={X: throughputs.model(told, types)})
    at = [claimants.speeds(job(1, {}, name="bert", user=user), 1, types, mine)[0] for user in (X, Y)]
    assert at[1] == claimants.speeds(job(1, {}, name="bert", user=Y), 1, types, known)[0]
    ratio = math.log(at[0]["a100"] / at[0]["v100"])
    assert abs(ratio - math.log(3.0)) <= 4 * error + 1e-6 and np.isfinite(ratio)
