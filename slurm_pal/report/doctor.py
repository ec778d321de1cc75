# SPDX-License-Identifier: MIT
"""What is wrong with Slurm, settings, data, clock and permissions, and the command that repairs it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence

from slurm_pal.base import config as settings
from slurm_pal.base import state
from slurm_pal.base.config import AUTO, KEYS, NEVER, Config
from slurm_pal.base.errors import (
    ConfigError,
    DataError,
    MissingPackageError,
    PalError,
    SlurmError,
    UsageError,
    one_line,
)
from slurm_pal.base.faults import FAULTS, cure_of, fault_of
from slurm_pal.base.file_system import OF_ONE_HOST, file_system
from slurm_pal.base.files import may_write, read_trusted
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.survival import ends_with
from slurm_pal.decide import lease_marks, means
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.leases import pinned, promise
from slurm_pal.pending.head import limits_say_nothing
from slurm_pal.report import class_notices, inventory
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.loan_checks import loan_checks
from slurm_pal.report.power_cap import power_findings
from slurm_pal.report.table import age
from slurm_pal.slurm import releases
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.store import heartbeat
from slurm_pal.store.snapshot import NO_CLASS, Snapshot, read
from slurm_pal.tick.role import role_of

CLOCK_SLACK_S = 5.0
MOST_NAMED = 8  # jobs in one line
WATCHER_S = 60.0
"""So long after the end of a lease its watcher may still take the list back."""
MISSED = 3.0
"""Ticks that may be missed before the last one counts as long ago; a timer starts one each minute."""
_RESTART = "systemctl restart pal-rebalance.service"


def examine(client: SlurmClient, now_s: float, which: Callable[[str], str | None] = shutil.which) -> list[CheckResult]:
    """All checks, in the order in which problems should be fixed."""
    findings = _programs(which)
    findings += _controller(client)
    try:
        config = settings.load()
        findings += _settings(config)
    except ConfigError as error:
        return [*findings, CheckResult("fail", "settings", one_line(error), "correct the file or unset the variable")]
    snapshot, data = _snapshot(config, now_s)
    findings += data + _heartbeat(config, now_s) + _tick(config, client, now_s) + _state_dir(config)
    findings += _spool(config, snapshot)
    try:
        overview = client.overview()
    except MissingPackageError as error:
        return [*findings, CheckResult("fail", "slurm", one_line(error), 'pal.toml: [slurm] backend = "cli"')]
    except SlurmError:
        return findings  # reported by _controller
    findings += _wait(config, overview)
    with contextlib.suppress(SlurmError):
        findings += _pinned(config, client, now_s)
    findings += loan_checks(config, client, overview, now_s)
    if snapshot is not None:
        findings += _coverage(config, snapshot, overview) + _palsub(config, snapshot, overview, now_s)
        rows = inventory.gpu_rows(snapshot, overview, now_s)
        findings += _classes(snapshot) + _faulty(inventory.faulty(rows)) + _power_cap(rows, snapshot)
    return findings


def _programs(which: Callable[[str], str | None]) -> list[CheckResult]:
    missing = [name for name in ("sbatch", "scontrol", "squeue", "scancel") if not which(name)]
    if missing:
        return [CheckResult("fail", "slurm", f"not in PATH: {', '.join(missing)}", "apt-get install slurm-client")]
    return [CheckResult("ok", "slurm", f"commands in {os.path.dirname(which('sbatch') or '')}")]


def _controller(client: SlurmClient) -> list[CheckResult]:
    try:
        config, version = client.config(), client.version()
    except SlurmError as error:
        text = one_line(error)
        mend = "systemctl start munge" if "unge" in text else "scontrol ping; systemctl status slurmctld"
        return [CheckResult("fail", "slurm", text, mend)]
    release = releases.text(version)
    found = [CheckResult("ok", "slurm", f"cluster {config.get('ClusterName', '?')} answers, release {release}")]
    if not releases.known(version):
        span = f"{releases.text(releases.OLDEST)} to {releases.text(releases.NEWEST)}"
        found.append(CheckResult("warn", "slurm", f"release {release} is outside {span}", "run the tests first"))
    if "gpu" not in config.get("GresTypes", "gpu").split(","):
        found.append(
            CheckResult("fail", "slurm", "GresTypes lacks gpu: Slurm does not count GPUs", "slurm.conf: GresTypes=gpu")
        )
    if "cons_tres" not in config.get("SelectType", "cons_tres"):
        text = f"{config['SelectType']} cannot share a node's GPUs between jobs"
        found.append(CheckResult("warn", "slurm", text, "slurm.conf: SelectType=select/cons_tres"))
    return found


def _settings(config: Config) -> list[CheckResult]:
    changed = [
        f"{section}.{name} = {config[section, name]!r} ({config.origin(section, name)})"
        for section, keys in KEYS.items()
        for name in keys
        if config.origin(section, name) != "default"
    ]
    files = ", ".join(config.files) or "no pal.toml, all defaults"
    return [CheckResult("ok", "settings", files), *(CheckResult("ok", "settings", text) for text in changed)]


def _snapshot(config: Config, now_s: float) -> tuple[Snapshot | None, list[CheckResult]]:
    try:
        snapshot = read(config.snapshot_path)
    except DataError as error:
        text, _, mend = one_line(error).rpartition(": ")
        return None, [CheckResult("fail", "data", text, mend)]
    found = [CheckResult("ok", "data", f"snapshot of {len(snapshot)} GPUs, epoch {snapshot.epoch}")]
    newest_s = max(snapshot.columns["measured_s"], default=0.0)
    ahead_s = max(snapshot.written_s, newest_s) - now_s
    if ahead_s > CLOCK_SLACK_S:
        text = f"the snapshot is {ahead_s:.0f} s in the future: this clock or the writer's is wrong"
        found.append(CheckResult("fail", "clock", text, "timedatectl set-ntp true"))
    else:
        found.append(CheckResult("ok", "clock", "agrees with the snapshot"))
    stale_s = config.number("classes", "stale_after_d") * 86400
    if newest_s and now_s - newest_s > stale_s:
        text = f"the newest measurement is {(now_s - newest_s) / 86400:.0f} days old"
        found.append(CheckResult("warn", "data", text, _sweep(config, " --since 30d")))
    return snapshot, found


def _heartbeat(config: Config, now_s: float) -> list[CheckResult]:
    path = config.snapshot_path + ".heartbeat"
    watched = config.text("submit", "watch") != NEVER
    instead = "palsub's own watcher does" if watched else "palsub sets node lists only with --pal-watch"
    nobody = f"no daemon takes leases back; {instead}, and the submit filter sets no node lists"
    mend = "" if watched else 'pal.toml: [submit] watch = "auto"'
    try:
        age_s = now_s - float(json.loads(read_trusted(path))["at_s"])
        alive = heartbeat.fresh(config.snapshot_path, now_s, config.number("submit", "heartbeat_max_age_s"))
    except FileNotFoundError:
        return [CheckResult("note", "leases", nobody, mend)]
    except (OSError, DataError, ValueError, KeyError, TypeError) as error:
        return [CheckResult("warn", "leases", f"heartbeat {path} cannot be read: {one_line(error)}", f"rm {path}")]
    if not alive:
        return [CheckResult("warn", "leases", f"the daemon was last seen {age_s:.0f} s ago; {nobody}", _RESTART)]
    return [CheckResult("ok", "leases", f"a daemon takes them back, last seen {age_s:.0f} s ago"), *_guard(config)]


def _guard(config: Config) -> list[CheckResult]:
    """Whether a guard takes lists back if the daemon is killed; only root and SlurmUser can read its lock."""
    if not paths.has_powers():
        return []
    if promise.guarded(config.table_path):
        return [CheckResult("ok", "leases", "a lease guard watches over the daemon")]
    text = "no lease guard runs: if the daemon is killed, jobs stay pinned until it starts again"
    return [CheckResult("warn", "leases", text, "systemctl enable --now pal-lease-guard.service")]


def _pinned(config: Config, client: SlurmClient, now_s: float) -> list[CheckResult]:
    """Pending jobs with a list of ours, how long they have waited, and whether a live process takes it back."""
    known, path = pinned.Remembered(), paths.readable_journal(config)
    with contextlib.suppress(PalError):
        if path is not None:
            with open_journal(path, write=False) as journal:
                known = pinned.remembered(journal)
    overview = client.overview(marked=True)
    found, broken = pinned.pinned(overview.jobs, known, overview.up, now_s)
    lines = [CheckResult("warn", "leases", line) for line in broken[:MOST_NAMED]]
    if not found:
        return [*lines, CheckResult("ok", "leases", "no pending job has a list of ours")]
    since_s = {job.job_id: job.submit_s for job in overview.jobs}
    for job_id, leases in known.leases.items():
        since_s[job_id] = max([since_s.get(job_id, 0.0), *(lease.made_s for lease in leases)])
    oldest = sorted(found, key=lambda update: since_s[update.job_id])
    named = ", ".join(f"{update.job_id} ({now_s - since_s[update.job_id]:.0f} s)" for update in oldest[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    text = f"{len(found)} pending {'job has' if len(found) == 1 else 'jobs have'} a list of ours: {named}{more}"
    alive = heartbeat.fresh(config.snapshot_path, now_s, config.number("submit", "heartbeat_max_age_s"))
    by_child = path is not None and promise.stood_by(path)
    if alive or by_child or (paths.has_powers() and promise.guarded(config.table_path)):
        return [*lines, CheckResult("ok", "leases", f"{text}; a live process takes them back")]
    jobs = {job.job_id: job for job in overview.jobs}
    if config.text("submit", "watch") != NEVER and not any(
        update.job_id in known.leases or _overdue(jobs[update.job_id], now_s) for update in found
    ):
        return [*lines, CheckResult("ok", "leases", f"{text}; the watchers of their palsub take them back")]
    mend = "pal-rebalance --withdraw" if paths.has_powers() else "pal-rebalance --mine --withdraw"
    return [*lines, CheckResult("warn", "leases", f"{text}; no live process takes them back", mend)]


def _overdue(job: SlurmJob, now_s: float) -> bool:
    """Whether a list of palsub's stands although its lease is over: its watcher, which nobody else sees, is gone."""
    lease_s = max((mark.lease_s for mark in lease_marks.marks_of(job)), default=0.0)
    return now_s > max(job.submit_s, job.eligible_s) + lease_s + WATCHER_S


