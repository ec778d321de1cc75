# SPDX-License-Identifier: MIT
"""From a command line and its script to a plan: the words to add, the record, the lease."""

from __future__ import annotations

import os
import time

from slurm_pal.base import marks, state
from slurm_pal.base.config import ALWAYS, AUTO
from slurm_pal.base.errors import DataError, SlurmError, one_line
from slurm_pal.base.jobs import UNKNOWN_CLASS
from slurm_pal.base.light import NamedTuple, suppress
from slurm_pal.decide import lease
from slurm_pal.decide.request import Request, for_class
from slurm_pal.sensitivity.cascade import WORD, Verdict
from slurm_pal.store import heartbeat
from slurm_pal.submit import decision, lease_file
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.choice import NO_SAVING, Choice, Moving, Saving
from slurm_pal.submit.known import job_name, locality
from slurm_pal.submit.lease_file import Lease
from slurm_pal.submit.movable import APPEND, TRUNCATE, MovableRequest, comment, job_word, own_nodes, terms
from slurm_pal.submit.options import build
from slurm_pal.submit.script import Script

TYPE_CHECKING = False  # decide and snapshot are imported while we wait for Slurm
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slurm_pal.base.config import Config
    from slurm_pal.decide.case import Decision, Settings
    from slurm_pal.decide.near import Near
    from slurm_pal.placement.penalties import Penalties
    from slurm_pal.slurm.client import Overview
    from slurm_pal.store.snapshot import Snapshot
    from slurm_pal.submit.alternatives import Asking, Choices, NamedPlace, Picked
    from slurm_pal.submit.asked import Asked
    from slurm_pal.submit.avoid_slow import AvoidsSlow
    from slurm_pal.submit.elastic import Elastic

NOWHERE = "no job is sent to chosen nodes: no daemon takes node lists back, and {}; shown once a day"
LAST_MARGIN_S = 60.0
"""A lease is taken back this long after submit.lease_max_s, whatever the job waits for."""
LOOK_UP_S = 1.0
"""What earlier jobs waited and ran is looked up in so long a time, or not at all."""


class SteeredJob(NamedTuple):
    """The partition of a new job, and the mark by which that can be taken back."""

    partition: str
    mark: str


class SubmissionPlan:
    """What will be submitted, and what is recorded about it."""

    def __init__(self, decided: Decision, made: decision.Record, words: list[str]) -> None:
        self.decided, self.made, self.words = decided, made, words
        self.lease: Lease | None = None
        self.prepared = ""  # the file of a lease whose job does not exist yet
        self.parsable = False  # sbatch prints the bare job id
        self.word: list[str] = []  # for sbatch: what the job bears though nothing was chosen for it
        self.trouble = ""  # why nothing could be decided, if the user must know
        self.place: NamedPlace | None = None  # where a job with several places goes


