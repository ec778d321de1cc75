# SPDX-License-Identifier: MIT
"""The filter sends a new job to the partition that its goal chooses: Lua and a published table against the rule."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.base.prices import Prices, Rates, Usage, parse
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import COST, DEADLINE, Alternative, Goal, best, goal_of
from slurm_pal.decide.case import Settings
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import records
from slurm_pal.store.lua_table import Header, encode
from slurm_pal.store.snapshot import empty

from ...doubles.lua_filter import NO_VAL, NOW_S, Seen, install, job, run
from ...doubles.trials import trials
from .test_filter_steering import NODES, OWN, PARTS, ROOM, cluster, market, shown

PRICES: dict[str, Rates] = {"slow": parse(1.0), "fast": parse(2.5), "new": parse("GRES/gpu=4,CPU=0.1")}
rates = st.none() | st.builds(
    lambda gpu, cpu, mem: parse(f"GRES/gpu={gpu},CPU={cpu},Mem={mem}G"),
    st.sampled_from([0.0, 1.0, 1.5, 3.0]), st.sampled_from([0.0, 0.125]), st.sampled_from([0.0, 0.5]),
)  # fmt: skip


def submitted(
    folder: Path, goal: str = "cost", free: dict[str, int] | None = None, prices: dict[str, Rates] | None = None,
    speeds: bool = False, site: str = "time", age_s: float = 0.0, **fields: object,
) -> Seen:  # fmt: skip
    where, made = install(folder), market() if speeds else None
    answers = standing(cluster(free or ROOM), empty(), Settings("class-fit", 1.7, 1.05), shared=OWN)
    config = Config()
    config.set("submit", "goal", site, "test")
    found = records(answers, config, 1, market=made, prices=Prices(PRICES if prices is None else prices))
    (where / "pal_table.lua").write_bytes(encode(Header(1, NOW_S - int(age_s), 30.0, "daemon"), found))
    script = f"#!/bin/sh\n#PAL goal={goal}\n" if goal else "#!/bin/sh\n"
    words = {"tres_per_node": "gres:gpu:2", "name": "app", "time_limit": 120, "partition": ",".join(OWN)}
    asked = job(**(words | {"min_nodes": 1, "max_nodes": 1, "script": script} | fields))
    seen = run(where, [asked], partitions=PARTS)[1]
    assert not [line for line in seen.logs if line.startswith("error")], seen.logs
    return seen


@trials(100)
@given(
    st.fixed_dictionaries({name: st.integers(0, 4) for name in ROOM}), st.fixed_dictionaries({name: rates for name in
    OWN}), st.sampled_from(["cost", "deadline=now+70", "deadline=now+30minutes", "deadline=now+2h"]),
    st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([1, 3]), st.sampled_from([0, 2048]),
)  # fmt: skip
def test_it_goes_where_the_rule_sends_it(
    tmp_path_factory: pytest.TempPathFactory, free: dict[str, int], found: dict[str, Rates | None], text: str,
    count: int, speeds: bool, cpus: int, memory_mib: int,
) -> None:  # fmt: skip
    prices = {name: one for name, one in found.items() if one is not None}
    goal, half_s = goal_of(text, NOW_S), 0.5 * 120 * 60.0
    speed = {"slow": 1.0, "fast": 2.0, "new": 6.0} if speeds and count == 2 else dict.fromkeys(OWN, 1.0)
    room = {name for name, nodes in NODES.items() if any(free[node] >= count for node in nodes)}
    used = Usage(count, cpus, memory_mib / 1024.0)
    places = [
        Alternative(
            name, name, 0.0 if name in room else math.inf, half_s / speed[name], Prices(prices).per_hour(name, used)
        )
        for name in OWN
    ]
    expected = places[best(places, goal, NOW_S).at]
    knows = not math.isinf(expected.cost) and (goal.kind == COST or NOW_S + expected.end_s <= goal.until_s)
    memory = {"min_mem_per_node": memory_mib} if memory_mib else {}
    words = {"tres_per_node": f"gres:gpu:{count}", "cpus_per_task": cpus, **memory}
    seen = submitted(tmp_path_factory.mktemp("site"), text, free, prices, speeds, **words)
    assert seen.values.get("set_partition") == (expected.name if knows else None)
    if not knows:
        assert seen.mark["why"] == "partition"
        return
    mark = place_mark.read(shown(seen))
    assert mark is not None and mark.chosen == expected.name and mark.at_s == NOW_S and mark.cpus == cpus
    assert mark.goal == Goal(goal.kind, round(goal.until_s) if goal.kind == DEADLINE else math.inf)
    assert [(one.name, one.partition, one.run_s) for one in mark.places] == [
        (one.name, one.partition, int(one.run_s)) for one in places
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"goal": ""}, {"goal": "time"}, {"prices": {}}, {"age_s": 60.0}, {"partition": "slow"},
        {"partition": "slow,debug"}, {"array_inx": "1-3"}, {"max_nodes": 2}, {"req_nodes": "h0"},
        {"time_limit": NO_VAL}, {"time_limit": 1441},
        {"environment": {"SLURM_PAL_OFF": "1"}}, {"admin_comment": "x" * 8190},
        {"comment": "pal:job=A;from=user"}, {"goal": "deadline=now+10"},
    ],
)  # fmt: skip
def test_without_a_sure_choice_slurm_has_the_whole_list(tmp_path: Path, fields: dict[str, object]) -> None:
    assert "set_partition" not in submitted(tmp_path, **fields).values


@pytest.mark.parametrize(
    ("goal", "word", "site", "there"),
    [
        ("cost", "time", "time", "slow"),  # the script counts before the environment
        ("", "cost", "time", "slow"), ("", "", "cost", "slow"), ("time", "cost", "cost", None),
        ("", "time", "cost", None), ("", "", "time", None),
    ],
)  # fmt: skip
def test_whose_goal_counts(tmp_path: Path, goal: str, word: str, site: str, there: str | None) -> None:
    environment = {"SLURM_PAL_GOAL": word} if word else {}
    seen = submitted(tmp_path, goal, site=site, environment=environment)
    assert seen.values.get("set_partition") == there


@pytest.mark.parametrize(
    "text", ["cheap", "deadline=", "deadline=soon", "deadline=25:00", "deadline=2026-02-30", "Cost"]
)
def test_a_goal_that_cannot_be_read_is_reported(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        goal_of(text, NOW_S)
    seen = submitted(tmp_path, text)
    assert "set_partition" not in seen.values
    assert [line for line in seen.logs if "the goal is not time, cost or deadline=WHEN: ignored" in line], seen.logs


@pytest.mark.parametrize(
    "when",
    [
        "now+90", "now+2", "now+5m", "now+1hour", "now+8hours", "now+3days", "now+1week", "23:59", "0:01", "07:08:09",
        "2099-12-01T18:00", "2099-01-31", "2099-12-01T18:00:07",
    ],
)  # fmt: skip
def test_a_deadline_is_the_same_moment_in_lua(tmp_path: Path, when: str) -> None:
    seen = submitted(tmp_path, f"deadline={when}", time_limit=1, prices={"slow": parse(0)})
    wanted = goal_of(f"deadline={when}", NOW_S)
    mark = place_mark.read(shown(seen)) if "set_partition" in seen.values else None
    if wanted.until_s - NOW_S < 30.0:
        assert mark is None
    else:
        assert mark is not None and mark.goal == wanted


def test_the_choice_is_explained(tmp_path: Path) -> None:
    option = {"1": "_SLURM_SPANK_OPTION_pal_pal_explain="}
    seen = submitted(tmp_path, spank_job_env=option)
    assert any(line.endswith("; partition slow of slow,fast,new") for line in seen.logs), seen.logs
