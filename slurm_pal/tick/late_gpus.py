# SPDX-License-Identifier: MIT
"""The ladder in the tick: what jobs say of their GPUs is heard, remembered, and done about as the site's rule says.

State first, then Slurm: what a killed tick has begun, the next one finds in late.json and finishes or takes back. Only
what bears our name is touched: features pal_late_<index>, reservations pal_<node>, drains whose reason is ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from slurm_pal.base.cluster import Gpu, Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, SlurmError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import facts_of
from slurm_pal.journal.event_log import EventLog
from slurm_pal.online import word
from slurm_pal.online.ladder import Measured, Terms, climb
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.states import EXACTLY_IDLE
from slurm_pal.store import late
from slurm_pal.store.late import ANNOTATE, AVOID, DRAIN, OBSERVE, RELEASED, RESERVE, Heard, LateGpu
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.tick.deciding import Decided, terms_of

RESERVED_MIN = 30
"""A reservation ends by itself after this time, whatever happens to us."""
AGAIN_S = 12 * 3600.0
"""Between two measurements of the same node: a run soon after another would repeat its heat."""
REASON = "pal: jobs wait for GPU "
"""Begins the reason of a drain of ours."""
_DRAINED = re.compile(re.escape(REASON) + r"([0-9]{1,3}),")
FEATURE = "pal_late_{}"
PROFILE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import profile; profile()")
_NAME = re.compile(r"[^A-Za-z0-9_.-]")


class LateGpus:
    """The ladder of one process."""

    def __init__(self, config: Config, client: SlurmClient, log: EventLog, user: str) -> None:
        self._config, self._client, self._log, self._user = config, client, log, user
        self._path = late.path_of(config.state_dir)
        self._measuring: subprocess.Popen[bytes] | None = None
        self.known: tuple[LateGpu, ...] = ()
        self.news = False  # the scores must be published anew
        self._measured: dict[Gpu, Measured] = {}

    def take(self, overview: Overview, decided: Decided, now_s: float, act: bool) -> list[str]:
        """Hear the jobs, and let each GPU take its step; what went wrong. Raises DataError."""
        if decided.scores is None:
            return []
        before, trouble = self._read(overview.nodes, now_s)
        terms = Terms(self._config.text("online", "ladder"), int(self._config.number("online", "users")), act)
        heard = [*self._words(overview.jobs), *_by_steps(decided, now_s)]
        self._measured = _measured(decided.scores, before, heard)
        after, steps = climb(before, heard, self._measured, terms, now_s)
        for step in steps:
            self._log.write(now_s, "late-gpu", gpu=f"{step.gpu.node}:{step.gpu.index}", rung=step.gpu.rung,
                            before=step.before, why=step.why)  # fmt: skip
        if after != before:
            late.write(self._path, after)
        self.known = after
        self.news |= _published(before) != _published(after)
        return trouble

    def _read(self, nodes: Iterable[Node], now_s: float) -> tuple[tuple[LateGpu, ...], list[str]]:
        """What is known. Of a file that cannot be used only the drains are: their reasons name the GPUs.

        Raises DataError when it cannot be set aside either.
        """
        try:
            return late.read(self._path), []
        except DataError as error:
            try:
                drained = [one for node in nodes if "DRAIN" in node.states for one in self._drained(node.name, now_s)]
            except SlurmError as unknown:  # the file stays, and the next tick asks again
                raise DataError(f"{one_line(error)}; drains of ours are not known ({one_line(unknown)})") from None
            kept = late.set_aside(self._path)
            late.write(self._path, drained)
            return tuple(drained), [f"{one_line(error)}: kept as {kept}, evidence comes again"]

    def _drained(self, node: str, now_s: float) -> list[LateGpu]:
        """The GPU for which a node was drained by us. Its evidence is lost, so nothing more is done than to resume."""
        found = _DRAINED.match(self._client.node_reason(node))
        return [LateGpu(node, int(found[1]), "", RELEASED, now_s, drained=True)] if found else []

    def _words(self, jobs: Iterable[SlurmJob]) -> list[tuple[Gpu, Heard]]:
        terms, found = terms_of(self._config, appends=False), []
        for job in jobs:
            said = word.read(job) if job.state == "RUNNING" and job.user and any(job.gpus.values()) else None
            if said is None or not said.node:
                continue
            one = Heard(job.job_id, job.user, said.factor, facts_of(job, terms).sensitivity, said.at_s)
            indexes = job.gpus[said.node] if said.index is None else (said.index,)
            found += [((said.node, index), one) for index in indexes]
        return found

    # -- what is done in Slurm -----------------------------------------------------------

    def features(self) -> dict[str, frozenset[str]]:
        """Node -> the features that its late GPUs give it."""
        found: dict[str, frozenset[str]] = {}
        for one in self.known:
            if one.at_least(ANNOTATE):
                found[one.node] = found.get(one.node, frozenset()) | {FEATURE.format(one.index)}
        return found

    def carry_out(self, nodes: Sequence[Node], now_s: float) -> list[str]:
        """Reserve, measure, drain, and take back what is no longer wanted; what went wrong."""
        by_name = {node.name: node for node in nodes}
        trouble: list[str] = []
        if self._measuring is not None and self._measuring.poll() is not None:
            self._measuring = None
        for one in self.known:
            try:
                self._carry_out(one, by_name.get(one.node), now_s)
            except SlurmError as error:  # the next tick finds again what was not done
                trouble.append(f"{one.node}:{one.index} {one.rung}: {one_line(error)}")
        return trouble

    def _carry_out(self, one: LateGpu, node: Node | None, now_s: float) -> None:
        if node is None:
            return
        if one.drained and not one.at_least(DRAIN):
            one = self._resume(one, now_s)
        score = self._measured.get((one.node, one.index))
        done = score is not None and (score.measured_s > one.reserved_s or not score.confirmed)
        if one.reserved and (not one.at_least(RESERVE) or (done and self._measuring is None)):
            self._release(one, now_s)
        elif one.at_least(DRAIN) and not one.drained:
            self._keep(one._replace(drained=True))
            if "DRAIN" not in node.states:  # somebody else's drain stays as it is
                self._client.update_nodes([one.node], State="DRAIN", Reason=f"{REASON}{one.index}, pal-profile show")
                self._log.write(now_s, "late-gpu", gpu=f"{one.node}:{one.index}", did="drain")
        elif one.rung == RESERVE and _idle(node) and self._free(now_s) and self._rested(one.node, now_s):
            self._keep(one._replace(reserved_s=now_s, reserved=True))
            self._client.reserve(reservation_of(one.node), one.node, RESERVED_MIN, self._user)
            self._measure(one.node)
            self._log.write(now_s, "late-gpu", gpu=f"{one.node}:{one.index}", did="reserve", minutes=RESERVED_MIN)

    def _free(self, now_s: float) -> bool:
        """Whether no other node is being measured for us: one at a time."""
        active = (one for one in self.known if one.reserved and now_s - one.reserved_s < 60.0 * RESERVED_MIN)
        return self._measuring is None and not any(active)

    def _rested(self, node: str, now_s: float) -> bool:
        """Whether the node's last measurement for us, for whichever of its GPUs, is long enough ago."""
        return all(now_s - one.reserved_s > AGAIN_S for one in self.known if one.node == node)

    def _measure(self, node: str) -> None:
        argv = [*PROFILE, "run", "--yes", "-w", node]
        env = os.environ | {
            "SLURM_PAL_PROFILE_RESERVATION": reservation_of(node), "SLURM_PAL_PROFILE_YIELD_TO_USERS": "false",
            "SLURM_PAL_PROFILE_WINDOW": "",
        }  # fmt: skip
        with open(os.path.join(self._config.state_dir, "late.log"), "wb") as said:
            self._measuring = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )

    def _release(self, one: LateGpu, now_s: float) -> None:
        if now_s - one.reserved_s < 60.0 * RESERVED_MIN:
            self._client.release(reservation_of(one.node))
            self._log.write(now_s, "late-gpu", gpu=f"{one.node}:{one.index}", did="release")
        self._keep(one._replace(reserved=False))

    def _resume(self, one: LateGpu, now_s: float) -> LateGpu:
        needed = any(other.node == one.node and other.at_least(DRAIN) for other in self.known)
        if not needed and self._client.node_reason(one.node).startswith(REASON):  # else somebody else's by now
            self._client.update_nodes([one.node], State="RESUME")
            self._log.write(now_s, "late-gpu", gpu=f"{one.node}:{one.index}", did="resume")
        return self._keep(one._replace(drained=False))

    def _keep(self, one: LateGpu) -> LateGpu:
        self.known = tuple(one if (old.node, old.index) == (one.node, one.index) else old for old in self.known)
        late.write(self._path, self.known)
        return one

    def withdraw(self, nodes: Sequence[Node], now_s: float) -> list[str]:
        """Take back reservations and drains; what is known of the GPUs stays."""
        self.known, trouble = self._read(nodes, now_s)
        held = tuple(one._replace(rung=OBSERVE, since_s=now_s) if one.at_least(ANNOTATE) else one for one in self.known)
        if held == self.known and not any(one.reserved or one.drained for one in held):
            return trouble
        self.known, self.news = held, True
        late.write(self._path, held)
        return trouble + self.carry_out(nodes, now_s)


