# SPDX-License-Identifier: MIT
"""CPUs, memory, rules of partitions, shares and outages: what Slurm knows beside GPUs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from slurm_pal.base.cluster import Counting, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.hardware import hardware as simulated
from slurm_pal.simulate.job_room import NodeSize, holds
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import Failures, ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.slurm.question import Completed
from slurm_pal.slurm.shares import Association, shares
from slurm_pal.twin import outages
from slurm_pal.twin.fair_share import FairShare
from slurm_pal.twin.outages import Outage
from slurm_pal.twin.run import Twin
from slurm_pal.twin.slurm_side import SlurmSide, billing_of

HOUR_S = 3600.0


def job(number: int, submit_s: float = 0.0, run_s: float = HOUR_S, gpus: int = 1, nodes: int | None = 1,
        **more: object) -> TraceJob:  # fmt: skip
    shape = GpuShape(gpus * (nodes or 1), nodes, gpus if nodes else None)
    made = TraceJob(f"j{number}", submit_s, shape, run_s, "A", limit_s=2 * run_s, user=f"u{number}", movable=False)
    return made._replace(**more)  # type: ignore[arg-type]


def run(jobs: list[TraceJob], side: SlurmSide, nodes: int = 2, **changes: object) -> Replay:
    """Plain Slurm on nodes of 4 equal GPUs."""
    table = [[1.0] * 4 for _ in range(nodes)]
    machine = simulated({c: table for c in "ABC"}, partitions=changes.pop("partitions", {}))  # type: ignore[arg-type]
    settings = changes.pop("settings", ReplaySettings())
    pairs = changes.pop("pairs", {})
    policy = changes.pop("policy", "slurm-twin")
    made = ReplayPlan(Trace("t", tuple(jobs)), machine, policy, seed=1, settings=settings)  # type: ignore[arg-type]
    return Twin(Config(), pairs, side=side).run(made)  # type: ignore[arg-type]


def starts(found: Replay) -> dict[str, float]:
    return {outcome.job_id: outcome.start_s for outcome in found.outcomes}


SIZES = (NodeSize(16, 65536),) * 2


@pytest.mark.parametrize("policy", ["slurm-twin", "palsub", "tick"])
@pytest.mark.parametrize("more", [{"cpus": 12}, {"memory_mib": 40000}])
def test_jobs_wait_for_cpus_and_memory_where_nodes_have_so_many(more: dict[str, object], policy: str) -> None:
    jobs = [job(number, submit_s=number, **more) for number in range(3)]
    found = starts(run(jobs, SlurmSide(SIZES), policy=policy))
    assert found["j0"] < 60 and found["j1"] < 60 and found["j2"] >= HOUR_S
    assert max(starts(run(jobs, SlurmSide(), policy=policy)).values()) < 60  # where nothing is known of them


def test_memory_that_slurm_does_not_count_keeps_nobody_waiting() -> None:
    jobs = [job(number, submit_s=number, memory_mib=40000) for number in range(3)]
    rules = {"gpu": Partition("gpu", True, True, ())}
    assert max(starts(run(jobs, SlurmSide(SIZES, rules))).values()) < 60
    counted = {"gpu": Partition("gpu", True, True, (), counting=Counting(memory=True))}
    assert max(starts(run(jobs, SlurmSide(SIZES, counted))).values()) >= HOUR_S


def test_an_open_number_of_nodes_takes_cpus_and_memory_by_gpu() -> None:
    wide = job(1, gpus=4, nodes=None, cpus=24, memory_mib=80000)  # 6 CPUs for each GPU: two nodes
    found = run([wide], SlurmSide(SIZES)).outcomes[0]
    assert len(found.nodes) == 2 and len(run([wide], SlurmSide()).outcomes[0].nodes) == 1


def test_cpus_by_default_of_a_partition_count() -> None:
    rules = {"gpu": Partition("gpu", False, True, (), counting=Counting(cpus_gpu=9))}
    jobs = [job(number, submit_s=number, partition="gpu") for number in range(3)]
    found = starts(run(jobs, SlurmSide(SIZES, rules), partitions={"gpu": (0, 1)}))
    assert found["j1"] < 60 and found["j2"] >= HOUR_S


def test_a_job_that_no_node_holds_is_left_out_before_the_replay() -> None:
    cluster = parse_cluster("2x4/16/64")
    trace = Trace("t", (job(1, cpus=17), job(2, cpus=16), job(3, gpus=8, nodes=None, memory_mib=140000)))
    assert [made.job_id for made in fit(trace, cluster).trace.jobs] == ["j2"]
    assert not fit(trace, parse_cluster("2x4")).too_wide
    assert holds(job(1, gpus=2, nodes=2, cpus=32), [(4, size) for size in SIZES])
    assert not holds(job(1, gpus=2, nodes=2, cpus=34), [(4, size) for size in SIZES])


@pytest.mark.parametrize("text", ["2x4/16", "2x4/0/64", "a=2x4/16/64,b=2x4", "2x4/16/x", "2x4/16/64/1"])
def test_a_cluster_with_half_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cluster"):
        parse_cluster(text)


def test_a_partition_of_a_higher_tier_goes_first_on_shared_nodes() -> None:
    rules = {"low": Partition("low", False, True, ()), "high": Partition("high", False, True, (), tier=5)}
    jobs = [job(0, gpus=4), job(1, 10, gpus=4, partition="low"), job(2, 20, gpus=4, partition="high")]
    both = {"low": (0,), "high": (0,)}
    found = starts(run(jobs, SlurmSide(rules=rules), 1, partitions=both))
    assert found["j2"] < found["j1"]
    assert (
        starts(run(jobs, SlurmSide(), 1, partitions=both))["j1"]
        < starts(run(jobs, SlurmSide(), 1, partitions=both))["j2"]
    )


def test_a_limit_of_jobs_that_ran_is_never_above_max_time() -> None:
    rules = {"p": Partition("p", False, True, (), max_time_s=600)}
    found = run([job(1, partition="p")], SlurmSide(rules=rules), partitions={"p": (0, 1)})
    assert found.outcomes[0].end == "COMPLETED"


WEIGHTS = {"PriorityType": "priority/multifactor", "PriorityCalcPeriod": "00:05:00"}


@pytest.mark.parametrize(("weights", "side", "more"), [
    ({"PriorityWeightPartition": "1000"}, {"rules": {"q": Partition("q", False, True, (), job_factor=4)}},
     {"partition": "q"}),
    ({"PriorityWeightQOS": "1000"}, {"qos": {"normal": 0, "high": 7}}, {"qos": "high"}),
    ({"PriorityWeightFairShare": "1000"},
     {"associations": (Association("rich", shares=90), Association("poor", shares=10))}, {"account": "rich"}),
])  # fmt: skip
def test_partition_qos_and_shares_let_a_later_job_overtake(
    weights: dict[str, str], side: dict[str, object], more: dict[str, object]
) -> None:
    jobs = [job(number, 10 * number, gpus=4, user="p", account="poor") for number in range(2)]
    jobs += [job(2, 20, gpus=4, user="r")._replace(**more)]  # type: ignore[arg-type]
    made, places = SlurmSide(**side), {"q": (0,)}  # type: ignore[arg-type]
    found = starts(run(jobs, made, 1, partitions=places, pairs=WEIGHTS | weights))
    assert found["j2"] < found["j1"]
    found = starts(run(jobs, made, 1, partitions=places))
    assert found["j1"] < found["j2"]


# -- fair share ---------------------------------------------------------------------------


def test_fair_tree_ranks_users_of_the_better_account_first() -> None:
    """Each level is decided before the one below: users of an account that has used little all come first."""
    tree = FairShare((
        Association("a", shares=40), Association("b", shares=60),
        Association("a", "u1", shares=1), Association("a", "u2", shares=1), Association("b", "u3", shares=1),
    ), 0.0)  # fmt: skip
    for account, user, used in (("a", "u1", 10.0), ("a", "u2", 20.0), ("b", "u3", 70.0)):
        tree.used(account, user, used)
    # Level fair share: a .4/.3 = 1.33, b .6/.7 = .86; below a: u1 .5/.33, u2 .5/.67.
    assert [tree.factor(*who) for who in (("a", "u1"), ("a", "u2"), ("b", "u3"))] == [1.0, 2 / 3, 1 / 3]


def test_fair_tree_gives_equal_users_equal_ranks_and_unused_ones_the_first() -> None:
    tree = FairShare(tuple(Association("a", user) for user in ("u1", "u2", "u3")), 0.0)
    assert [tree.factor("a", user) for user in ("u1", "u2", "u3")] == [1.0] * 3
    tree.used("a", "u2", 5.0)
    tree.look()
    assert [tree.factor("a", user) for user in ("u1", "u2", "u3")] == [1.0, 1 / 3, 1.0]


def test_the_classic_formula_is_by_usage_over_shares_and_dampened() -> None:
    def made(dampening: int) -> FairShare:
        found = FairShare(
            (Association("a", shares=1), Association("b", shares=3)), 0.0, tree=False, dampening=dampening
        )
        found.used("a", "u1", 25.0)
        found.used("b", "u2", 75.0)
        return found

    assert [made(1).factor(*who) for who in (("a", "u1"), ("b", "u2"))] == [0.5, 0.5]
    assert made(2).factor("a", "u1") == pytest.approx(2**-0.5)
    more = made(1)
    more.used("a", "u1", 100.0)
    more.look()
    assert more.factor("a", "u1") == pytest.approx(2 ** -(125 / 200 / 0.25))


def test_usage_is_forgotten_by_half_lives() -> None:
    found = FairShare((), 100.0, tree=False)
    found.decay(0.0)
    found.used("a", "", 8.0)
    found.used("b", "", 1.0)
    found.decay(300.0)
    found.used("b", "", 7.0 / 8)
    found.look()
    assert found.factor("a", "") == found.factor("b", "") == pytest.approx(0.5)  # of each one is left


def test_what_sacctmgr_and_scontrol_say_of_shares() -> None:
    said = {
        "associations": "root||root|1\nroot|||1\nphysics|root||40\nphysics|root|ann|parent\nphysics||bob|3\n",
        "qos": "normal|0\nhigh|100\n",
        "partition": "PartitionName=gpu TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.5\nPartitionName=cpu\n",
    }
    found = shares(lambda argv, text: Completed(0, said[argv[-2] if argv[0] == "sacctmgr" else argv[-1]], ""))
    assert found.associations == (
        Association("root", "root", shares=1), Association("physics", shares=40),
        Association("physics", "ann", shares=1), Association("physics", "bob", shares=3),
    )  # fmt: skip
    assert found.qos == {"normal": 0, "high": 100}
    assert billing_of(found.billing["gpu"]) == {"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 2.5}
    with pytest.raises(SlurmError, match="sacctmgr failed: no slurmdbd"):
        shares(lambda argv, text: Completed(1, "", "no\nslurmdbd\n"))


# -- nodes that fail ----------------------------------------------------------------------


def test_jobs_of_a_node_that_fails_start_again_elsewhere() -> None:
    side = SlurmSide(outages=(Outage("n0", 600.0, 9000.0),))
    found = run([job(1)], side).outcomes[0]
    assert (found.restarts, found.moves, found.nodes) == (1, 0, ("n1",))
    assert found.finish_s == pytest.approx(600 + 121 + 120 + HOUR_S, abs=10)  # its work, a requeue, and a restart


def test_a_movable_job_goes_on_from_its_last_checkpoint() -> None:
    side = SlurmSide(outages=(Outage("n0", 2.5 * HOUR_S, 9e4),))
    kept, lost = (
        run([job(1, run_s=4 * HOUR_S, movable=movable)], side).outcomes[0].finish_s for movable in (True, False)
    )
    assert lost - kept == pytest.approx(2 * HOUR_S, abs=1)


def test_without_job_requeue_a_job_ends_with_its_node() -> None:
    side = SlurmSide(outages=(Outage("n0", 600.0, 9000.0),))
    found = run([job(1)], side, pairs={"JobRequeue": "0"}).outcomes[0]
    assert (found.end, found.restarts) == ("NODE_FAIL", 0) and found.finish_s == 600.0


def test_a_job_wider_than_what_is_left_waits_and_blocks_nobody() -> None:
    side = SlurmSide(outages=(Outage("n0", 10.0, 2 * HOUR_S),))
    found = starts(run([job(1, 100, gpus=4, nodes=2), job(2, 200)], side))
    assert found["j1"] == pytest.approx(2 * HOUR_S, abs=60) and found["j2"] < 300


@pytest.mark.parametrize("policy", ["palsub", "tick"])
def test_failures_by_a_rate_end_with_every_job_done(policy: str) -> None:
    settings = ReplaySettings(failures=Failures(5 * HOUR_S, HOUR_S))
    jobs = [job(number, 600.0 * number, gpus=1 + number % 4) for number in range(30)]
    found = run(jobs, SlurmSide(), settings=settings, policy=policy)
    assert len(found.outcomes) == 30 and sum(outcome.restarts for outcome in found.outcomes) > 0


def test_drawn_outages_of_a_node_do_not_overlap() -> None:
    found = list(itertools.islice(outages.drawn(Failures(1000.0, 500.0), ["a", "b"], 3), 50))
    assert [one.down_s for one in found] == sorted(one.down_s for one in found)
    for name in ("a", "b"):
        own = [one for one in found if one.node == name]
        assert all(first.up_s <= second.down_s for first, second in itertools.pairwise(own))


@pytest.mark.parametrize(("text", "why"), [
    ("", "first line"), ("node,from\nn0,1", "first line"), ("node,down_s,up_s\nn0,5,5", "line 2: up_s = 5"),
    ("node,down_s,up_s\nn0,soon,5", "line 2: down_s"), ("node,down_s,up_s\nn0,1", "line 2: 2 columns"),
])  # fmt: skip
def test_a_file_of_failures_that_says_nothing_usable_names_the_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        outages.read(str(path))


def test_a_file_of_failures_is_read_and_its_nodes_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("node,down_s,up_s,why\nn1,10,20.5,fan\n\n")
    found = outages.read(str(path))
    assert found == (Outage("n1", 10.0, 20.5),)
    with pytest.raises(UsageError, match="no-file"):
        outages.read(str(tmp_path / "no-file"))
    with pytest.raises(UsageError, match="n7"):
        run([job(1)], SlurmSide(outages=(Outage("n7", 1.0, 2.0),)))