def _tick(config: Config, client: SlurmClient, now_s: float) -> list[CheckResult]:
    """Mode, role and last tick, and whether moves or lists of ours are left without a process."""
    if config.text("rebalance", "mode") == "act":
        found = [CheckResult("ok", "tick", 'mode "act": pal-rebalance does what it plans')]
    else:
        text, mend = 'mode "advise": pal-rebalance plans and changes nothing', 'pal.toml: [rebalance] mode = "act"'
        found = [CheckResult("note", "tick", text, mend)]
    with contextlib.suppress(SlurmError):  # reported by _controller
        found.append(_role(client))
    path = paths.readable_journal(config)
    if path is None:
        return [*found, CheckResult("note", "tick", "no tick has ever acted here", _tick_command(""))]
    try:
        with open_journal(path, write=False) as journal:
            late_s = MISSED * max(config.number("rebalance", "interval_s"), 60.0)
            return [
                *found,
                *_last_tick(journal, late_s, now_s),
                *order_of_queue(config, journal, late_s, now_s),
                *_broken(journal),
            ]
    except PalError as error:
        return [*found, CheckResult("warn", "tick", one_line(error))]


def order_of_queue(config: Config, journal: Journal, late_s: float, now_s: float) -> list[CheckResult]:
    """The order of the queue: whether a tick keeps the places that it gave."""
    places, order = len(journal.given_places()), config.text("rebalance", "order")
    if places and now_s - journal.last_tick_s() > late_s:
        text = f"{places} jobs have a place of ours in the queue, and no tick keeps it"
        return [CheckResult("warn", "order", text, "pal-rebalance --withdraw, or start the daemon again")]
    if order == "none":
        return []
    return [CheckResult("ok", "order", f"the queue is ordered ({order}); {places} jobs have a place by that")]


