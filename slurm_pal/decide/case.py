# SPDX-License-Identifier: MIT
"""One submission and the decision about it."""

from __future__ import annotations

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import Callable, Iterable, Mapping, NamedTuple
from slurm_pal.decide.near import Near
from slurm_pal.decide.offer import Offer
from slurm_pal.decide.request import Request
from slurm_pal.decide.scene import Scene
from slurm_pal.placement.penalties import Penalties
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.slurm.states import JOB_ACTIVE
from slurm_pal.store.snapshot import Snapshot

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.config import Config


class Settings(NamedTuple):
    """The part of the configuration that decides (docs/settings.md)."""

    policy: str = "class-fit"
    locality_penalty: float = 1.7
    barred_slowdown: float = 1.05
    lease_max_s: float = 600.0
    lease_pass_s: float = 3.0
    expected_run_share: float = 0.5
    expected_run_s: float = 3600.0
    farther: tuple[float, ...] = ()  # the penalty at level 2, 3, ... of the network (Rule.farther)

    def knowing(self, penalties: Penalties) -> Settings:
        """With the locality penalties of the job's work; () changes nothing."""
        return self._replace(locality_penalty=penalties[0], farther=penalties[1:]) if penalties else self


def settings_of(config: Config, policy: str = "") -> Settings:
    """What the configuration says; with `policy` another rule than its own."""
    return Settings(
        policy=policy or config.text("placement", "policy"),
        locality_penalty=config.number("placement", "locality_penalty"),
        barred_slowdown=config.number("placement", "barred_slowdown"),
        lease_max_s=config.number("submit", "lease_max_s"),
        lease_pass_s=config.number("submit", "lease_pass_s"),
        expected_run_share=config.number("submit", "expected_run_share"),
        expected_run_s=config.number("submit", "expected_run_s"),
    )


class Case(NamedTuple):
    """A job that could start now: what it asks, where it may run, and what the rule chose."""

    request: Request
    snapshot: Snapshot
    settings: Settings
    rule: Rule
    clearer: str  # who takes leases back: "daemon", "watcher", "" for nobody
    scene: Scene
    placed: Placement
    ends: Callable[[], Mapping[str, float]]  # `ends_per_s` of all jobs, where somebody asks
    data: Near | None = None  # which nodes have the job's input; None: all alike
    wakes: Callable[[], bool] = lambda: False  # whether Slurm would boot nodes for it, where somebody asks

    @property
    def may_lease(self) -> bool:
        """Whether a node list or an exclusion may be used."""
        return bool(self.clearer) and not self.request.soft_only

    @property
    def may_name(self) -> bool:
        """Whether nodes may be named: not beside some that the user names.

        Their list would have to be put back, and on a job that has started meanwhile a shorter
        ReqNodeList makes Slurm give the other nodes up (scontrol(1), NodeList; docs/slurm.md).
        """
        return self.may_lease and not self.request.req_nodes

    @property
    def limit_s(self) -> int | None:
        """The job's time limit, its own or its partition's default, s."""
        defaults = (p.default_time_s for p in self.scene.candidates.partitions if p.default_time_s)
        return self.request.time_limit_s or next(defaults, None)

    @property
    def run_s(self) -> float:
        """How long the job is expected to run, s."""
        return expected_run_s(self.limit_s, self.settings)


def expected_run_s(limit_s: float | None, settings: Settings) -> float:
    """How long a job of this time limit (None or 0: without one) is expected to run, s."""
    return limit_s * settings.expected_run_share if limit_s else settings.expected_run_s


def ends_per_s(jobs: Iterable[SlurmJob], settings: Settings) -> dict[str, float]:
    """Node -> how many of the jobs that hold GPUs there end in a second, by their time limits.

    A job on several nodes counts on each for its share of them.
    """
    found: dict[str, float] = {}
    for job in jobs:
        if job.state in JOB_ACTIVE and job.nodes and (job.gpus or job.gpus_given):
            each = 1.0 / max(1.0, expected_run_s(job.time_limit_s, settings)) / len(job.nodes)
            for name in job.nodes:
                found[name] = found.get(name, 0.0) + each
    return found


class Decision(NamedTuple):
    """What palsub adds to the command line, and everything `pal explain` shows of it."""

    action: str  # nodelist | exclude | prefer | none
    reason: str  # one sentence
    added: tuple[str, ...] = ()  # words for sbatch
    pinned: tuple[str, ...] = ()  # the whole --nodelist, the user's names included
    excluded: tuple[str, ...] = ()  # the whole --exclude, the user's names included
    chosen: Offer | None = None
    alternatives: tuple[Offer, ...] = ()
    plain: Offer | None = None
    unknown: tuple[str, ...] = ()
    lease_s: float = 0.0
    lease_why: str = ""
    avoid_s: float = 0.0  # beside a node list: how long `excluded` stays because the user wants that; 0.0: not at all
    stage_in_s: float = 0.0  # to bring what the chosen nodes lack of the job's input
    slower_why: str = ""  # why the GPUs chosen are slower than those of plain Slurm, and by how much at most
