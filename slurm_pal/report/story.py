# SPDX-License-Identifier: MIT
"""The story of one job: what was decided when it was submitted, and each lease and move since."""

from __future__ import annotations

from typing import Any

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.place import CHANGED, GivenPlace
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal import story
from slurm_pal.journal.journal import Journal, Move
from slurm_pal.journal.move_states import CARRIED_OUT, MoveOutcome
from slurm_pal.moves import learning, reclaimed
from slurm_pal.report import filter_mark
from slurm_pal.report.move_rows import stamp
from slurm_pal.report.table import lasting

Event = dict[str, Any]
"""`at_s` (Unix s), `what`, `text` for people, and other details."""

SUBMITTED = "submitted"
_SET = {
    "nodelist": "named {set}, whose GPUs were free",
    "exclude": "kept it off {set}",
    "clear": "took its node list back",
    "partition": "chose {set} of its partitions",
    "partition-clear": "gave it all its partitions back",
    "fence": "reserved {set} from the end of its patience on",
    "fence-clear": "ended its wait behind the reservation",
}
"""What was done with a list of nodes or partitions; `{set}` is our list."""
_LEFT = "left {set} as its node list after a move"
_MOVED = {
    "": "is moving it from {from} to {to}",
    "move": "began to move it from {from} to {to}",
    "moved": "moved it from {from} to {to}",
    "elsewhere": "took it off {from} for {to}, but it started elsewhere",
    "abandoned": "gave up moving it from {from} to {to}",
    "ended": "was moving it from {from} to {to} when it ended",
    "waiting": "took it off {from} for {to}, and it waits in the queue",
    "unknown": "moved it from {from} to {to} and reported the end in a word of a later release",
}
_RECLAIMED = {
    reclaimed.BEGUN: "began to take it off {from} for partition {to}",
    "reclaimed": "took it off {from} for partition {to}",
    reclaimed.STAYED: "was to take it off {from} for partition {to}, and left it there",
    reclaimed.ENDED: "was taking it off {from} for partition {to} when it ended",
}
"""A job that left, or was to leave, nodes whose owners wanted them back."""
_BLANKS = {"set": "some nodes", "from": "its GPUs", "to": "others"}


def of_submission(decision: dict[str, Any] | None, mark: dict[str, Any] | None, submit_s: float) -> list[Event]:
    """What palsub (`decision`) and the submit filter (`mark`) decided."""
    found: list[Event] = []
    if decision is not None:
        text = f"palsub decided: {decision['reason']}"
        found.append({"at_s": float(decision["made_s"]), "what": SUBMITTED, "by": "palsub", "text": text})
    if mark is not None and filter_mark.left_to_palsub(mark, decision):
        text = "the submit filter left it to palsub"
        found.append({"at_s": submit_s, "what": SUBMITTED, "by": mark["by"], "text": text})
    elif mark is not None:
        text = f"the submit filter decided: {filter_mark.verdict(mark)}: {mark['reason']}"
        found.append({"at_s": submit_s, "what": SUBMITTED, "by": mark["by"], "text": text})
    return found


def of_journal(journal: Journal, job_id: int) -> list[Event]:
    """Each lease and move of a job in a journal. Raises DataError when it cannot be read."""
    present = [journal.lease_of(job_id, sort) for sort in Sort]
    found = [_set(lease) for lease in present if lease is not None]
    for lease, why, ended_s in journal.ended_leases(job_id):
        found += [_set(lease), _cleared(lease, why, ended_s)]
    found += [event for place in journal.given_places(job_id).values() for event in _placed(place)]
    found += [_reclaim(move, journal.steps_of(move.move_id)) for move in journal.reclaims(job_id=job_id)]
    return found + [_move(move, journal.steps_of(move.move_id)) for move in journal.moves(job_id=job_id)]


def of_words(job: SlurmJob) -> list[Event]:
    """What the admin comment of a job says."""
    return [_written(event) for event in story.events(job.admin_comment)]


def in_order(events: list[Event]) -> list[Event]:
    """By time; events of one moment keep their order."""
    return sorted(events, key=lambda event: float(event["at_s"]))


def lines(events: list[Event]) -> list[str]:
    """A line for each event; the steps of a move follow in one more line."""
    text: list[str] = []
    for event in events:
        text.append(f"{stamp(event['at_s'])}  {event['text']}")
        if event.get("steps"):
            steps = ", ".join(f"{step['step']} +{step['at_s'] - event['at_s']:.1f} s" for step in event["steps"])
            text.append(f"{'':21}steps: {steps}")
    return text


def _set(lease: TickLease) -> Event:
    what, text = ("nodelist", _LEFT) if lease.kind is LeaseKind.MOVE else (lease.kind, _SET.get(lease.kind, lease.kind))
    return {
        "at_s": lease.made_s, "what": what, "set": lease.ours, "until_s": lease.until_s, "reason": lease.reason,
        "text": f"{text.format(set=lease.ours)}: {lease.reason}",
    }  # fmt: skip