def _broken(journal: Journal) -> list[CheckResult]:
    """Jobs that make our code raise."""
    jobs = journal.broken()
    if not jobs:
        return []
    first, why = next(iter(jobs.items()))
    ids = " ".join(map(str, [*jobs][:MOST_NAMED]))
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    text = f"left alone because our code fails on them: jobs {ids}{more}; {first}: {why}"
    return [CheckResult("warn", "tick", text, "please report it, with `trace` from rebalance.log")]


def _wait(config: Config, overview: Overview) -> list[CheckResult]:
    """Whether a job can wait behind a fence, where the site wants that."""
    if not config.flag("rebalance", "wait"):
        return []
    if not config.flag("rebalance", "retarget"):
        text = "rebalance.wait does nothing: rebalance.retarget is false"
        return [CheckResult("warn", "tick", text, "pal.toml: [rebalance] retarget = true")]
    parts = overview.partitions
    silent = [one.name for one in parts if limits_say_nothing(overview.jobs, parts, [one.name])]
    if silent:
        text = f"no job waits behind a fence in {','.join(silent)}: most time limits there are the partition's own"
        return [CheckResult("note", "tick", text, "ask users for time limits, or shorten DefaultTime in slurm.conf")]
    longest_s = config.number("rebalance", "wait_max_s")
    return [CheckResult("ok", "tick", f"the first job of a queue may wait {longest_s:.0f} s behind a fence")]