def reservation_of(node: str) -> str:
    """The name of our reservation of a node."""
    return f"pal_{_NAME.sub('_', node)}"


def _idle(node: Node) -> bool:
    return node.states == EXACTLY_IDLE and not node.gpus_used and not node.cpus_used


def _by_steps(decided: Decided, now_s: float) -> list[tuple[Gpu, Heard]]:
    """GPUs that became slow by the steps of several users' jobs."""
    return [(gpu, Heard(0, "", factor, "A", now_s, agreed=True)) for gpu, factor in decided.exposed]


def _measured(scores: Snapshot, known: Iterable[LateGpu], heard: Iterable[tuple[Gpu, Heard]]) -> dict[Gpu, Measured]:
    """What is published of these GPUs, without what late GPUs themselves have added to their scores."""
    raised = {(one.node, one.index) for one in known if one.at_least(AVOID)}
    found: dict[Gpu, Measured] = {}
    for place in {*((one.node, one.index) for one in known), *(gpu for gpu, _ in heard)}:
        row = scores.row(*place)
        if row is not None:
            score = scores.gpu(row)
            slowdown = {} if place in raised and late.LATE in score.flags else score.slowdown
            found[place] = Measured(score.uuid, score.measured_s, slowdown, "unconfirmed" not in score.flags)
    return found


def _published(gpus: Iterable[LateGpu]) -> set[tuple[Gpu, bool, float]]:
    """What the scores show of them."""
    return {
        ((one.node, one.index), one.at_least(AVOID), round(one.factor, 2) if one.at_least(AVOID) else 0.0)
        for one in gpus if one.rung != RELEASED
    }  # fmt: skip
