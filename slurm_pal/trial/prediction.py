# SPDX-License-Identifier: MIT
"""What the simulator says of an arm: the same jobs on the same GPUs under the policy nearest to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import KEYS
from slurm_pal.moves.worth import MoveLimits
from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.policies import POLICIES
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace
from slurm_pal.trial.arms import ARMS


class Assumed(NamedTuple):
    """What the simulator needs beside jobs and GPUs. Times are s of the trace."""

    locality_penalty: float
    move_cost_s: float
    backfill_interval_s: float
    compress: float
    settings: Mapping[str, str]  # of pal.toml in compressed time, as SECTION.KEY


def policy_of(arm: str) -> str | None:
    """The simulator's policy that is nearest to an arm, None where there is none."""
    return next((name for name in ARMS[arm].policies if name in POLICIES), None)


def simulated(
    arm: str, trace: Trace, machine: Hardware, shuffled: Hardware, assumed: Assumed, seed: int
) -> Replay | None:
    """Replay the trace; `shuffled` has other GPUs' scores for the arms that go by them."""
    policy = policy_of(arm)
    if policy is None:
        return None
    return replay(
        ReplayPlan(
            trace, shuffled if ARMS[arm].shuffled else machine, policy, seed=seed, settings=_settings(arm, assumed)
        )
    )


def _settings(arm: str, assumed: Assumed) -> ReplaySettings:
    return ReplaySettings(
        locality_penalty=assumed.locality_penalty,
        barred_slowdown=_number(assumed, "placement", "barred_slowdown"),
        expected_run_share=_number(assumed, "submit", "expected_run_share"),
        backfill_interval_s=assumed.backfill_interval_s,
        tick_s=_number(assumed, "rebalance", "interval_s") * assumed.compress,
        move_cost_s=assumed.move_cost_s,
        limits=MoveLimits(
            margin=_number(assumed, "rebalance", "margin"),
            minimum_s=_number(assumed, "rebalance", "minimum_s") * assumed.compress,
            per_tick=round(_number(assumed, "rebalance", "moves_per_tick")),
            per_job=round(_number(assumed, "rebalance", "moves_per_job")),
            chained=False,
        ),
        steer="submit" if ARMS[arm].at_submission else "start",
    )


def _number(assumed: Assumed, section: str, name: str) -> float:
    return float(assumed.settings.get(f"{section}.{name}", KEYS[section][name].default))


def with_scores(machine: Hardware, order: tuple[int, ...]) -> Hardware:
    """The same GPUs, each believed to be as fast as another one: that at its place in `order`."""
    believed = {}
    for name, table in machine.believed.items():
        values = [value for row in table for value in row]
        shuffled = iter([values[place] for place in order])
        believed[name] = [[next(shuffled) for _ in row] for row in table]
    return hardware(machine.true, believed, machine.names, machine.partitions)