def _role(client: SlurmClient) -> CheckResult:
    try:
        role = role_of(client, {}, mine=False)
    except UsageError:
        return CheckResult("ok", "tick", "you may steer jobs of your own: pal-rebalance --mine")
    return CheckResult("ok", "tick", f"you may steer all jobs, as {role.name}")


def _last_tick(journal: Journal, max_age_s: float, now_s: float) -> list[CheckResult]:
    last_s, moves, lists = journal.last_tick_s(), len(journal.open_moves()), len(journal.every_lease())
    age_s = now_s - last_s
    last = f"the last tick was {age(age_s)} ago" if last_s else "no tick has ever acted here"
    text = f"{last}; moves under way: {moves}, lists of ours on jobs: {lists}"
    if -CLOCK_SLACK_S <= age_s <= max_age_s:
        return [CheckResult("ok", "tick", text)]
    if age_s < 0:
        return [
            CheckResult("warn", "tick", f"the last tick was {-age_s:.0f} s in the future", "timedatectl set-ntp true")
        ]
    if moves or lists:
        return [CheckResult("warn", "tick", f"{text}; no process looks after them", _tick_command(" --act"))]
    return [CheckResult("note", "tick", text, _tick_command(""))]


def _tick_command(more: str) -> str:
    return f"pal-rebalance {'' if paths.has_powers() else '--mine '}--once{more}"


def _state_dir(config: Config) -> list[CheckResult]:
    path = config.state_dir
    if not os.path.isdir(path):
        mend = f"install -d -m 755 {path} on the controller; readers need only the snapshot"
        return [
            CheckResult(
                "note", "permissions", f"no state directory {path} on this host: no sweep can run from here", mend
            )
        ]
    found: list[CheckResult] = []
    if os.stat(path).st_mode & 0o002:
        found.append(CheckResult("fail", "permissions", f"everyone can write {path}", f"chmod o-w {path}"))
    if not os.access(path, os.W_OK):
        found.append(CheckResult("note", "permissions", f"you cannot write {path}: you can read, but not run sweeps"))
    rejected = os.path.join(config.spool_dir, "rejected")
    bad = os.listdir(rejected) if os.path.isdir(rejected) else []
    if bad:
        text = f"{len(bad)} result {'file' if len(bad) == 1 else 'files'} had unreadable lines"
        found.append(CheckResult("warn", "data", text, f"inspect {rejected}, then remove them"))
    return found or [CheckResult("ok", "permissions", f"you can write {path}")]


def _faulty(rows: Sequence[GpuRow]) -> list[CheckResult]:
    """The GPUs that were seen to fail, each with what to do about it."""
    found = [
        CheckResult(
            "warn",
            "gpu",
            f"{row.node}:{row.gpu_index} {row.state}: {FAULTS[fault_of(row.flags)].meaning}; jobs are kept off it",
            cure_of(row.flags, row.node, row.gpu_index),
        )
        for row in rows[:MOST_NAMED]
    ]
    if len(rows) > MOST_NAMED:
        more = f"{len(rows) - MOST_NAMED} more GPUs were seen to fail; jobs are kept off them"
        found.append(CheckResult("warn", "gpu", more, "pal gpus -f shows what to do about each"))
    return found or [CheckResult("ok", "gpu", "no GPU was seen to fail")]


def _power_cap(rows: Sequence[GpuRow], snapshot: Snapshot) -> list[CheckResult]:
    """The models whose class A was measured below the power cap, and those on which A and B are one class."""
    found = power_findings(rows, snapshot.met_cap)
    return [CheckResult("warn" if one.cure else "note", "power", one.text, one.cure) for one in found]


def _classes(snapshot: Snapshot) -> list[CheckResult]:
    """Whether the classes of class A show differences, and whether they all moved."""
    if not any(number != NO_CLASS for number in snapshot.columns["class_A"]):
        return []
    found = [
        CheckResult("warn" if line.alarm else "note", "classes", line.text, line.mend)
        for line in class_notices.lines(snapshot.notices)
    ]
    if any(result.level == "warn" for result in found):
        return found
    n = len(snapshot.centroids.get("A", ()))
    text = f"class A has {n} variability {'class' if n == 1 else 'classes'}"
    return [*found, CheckResult("ok", "classes", text)]