def plan(
    line: CommandLine, chosen: Choice, script: Script | None, config: Config, known: Verdict,
    warnings: list[str], moving: Moving, sent: CommandLine, asked: Asked, at_s: float | None = None,
    elastic: Elastic | None = None, wanted: Choices | None = None, saving: Saving = NO_SAVING,
) -> SubmissionPlan:  # fmt: skip
    """Decide about one submission. `warnings` gets what the user must know, one line each.

    `sent` is the command line for sbatch: `line`, or that with the script wrapped. `at_s` is when; None: now.
    Raises SlurmError, DataError or OSError if nothing can be decided.
    """
    now_s = time.time() if at_s is None else at_s
    cluster = state.cluster_key()
    request = for_class(build(line, os.environ, script), known.sensitivity, known.stage)
    alive = heartbeat.fresh(config.snapshot_path, now_s, config.number("submit", "heartbeat_max_age_s"))
    policy = chosen.policy or config.text("placement", "policy")

    def clearer_for(overview: Overview) -> str:
        return _clearer(config, chosen, request, cluster, alive, overview, warnings)

    # A daemon finds our mark in the job's comment, and the user's own comment is not ours to change.
    steers = alive and not (elastic or request.comment or request.soft_only or wanted) and len(request.partitions) > 1
    spreads = request.shape is not None and request.shape.total > 1 and request.nodes_max != 1
    name = job_name(line, script, os.environ) if steers or wanted or spreads else ""
    work = _Work(name if spreads else "", config)
    places = _Places(wanted, line, script, config, name, warnings) if wanted else None
    data = _Data(chosen, script, config, warnings)
    wants = _avoids(chosen, script, config, warnings)
    scores, decided, clearer, steered = _decide(
        request,
        config,
        policy,
        known,
        clearer_for,
        now_s,
        asked,
        name if steers else "",
        places,
        data,
        work,
        wants,
    )
    picked = places.picked if places else None
    request = picked.request if picked else request
    added, mark = [*(picked.place.words if picked else ()), *decided.added], ""
    # Whoever looks at the job sees whose list it is; a lease guard also takes it back should the watcher be killed.
    if decided.lease_s and not request.comment:
        own_req, own_exc = ",".join(request.req_nodes), ",".join(request.exc_nodes)
        ours = ",".join(decided.pinned or decided.excluded)
        alone = decided.plain.slowdown if decided.plain else None
        mark = lease.comment(decided.lease_s, own_req, own_exc, decided.action, ours, alone)
        if decided.avoid_s:
            mark += f" {lease.comment(decided.avoid_s, own_req, own_exc, 'exclude', ','.join(decided.excluded))}"
    if steered:
        added.append(f"--partition={steered.partition}")
        mark = f"{mark} {steered.mark}".strip()
    # The submit filter leaves a job with one of our marks alone, even if nothing was added to it here.
    decided_here = not isinstance(scores, DataError)
    said = known.sensitivity != UNKNOWN_CLASS
    requeued = moving.movable or saving.before_s > 0
    says = requeued or (alive and (said or decided_here)) or (bool(mark) and said)
    own = terms(line, os.environ, script) if mark or says or elastic else MovableRequest()
    # A requeue starts the script anew, and Slurm would empty its output as at every start.
    open_mode = own.open_mode or (APPEND if requeued else "")
    nodes, named = own_nodes(request), origin(known)
    word = job_word(known.sensitivity, named, moving, open_mode, known.is_measured, nodes) if says else None
    lasting = elastic.mark if elastic else None
    choosing = picked.mark if picked and alive and not (request.comment or request.soft_only) else None
    added += _added(own, requeued, mark, word, warnings, choosing or lasting)
    if saving.before_s:  # where the site's JobRequeue is 0 Slurm would refuse the wrapper's requeue
        added += ["--requeue", f"--signal=B:USR1@{saving.before_s}"]
    words = ["sbatch", *sent.before, *added, *sent.after]
    made = decision.record(
        decided._replace(added=tuple(added)),
        cluster=cluster,
        now_s=now_s,
        known=known,
        policy=policy,
        argv=words,
        snapshot=_source(config, scores, now_s),
        warnings=warnings,
    ) | {"movable": moving.shown | {"open_mode": open_mode} if moving.movable else None}
    made["saving"] = {**saving._asdict(), "checkpoint": moving.checkpoint} if saving.before_s else None
    made["avoid_slow"] = wants.shown(decided) if wants else None
    made["places"] = picked.shown if picked else None
    made["locality"] = work.shown
    made["inputs"] = data.shown and data.shown | {"stage_in_s": round(decided.stage_in_s, 1)}
    made["steered"] = {"partition": steered.partition, "of": [*request.partitions]} if steered else None
    planned = SubmissionPlan(decided, made, words)
    planned.place = picked.place if picked else None
    if (says and alive) or lasting:  # without the choice of places: sbatch is to have what the user typed
        plain = job_word(known.sensitivity, named, Moving(), nodes=nodes) if says and alive else None
        planned.word = _added(own, False, "", plain, [], lasting)
    if isinstance(scores, DataError):
        planned.trouble = str(scores)
    planned.parsable = request.parsable or line.has("parsable")
    if decided.lease_s and clearer == "watcher":
        planned.lease = _lease(decided, request, config, now_s)
    return planned


