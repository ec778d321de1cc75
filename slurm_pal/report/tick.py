# SPDX-License-Identifier: MIT
"""One tick for people and for programs: what it would do or did, and why other jobs are not changed."""

from __future__ import annotations

from typing import Any

from slurm_pal.base.hostlist import fold
from slurm_pal.loans.lend import Lent
from slurm_pal.loans.scale import Scaled
from slurm_pal.moves.planning import PlannedMove
from slurm_pal.pending.queue_order import FAIR, NONE, RESPONSE_RATIO
from slurm_pal.pending.retarget import Wish, WishAction
from slurm_pal.report.table import columns, counted
from slurm_pal.tick.ordering import Ordered
from slurm_pal.tick.tick import TickResult

MOST_PLACES = 20  # changes in the order of the queue that are shown
MOST_STAYING = 20  # unchanged jobs that are shown; the others are only counted
_STAYS = (WishAction.KEEP, WishAction.NONE)
_DOES = {
    "nodelist": "name nodes", "exclude": "keep off", "clear": "take back", "keep": "leave the list", "none": "leave",
    "partition": "choose partition", "partition-clear": "all its partitions", "fence": "wait behind a fence",
    "fence-clear": "end its wait",
}  # fmt: skip


def as_json(seen: TickResult) -> dict[str, Any]:
    """The body of pal.rebalance/1."""
    plan = seen.decided.plan
    jobs = seen.decided.steered
    return {
        "at_s": seen.at_s,
        "acted": seen.acted,
        "paused": seen.paused or None,
        "query_s": round(seen.query_s, 4),
        "queries": seen.queries,
        "orders": seen.orders,
        "ingested": seen.ingested,
        "waiting": len(jobs.waiting) + jobs.behind if jobs else 0,
        "running": len(jobs.running) if jobs else 0,
        "foreign": jobs.foreign if jobs else 0,
        "retarget": [
            {"job_id": wish.job_id, "action": wish.action, "fields": wish.fields, "reason": wish.reason}
            for wish in seen.decided.wishes
        ],
        "moves": [_move(move._asdict()) for move in plan.moves] if plan else [],
        "staying": [{"job_id": one.job_id, "why": one.why} for one in seen.decided.staying],
        "order": _order(seen.ordered),
        "loans": _loans(seen.lent),
        "places": [change._asdict() for change in seen.placed],
        "continued": list(seen.continued),
        "elastic": [change._asdict() for change in seen.scaled.changes] if seen.scaled is not None else [],
        "moving": seen.moving,
        "calibration": round(seen.decided.calibration, 3),
        "slow_since_sweep": [
            {"node": node, "index": index, "factor": round(f, 3)} for (node, index), f in seen.decided.exposed
        ],
        "trouble": list(seen.trouble),
    }


def _order(ordered: Ordered | None) -> dict[str, Any] | None:
    if ordered is None:
        return None
    return {
        "order": ordered.order,
        "lever": ordered.lever or None,
        "queue": ordered.queue,
        "in_front": ordered.in_front,
        "changes": [
            {"job_id": one.job_id, "fields": {one.lever: str(one.value)}, "own": one.own, "reason": one.why}
            for one in ordered.changes
        ],
        "left": ordered.left,
    }


def _loans(lent: Lent | None) -> dict[str, Any] | None:
    if lent is None or not lent.guest:
        return None
    order = lent.order
    return {
        "guest": lent.guest,
        "open": list(lent.opened),
        "nodes": list(lent.nodes),
        "changed": lent.changed,
        "order": order._asdict() if order is not None else None,
        "leaving": [
            {"job_id": one.job.job_id, "user": one.job.user, "nodes": list(one.job.nodes), "checkpoint": one.checkpoint,
             "lost_s": round(one.lost_s, 1), "cost_gpu_s": round(one.cost, 1)}
            for one in lent.leavers
        ],
        "released": [job.job_id for job in lent.released],
        "staying": [{"job_id": job_id, "why": why} for job_id, why in lent.staying],
        "unheld": list(lent.unheld),
    }  # fmt: skip


CSV_COLUMNS = (
    "job_id", "list", "action", "nodes", "source", "target", "partition", "before", "after", "gain_s", "cost_s",
    "checkpoint", "why",
)  # fmt: skip


def csv_rows(seen: TickResult) -> list[dict[str, Any]]:
    """One row per job and list of pal.rebalance/1 that holds it (retarget, order, moves, staying)."""
    body = as_json(seen)
    wishes = [wish | {"nodes": " ".join(filter(None, wish["fields"].values())), "why": wish["reason"]}
              for wish in body["retarget"]]  # fmt: skip
    moves = [move | {"action": "move", "target": move["target_gpus"]} for move in body["moves"]]
    changes = (body["order"] or {"changes": []})["changes"]
    order = [
        {"job_id": one["job_id"], "action": "order", "why": one["reason"],
         "nodes": " ".join(f"{key}={text}" for key, text in one["fields"].items())}
        for one in changes
    ]  # fmt: skip
    listed = {"retarget": wishes, "order": order, "moves": moves, "staying": body["staying"]}
    return [{"list": name, **row} for name, rows in listed.items() for row in rows]


def _gain(planned: PlannedMove) -> str:
    return f"{planned.saving:.2f} of money" if planned.saving else f"{planned.gain_s:.0f} s"


def _target(planned: PlannedMove) -> str:
    return planned.target_gpus + (f" in {planned.partition}" if planned.partition else "")