def _placed(place: GivenPlace) -> list[Event]:
    text = "left its place in the queue alone" if place.why == CHANGED else "gave it a place in the order of the queue"
    value = f"{place.lever}={place.ours}"
    given = {
        "at_s": place.made_s, "what": "order", "set": value, "own": place.own, "reason": place.why,
        "text": f"{text} ({value}, its own is {place.own}): {place.why}",
    }  # fmt: skip
    own = f"{place.lever}={place.own}"
    back = {"at_s": place.ended_s, "what": "order-back", "set": own, "text": f"gave it its own place back ({own})"}
    return [given, back] if place.ended_s else [given]


def _cleared(lease: TickLease, why: str, ended_s: float) -> Event:
    what = {LeaseKind.PARTITION: "partition-clear", LeaseKind.FENCE: "fence-clear"}.get(lease.kind, "clear")
    return {
        "at_s": ended_s, "what": what, "set": lease.ours, "own": lease.own, "reason": why,
        "text": f"{_SET[what]} ({lease.ours}): {why}",
    }  # fmt: skip


def _move(move: Move, steps: list[tuple[str, float]]) -> Event:
    target = move.target_gpus or ",".join(move.target)
    place = f"{target} in {move.partition}" if move.partition else target
    observed_s = learning.observed_gain_s(move)
    text = f"{_moved_text(move.outcome, move.source, place)}: time factor {move.before:.3f} -> {move.after:.3f}"
    gain = f"{move.saving:.2f} of money" if move.saving else f"{move.gain_s:.0f} s"
    text += f", gain predicted {gain} at a cost of {move.cost_s:.0f} s"
    if move.outcome in CARRIED_OUT:
        text += ", observed " + (
            "unknown (the job must call pal progress)" if observed_s is None else f"{observed_s:.0f} s"
        )
    return {
        "at_s": move.made_s, "what": "move", "from": move.source, "to": target, "partition": move.partition,
        "before": move.before, "after": move.after, "gain_s": move.gain_s, "observed_gain_s": observed_s,
        "saving": move.saving,
        "cost_s": move.cost_s, "checkpoint": move.checkpoint,
        "steps": [{"step": step, "at_s": at_s} for step, at_s in steps],
        "outcome": move.outcome, "detail": move.detail, "ended_s": move.ended_s if move.outcome else None,
        "text": text + (f"; {move.detail}" if move.detail else ""),
    }  # fmt: skip


def _reclaim(move: Move, steps: list[tuple[str, float]]) -> Event:
    lost_s, saved = reclaimed.lost_s(move), reclaimed.saved(move)
    text = _reclaimed_text(reclaimed.WORDS[move.outcome], move.source, move.owners)
    if move.outcome in (MoveOutcome.OPEN, MoveOutcome.RECLAIMED):
        text += _lost_text(lost_s, saved)
    return {
        "at_s": move.made_s, "what": reclaimed.BEGUN, "from": move.source, "to": move.owners, "ran_s": move.ran_s,
        "lost_s": lost_s, "checkpoint": saved, "steps": [{"step": step, "at_s": at_s} for step, at_s in steps],
        "outcome": move.outcome, "detail": move.detail, "ended_s": move.ended_s if move.outcome else None,
        "text": text + (f"; {move.detail}" if move.detail else ""),
    }  # fmt: skip


def _reclaimed_text(what: str, source: str, owners: str) -> str:
    places = {"from": source or _BLANKS["from"], "to": owners or "of its owners"}
    return _RECLAIMED.get(what, _RECLAIMED[reclaimed.BEGUN]).format(**places)


def _lost_text(lost_s: float, saved: bool) -> str:
    return f": {lasting(lost_s)} of work lost, {'with' if saved else 'no'} checkpoint"


def _moved_text(outcome: str, source: str, target: str) -> str:
    places = {"from": source or _BLANKS["from"], "to": target or _BLANKS["to"]}
    return _MOVED.get(outcome, f"{outcome}: from {{from}} to {{to}}").format(**places)


def _written(event: dict[str, Any]) -> Event:
    what = event["what"]
    if what in _RECLAIMED:
        text = _reclaimed_text(what, event.get("from", ""), event.get("to", ""))
        lost_s = event.get("lost_s") if what == "reclaimed" else None
        return {
            **event,
            "text": text + (_lost_text(lost_s, bool(event.get("checkpoint"))) if lost_s is not None else ""),
        }
    if what in _SET:
        text = _SET[what].format(set=event.get("set") or ("some" if what == LeaseKind.PARTITION else _BLANKS["set"]))
    else:
        text = _moved_text(what, event.get("from", ""), event.get("to", ""))
    return {**event, "text": text + (f", gain predicted {event['gain_s']:.0f} s" if "gain_s" in event else "")}