def origin(known: Verdict) -> str:
    """Where the class comes from, for the mark on the job: the user's own statement, or the stage."""
    return known.why if known.stage in ("", WORD) else known.stage


def _added(
    known: MovableRequest,
    asked: bool,
    mark: str,
    word: dict[str, str] | None,
    warnings: list[str],
    other: dict[str, str] | None = None,
) -> list[str]:
    """The --comment that sbatch gets for the marks of lease, job and `other`, and --open-mode; [] for none.

    The user's own comment is extended only if they asked for that, by making the job movable or elastic.
    """
    if word is not None and (not known.readable or (known.comment and not asked)):
        word = None
    if not mark and word is None and other is None:
        return []
    text = comment(known.comment, mark, word)
    if text is None:
        warnings.append("the job is not movable: its comment is too long for the mark")
        text, asked = mark, False
    if other is not None:
        longer = marks.put(text or known.comment, other)
        if longer is None:
            warnings.append("no tick will see that the job is elastic or has several places: its comment is too long")
        text = longer or text
    comments = [f"--comment={text}"] if text else []
    if not asked:
        return comments
    if known.open_mode == TRUNCATE:
        warnings.append("--open-mode=truncate: each move of the job empties its output")
    if known.open_mode:
        return comments
    if known.shared_output:
        warnings.append(
            f"the job may be requeued, so --open-mode=append keeps its output: {known.shared_output} is not emptied "
            "at the start either (--open-mode=truncate empties it at each start and each move)"
        )
    return [f"--open-mode={APPEND}", *comments]


def _avoids(chosen: Choice, script: Script | None, config: Config, warnings: list[str]) -> AvoidsSlow | None:
    """What the user wants the job to be kept off, None where they say nothing."""
    directives = script.pal if script else ()
    said = chosen.avoid_slow is not None or any(name == "avoid-slow" for name, _ in directives)
    if not said and not os.environ.get("SLURM_PAL_AVOID_SLOW"):
        return None
    from slurm_pal.submit.avoid_slow import asked

    return asked(chosen, os.environ, directives, config.number("submit", "avoid_slow"), warnings)


def _source(config: Config, snapshot: Snapshot | DataError | None, now_s: float) -> decision.Record | None:
    if snapshot is None or isinstance(snapshot, DataError):
        return None
    age_s = round(max(0.0, now_s - snapshot.written_s))
    return {"path": config.snapshot_path, "epoch": snapshot.epoch, "age_s": age_s}


def _clearer(
    config: Config, chosen: Choice, request: Request, cluster: str, alive: bool, overview: Overview, warnings: list[str]
) -> str:
    """Who will take a lease back: the user's watcher if wanted and possible, a daemon that promises it, or nobody."""
    if request.soft_only:
        return ""
    from slurm_pal.decide import means

    # The daemon finds a lease by the job's comment, and we must not change the user's own comment.
    daemon, wanted, soft = alive and not request.comment, config.text("submit", "watch"), means.published(overview)
    needed, why = wanted == AUTO and not daemon and (alive or not soft), f'submit.watch is "{wanted}"'
    if needed:
        from slurm_pal.base.survival import ends_with

        ending = ends_with()
        needed, why = not ending, f"a watcher would end with {ending}"
    if chosen.watch or wanted == ALWAYS or needed:
        try:
            if os.access(state.folder("leases", cluster), os.W_OK):
                return "watcher"
            raise PermissionError(13, "Permission denied")
        except OSError as error:
            warnings.append(f"no watcher, so no node list: cannot write {state.home()} ({error.strerror})")
            return "daemon" if daemon else ""
    if not (daemon or soft or chosen.dry_run):
        from slurm_pal.submit import daily

        if daily.due(cluster, time.time()):
            warnings.append(NOWHERE.format(why))
    return "daemon" if daemon else ""