def _move(planned: dict[str, Any]) -> dict[str, Any]:
    return planned | {"target": list(planned["target"])}


def lines(seen: TickResult) -> list[str]:
    """The same as text: pending jobs, running jobs, then the unchanged ones with the reason."""
    text = [_head(seen)]
    told = [wish for wish in seen.decided.wishes if wish.action not in _STAYS]
    if told:
        text += ["", *columns(("JOBID", "PENDING", "LIST", "WHY"), [_wish_row(wish) for wish in told])]
    text += _loan_text(seen.lent) + _scale_text(seen.scaled)
    text += [f"job {one.job_id} waits in its place {one.there} now: {one.why}" for one in seen.placed]
    text += [f"job {job_id} goes on after its time limit without Slurm's delay" for job_id in seen.continued]
    text += _order_text(seen.ordered)
    if seen.decided.plan and seen.decided.plan.moves:
        rows = [
            (str(m.job_id), f"{m.source} -> {_target(m)}", f"{m.before:.3f} -> {m.after:.3f}", _gain(m),
             f"{m.cost_s:.0f} s", "yes" if m.checkpoint else "no")
            for m in seen.decided.plan.moves
        ]  # fmt: skip
        text += ["", *columns(("JOBID", "MOVE", "FACTOR", "GAIN", "COST", "CHECKPOINT"), rows)]
    staying = [(one.job_id, one.why) for one in seen.decided.staying]
    staying += [(wish.job_id, wish.reason) for wish in seen.decided.wishes if wish.action in _STAYS]
    if staying:
        text += ["", *columns(("JOBID", "UNCHANGED"), [(str(job), why) for job, why in staying[:MOST_STAYING]])]
    if len(staying) > MOST_STAYING:
        text.append(f"... and {len(staying) - MOST_STAYING} more (--json has all)")
    text += [
        f"{node} GPU {index} is {f:.2f} x slower than its last measurement" for (node, index), f in seen.decided.exposed
    ]
    return text


def _loan_text(lent: Lent | None) -> list[str]:
    """Which nodes of owners are open to guests, and who leaves for that."""
    if lent is None or lent.order is None:
        return []
    order = lent.order
    needs = f"{order.used} in use, {order.waiting} waited for, {order.predicted or 0:.0f} expected"
    text = [
        "",
        f"Loans: {lent.guest} has {order.open or 'none'} of the owners' {counted(order.total, 'node')}: {needs}, "
        f"{order.allowed} may be open ({order.why})",
    ]  # fmt: skip
    rows = [
        (str(one.job.job_id), fold(list(one.job.nodes)), "yes" if one.checkpoint else "no", f"{one.lost_s:.0f} s")
        for one in lent.leavers
    ]
    rows += [(str(job.job_id), fold(list(job.nodes)), "-", "flexible worker") for job in lent.released]
    text += columns(("JOBID", "LEAVES", "CHECKPOINT", "LOSES"), rows) if rows else []
    return text + [f"job {job_id} stays on nodes that go back: {why}" for job_id, why in lent.staying]


def _scale_text(scaled: Scaled | None) -> list[str]:
    """Which elastic jobs get more or fewer workers."""
    if scaled is None or not scaled.changes:
        return []
    rows = [
        (str(one.base), str(scaled.workers.get(one.base, "-")), str(one.workers), one.why) for one in scaled.changes
    ]
    return ["", *columns(("JOBID", "WORKERS", "WILL BE", "WHY"), rows)]


def _order_text(ordered: Ordered | None) -> list[str]:
    """What the order of the queue is, and whose place changes: never in the words of what faster GPUs bring."""
    if ordered is None:
        return []
    rows = [(str(one.job_id), f"{one.lever}={one.value}", one.why) for one in ordered.changes[:MOST_PLACES]]
    head = "Slurm's own again" if ordered.order == NONE else f"{ordered.order} first"
    if ordered.order == RESPONSE_RATIO:
        head = "highest response ratio first"
    elif ordered.order == FAIR:
        head = "by what users have used lately"
    jobs = f"; {counted(ordered.queue, 'job')}, {ordered.in_front} in front after waiting" if ordered.queue else ""
    left = f"; {counted(ordered.left, 'job')} left for the next tick" if ordered.left else ""
    more = len(ordered.changes) - len(rows)
    return [
        "", f"Order of the queue: {head}{jobs}, {counted(len(ordered.changes), 'change')}{left}",
        *(columns(("JOBID", "PLACE", "WHY"), rows) if rows else []),
        *([f"... and {more} more (--json has all)"] if more > 0 else []),
    ]  # fmt: skip


def _wish_row(wish: Wish) -> tuple[str, str, str, str]:
    lists = " ".join(filter(None, wish.fields.values()))
    lists = lists or (wish.lease.ours if wish.lease is not None else "")
    return str(wish.job_id), _DOES[wish.action], lists or "-", wish.reason


def _head(seen: TickResult) -> str:
    if seen.decided.steered is None:
        return f"nothing was decided: {'; '.join(seen.trouble) or seen.paused}"
    done = "Done" if seen.acted else "Advice only (--act does it)"
    jobs = seen.decided.steered
    pending, running = counted(len(jobs.waiting), "pending job"), counted(len(jobs.running), "movable running job")
    paused = f"; nothing changed: {seen.paused}" if seen.paused else ""
    return f"{done}: {pending} and {running} examined, {counted(jobs.foreign, 'job')} not ours to steer{paused}"