def class_state() -> str | None:
    """ "ok", "flat" or "shifted", as the published classes are; None without a snapshot or with wrong settings."""
    try:
        return read(settings.load().snapshot_path).class_state
    except (ConfigError, DataError):
        return None


def _spool(config: Config, snapshot: Snapshot | None) -> list[CheckResult]:
    """Whether results of sweeps can come from the nodes, checked where sweeps are run."""
    spool = config.spool_dir
    if not os.path.isdir(config.state_dir):
        return []
    hosts = {score.node for score in map(snapshot.gpu, range(len(snapshot)))} if snapshot else set()
    others = hosts - {socket.gethostname().partition(".")[0]}
    if others:
        return [CheckResult("ok", "spool", f"results of {len(others)} other nodes have come through {spool}")]
    kind = file_system(spool)
    if kind not in OF_ONE_HOST:
        return [CheckResult("ok", "spool", f"{spool} is on {kind or 'a file system'} that nodes can share")]
    text = f"{spool} is on a disk of this host ({kind}): no node elsewhere can drop its results there"
    mend = "pal.toml: [paths] spool = a folder that SlurmUser can write on every node, or export this one"
    return [CheckResult("warn", "spool", text, mend)]


def _slots(snapshot: Snapshot, overview: Overview) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """The GPUs of Slurm, and those of the snapshot."""
    slots = {(node.name, index) for node in overview.nodes for index in range(node.n_gpus)}
    return slots, {(g.node, g.index) for g in map(snapshot.gpu, range(len(snapshot)))}


def _palsub(config: Config, snapshot: Snapshot, overview: Overview, now_s: float) -> list[CheckResult]:
    """Whether a palsub of this user can place anything at all."""
    slots, known = _slots(snapshot, overview)
    daemon = heartbeat.fresh(config.snapshot_path, now_s, config.number("submit", "heartbeat_max_age_s"))
    home, mend = state.home(), ""
    if not config.flag("submit", "enabled"):
        why, mend = (
            f"submit.enabled is false ({config.origin('submit', 'enabled')})",
            "pal.toml: [submit] enabled = true",
        )
    elif not slots & known:
        why, mend = "no GPU that Slurm has here was measured", _sweep(config, "")
    elif daemon:
        return [CheckResult("ok", "palsub", "sends jobs to chosen nodes; a daemon takes its node lists back")]
    elif means.published(overview):
        return [CheckResult("ok", "palsub", "prefers nodes by their class features, without a node list")]
    elif config.text("submit", "watch") == NEVER:
        why = 'submit.watch is "never", no daemon is alive, and no node has a class feature'
        mend = 'pal.toml: [submit] watch = "auto"'
    elif not (paths.has_powers() or may_write(os.path.join(home, "leases"))):  # SlurmUser's home is no user's
        why, mend = f"its watcher needs {home}, which you cannot write", f"mkdir -p {home}"
    elif config.text("submit", "watch") == AUTO and (ending := ends_with()):
        why = f"no daemon is alive, no node has a class feature, and a watcher would end with {ending}"
        mend = "systemctl enable --now pal-publish-table.service" if paths.has_powers() else "palsub --pal-watch"
    else:
        return [CheckResult("ok", "palsub", "sends jobs to chosen nodes; its own watcher takes its node lists back")]
    return [CheckResult("fail", "palsub", f"every palsub is plain sbatch: {why}", mend)]


def _sweep(config: Config, words: str) -> str:
    """The command for a sweep, for those who may run one."""
    may = paths.has_powers() or may_write(config.state_dir)
    return f"{'' if may else 'ask the admins: '}pal-profile run{words}"


def _coverage(config: Config, snapshot: Snapshot, overview: Overview) -> list[CheckResult]:
    slots, known = _slots(snapshot, overview)
    found: list[CheckResult] = []
    if slots - known:
        names = fold(sorted({node for node, _ in slots - known}))
        text = f"{len(slots - known)} of {len(slots)} GPUs were never measured ({names})"
        found.append(CheckResult("warn", "data", text, _sweep(config, f" --nodelist {names}")))
    if known - slots:
        names = fold(sorted({node for node, _ in known - slots}))
        text = f"{len(known - slots)} GPUs of the snapshot are unknown to Slurm ({names})"
        found.append(
            CheckResult(
                "warn", "data", text, "sinfo -N; a later pal-profile publish-scores drops GPUs not seen for long"
            )
        )
    return found or [CheckResult("ok", "data", f"all {len(slots)} GPUs of this cluster are measured")]