def _decide(
    request: Request, config: Config, policy: str, known: Verdict, clearer_for: Callable[[Overview], str],
    now_s: float, asked: Asked, name: str, places: _Places | None, data: _Data, work: _Work, wants: AvoidsSlow | None,
) -> tuple[Snapshot | DataError | None, Decision, str, SteeredJob | None]:  # fmt: skip
    """Ask Slurm; meanwhile import the code that decides and read the snapshot. Also who takes a lease back, and the
    partition where the job of this name belongs ("": it is not to be steered)."""
    if places is None and (request.leave or request.shape is None):
        from slurm_pal.decide.case import Decision

        return None, Decision("none", f"left to Slurm: {request.leave or 'the job asks for no GPU'}"), "", None
    asked.begin(bool(request.reservation))
    if places:
        places.ask()
    from slurm_pal.decide.case import Decision, settings_of
    from slurm_pal.decide.decide import decide
    from slurm_pal.placement.penalties import expected
    from slurm_pal.store import snapshot as snapshots

    found: Snapshot | DataError
    try:
        found = snapshots.read(config.snapshot_path)
    except DataError as error:
        found = error
    try:
        client = asked.client(config.number("submit", "slurm_timeout_s"))
        overview = client.overview(reservations=bool(request.reservation))
    except SlurmError:
        if isinstance(found, DataError):
            raise found from None  # the direct cause, which the user can fix
        raise
    settings, measured = settings_of(config, policy), known.is_measured
    ratios = found.network if not isinstance(found, DataError) else {}
    settings = settings.knowing(expected(settings.locality_penalty, ratios))
    if places:
        request = places.chosen(request, overview, found, known, settings, now_s, data.near(overview, now_s))
        if request.leave or request.shape is None:
            return found, Decision("none", f"left to Slurm: {request.leave or 'the job asks for no GPU'}"), "", None
    if isinstance(found, DataError):
        return found, Decision("none", f"left to Slurm: {found}"), "", None
    clearer = clearer_for(overview)
    steered = _steered(request, config, overview, name, known.sensitivity, now_s) if name else None
    if steered:
        request = request._replace(partitions=(steered.partition,))
    near = data.near(overview, now_s)
    settings = settings.knowing(work.penalties(request))

    def decided(one: Request) -> Decision:
        return decide(one, overview, found, known.sensitivity, settings, clearer, now_s, measured=measured, data=near)

    if wants is None:
        return found, decided(request), clearer, steered
    made = wants.decided(request, decided, overview, found, known.sensitivity, settings, clearer)
    return found, made, clearer, steered


class _Work:
    """What is known of the work of jobs of this name, looked up when first asked for."""

    def __init__(self, name: str, config: Config) -> None:
        self._name, self._config = name, config
        self.shown: dict[str, object] | None = None  # for the record

    def penalties(self, request: Request) -> Penalties:
        """The locality penalties that its steps showed on so many GPUs; () for none."""
        found = locality(self._name, request.shape.total, self._config) if self._name and request.shape else None
        if found is None:
            return ()
        self.shown = {"penalties": [round(factor, 3) for factor in found.penalties], "shown_s": round(found.at_s)}
        return found.penalties


class _Data:
    """Which nodes have the job's input, looked up when first asked for."""

    def __init__(self, chosen: Choice, script: Script | None, config: Config, warnings: list[str]) -> None:
        self._chosen, self._script, self._config, self._warnings = chosen, script, config, warnings
        self._asked = False
        self._near: Near | None = None
        self.shown: decision.Record | None = None

    def near(self, overview: Overview, now_s: float) -> Near | None:
        """None where nothing is known, as for most jobs. Never raises."""
        if not self._asked:
            self._asked = True
            directives = self._script.pal if self._script else ()
            stated = self._chosen.input is not None or any(name == "input" for name, _ in directives)
            if stated or self._config.data or os.environ.get("SLURM_PAL_INPUT"):
                self._look(overview, now_s)
        return self._near

    def _look(self, overview: Overview, now_s: float) -> None:
        from slurm_pal.submit import inputs

        paths, stated = inputs.paths(self._chosen, os.environ, self._script, self._config)
        if paths:
            self._near = inputs.nearness(paths, stated, self._config, overview.nodes, now_s, self._warnings)
            whole = self._near.whole if self._near else 0
            self.shown = {"paths": paths, "stated": stated, "bytes": whole}


class _Places:
    """The choice between places: Slurm is asked about all of them while it answers the large question."""

    def __init__(
        self, wanted: Choices, line: CommandLine, script: Script | None, config: Config, name: str, warnings: list[str]
    ) -> None:
        self._wanted, self._line, self._script, self._config = wanted, line, script, config
        self._name, self._warnings = name, warnings
        self._asking: Asking | None = None
        self.picked: Picked | None = None

    def ask(self) -> None:
        """Begin to ask. What earlier jobs waited and ran is looked up meanwhile. Never raises."""
        from slurm_pal.submit import place_history
        from slurm_pal.submit.alternatives import Asking
        from slurm_pal.submit.processes import runner

        try:
            self._asking = Asking(self._wanted, self._line, self._script)
            place_history.settle(runner(LOOK_UP_S))
        except (SlurmError, OSError) as error:
            self._warnings.append(f"the choice of places: {one_line(error)}")

    def chosen(
        self, request: Request, overview: Overview, scores: Snapshot | DataError, known: Verdict, settings: Settings,
        now_s: float, data: Near | None,
    ) -> Request:  # fmt: skip
        """The request in the place chosen; the one given where nothing can be chosen. Never raises."""
        from slurm_pal.decide.decide import decide
        from slurm_pal.submit import alternatives
        from slurm_pal.submit.market import read

        if self._asking is None:
            return request

        def slowdown(there: Request) -> float:
            if isinstance(scores, DataError) or there.leave:
                return 1.0
            offer = decide(there, overview, scores, known.sensitivity, settings, "", now_s, 0).chosen
            return offer.product if offer else 1.0

        market = read(self._config.snapshot_path, now_s)
        shape = request.shape
        sizes = market.speeds.get(self._name.strip().lower(), {}) if market and shape else {}
        speeds = {name: told[0] for name, told in sizes.get(shape.total if shape else 0, {}).items()}
        try:
            self.picked = alternatives.pick(
                self._wanted, self._asking, self._line, self._script, self._config, overview, self._name, speeds,
                slowdown, settings.expected_run_s, data, now_s, self._warnings,
            )  # fmt: skip
        except SlurmError as error:
            self._warnings.append(f"no place was chosen: {one_line(error)}")
        finally:
            self._asking.end()
        return self.picked.request if self.picked else request


def _steered(
    request: Request, config: Config, overview: Overview, name: str, sensitivity: str, now_s: float
) -> SteeredJob | None:
    """The partition that a new job is kept to until a tick sees it, None where that is left to Slurm. Never raises."""
    from slurm_pal.decide import partition_mark, steering
    from slurm_pal.decide.case import expected_run_s, settings_of
    from slurm_pal.submit.market import read

    shape, own = request.shape, request.partitions
    if shape is None or request.req_nodes or request.reservation:
        return None
    market = read(config.snapshot_path, now_s)
    if market is None:
        return None
    run_s = expected_run_s(request.time_limit_s, settings_of(config))
    stated = sensitivity if sensitivity != UNKNOWN_CLASS else "A"
    new = steering.NewJob(name.strip().lower(), shape.total, stated, run_s)
    places = steering.places(overview, request)
    room = frozenset(partition for partition, free in places.items() if free)
    found = steering.steered(market, new, tuple(places), room)
    lease_s = 2.0 * market.every_s + config.number("submit", "lease_pass_s")
    mark = partition_mark.word(lease_s, own, found) if found else ""
    return SteeredJob(found, mark) if mark else None


def _lease(decided: Decision, request: Request, config: Config, now_s: float) -> Lease:
    return Lease(
        job_id=0,
        made_s=now_s,
        until_s=now_s + decided.lease_s,
        avoid_until_s=now_s + decided.avoid_s if decided.avoid_s else 0.0,
        pass_s=config.number("submit", "lease_pass_s"),
        last_s=now_s + config.number("submit", "lease_max_s") + LAST_MARGIN_S,
        pinned=",".join(decided.pinned),
        excluded=",".join(decided.excluded),
        user_req=",".join(request.req_nodes),
        user_exc=",".join(request.exc_nodes),
    )


def prepare(planned: SubmissionPlan) -> None:
    """Write the lease before the job exists. Raises OSError when it cannot be written."""
    if planned.lease is not None:
        planned.prepared = lease_file.prepare(planned.lease, str(planned.made["cluster"]))


def submitted(planned: SubmissionPlan, job_id: int) -> list[str]:
    """The job exists: confirm lease and record. Returns warnings; never raises for our own files."""
    planned.made["job_id"] = job_id
    said: list[str] = []
    if planned.lease is not None and planned.prepared:
        try:
            _watch(planned, planned.lease, job_id)
        except OSError as error:
            said.append(_take_back(planned.lease, job_id, error))
    try:
        decision.save(planned.made)
        if planned.made.get("places"):
            _remember(planned.made, job_id)
    except OSError as error:
        planned.made["unsaved"] = error.strerror
    return said


def _remember(made: decision.Record, job_id: int) -> None:
    """What was planned for a job with several places, for its user's next one. Raises OSError."""
    from slurm_pal.submit import place_history

    shown = made["places"]
    row = next(row for row in shown["of"] if row["name"] == shown["chosen"])
    key = place_history.key_of(shown["job_name"])
    place_history.add(place_history.Ran(job_id, key, row["name"], row["partition"], row["planned_s"], made["made_s"]))


def accompanied(planned: SubmissionPlan, base: int, made: Sequence[int], trouble: str) -> list[str]:
    """The companions of an elastic job exist: keep their ids in its record. Returns warnings."""
    planned.made["elastic"]["companions"] = list(made)
    if planned.made["job_id"] is not None:
        with suppress(OSError):  # which `submitted` has said
            decision.save(planned.made)
    wanted = planned.made["elastic"]["most"] - planned.made["elastic"]["least"]
    said = f"job {base} has {len(made)} of {wanted} companions and goes on with them"
    return [f"{said}: {trouble}"] if trouble else []


def _watch(planned: SubmissionPlan, made: Lease, job_id: int) -> None:
    from slurm_pal.submit import watcher

    shift_s = time.time() - made.made_s  # the lease runs from the submission
    path = lease_file.confirm(
        planned.prepared,
        made._replace(
            job_id=job_id,
            made_s=made.made_s + shift_s,
            until_s=made.until_s + shift_s,
            last_s=made.last_s + shift_s,
            avoid_until_s=made.avoid_until_s and made.avoid_until_s + shift_s,
        ),
    )
    watcher.start(os.path.dirname(path))


def _take_back(made: Lease, job_id: int, error: OSError) -> str:
    """No watcher after all: the node list must not stay."""
    from slurm_pal.submit import watcher

    why = f"no watcher ({error.strerror})"
    try:
        watcher.clear(watcher.own_client(), made._replace(job_id=job_id))
    except SlurmError as refused:
        mend = f"scontrol update JobId={job_id} ReqNodeList={made.user_req}"
        return f"the node list of job {job_id} stays: {why}, {refused}; run {mend}"
    return f"the node list of job {job_id} was taken back at once: {why}"


def forget(planned: SubmissionPlan) -> None:
    """sbatch did not take the job: no lease."""
    if planned.prepared:
        lease_file.drop(planned.prepared)
        planned.prepared = ""
