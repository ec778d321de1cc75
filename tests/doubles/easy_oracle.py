# SPDX-License-Identifier: MIT
"""A second simulator, slow and simple: first come, first served with EASY backfill, packed placement, no moves.

Written from the description alone, to be compared with the engine finish by finish:
* at each moment jobs end, then jobs arrive, then jobs start;
* jobs start in the order of submission until one does not fit;
* that one has a reservation: the first moment at which enough GPUs are free if every
  running job uses its whole time limit. GPUs free then beyond its need are spare;
* a later job may start if it fits now and either ends by then at the latest, or takes no
  more than the spare GPUs, which it then uses up;
* a job goes to the node on which fewest GPUs stay free; if no node holds it, it takes the
  fullest nodes whole and the rest as before; lowest node and GPU numbers first;
* it runs ideal time x slowest GPU x (penalty when on several nodes), at most its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Wish(NamedTuple):
    name: str
    submit_s: float
    gpus: int
    ideal_s: float
    limit_s: float
    penalty: float


class End(NamedTuple):
    start_s: float
    finish_s: float
    timeout: bool
    gpus: tuple[tuple[int, int], ...]  # (node, index)


class Running(NamedTuple):
    wish: Wish
    end: End


def simulate(slowdown: Sequence[Sequence[float]], wishes: Sequence[Wish]) -> dict[str, End]:
    """What becomes of each job; `slowdown[node][index]` is alike for all. Wishes are in order of submission."""
    free = {(node, k) for node, row in enumerate(slowdown) for k in range(len(row))}
    running: list[Running] = []
    waiting: list[Wish] = []
    coming = list(wishes)
    ends: dict[str, End] = {}
    while coming or waiting or running:
        now_s = min([wish.submit_s for wish in coming[:1]] + [job.end.finish_s for job in running])
        for job in [job for job in running if job.end.finish_s == now_s]:
            running.remove(job)
            free |= set(job.end.gpus)
        while coming and coming[0].submit_s == now_s:
            waiting.append(coming.pop(0))
        for wish in to_start(waiting, running, len(free), now_s):
            gpus = packed(free, wish.gpus)
            nodes = {node for node, _ in gpus}
            factor = max(slowdown[node][k] for node, k in gpus) * (wish.penalty if len(nodes) > 1 else 1.0)
            run_s = wish.ideal_s * factor
            end = End(now_s, now_s + min(run_s, wish.limit_s), run_s > wish.limit_s, gpus)
            ends[wish.name] = end
            waiting.remove(wish)
            running.append(Running(wish, end))
            free -= set(gpus)
    return ends


def to_start(waiting: Sequence[Wish], running: Sequence[Running], free: int, now_s: float) -> list[Wish]:
    """Who starts now, in this order. Numbers of GPUs suffice, since any free GPUs will do."""
    started: list[Wish] = []
    queue = list(waiting)
    while queue and queue[0].gpus <= free:
        free -= queue[0].gpus
        started.append(queue.pop(0))
    if not queue:
        return started
    limits = [(job.end.start_s + job.wish.limit_s, job.wish.gpus) for job in running]
    limits += [(now_s + wish.limit_s, wish.gpus) for wish in started]
    will_be_free, shadow_s = free, now_s
    for limit_s in sorted({at_s for at_s, _ in limits}):
        will_be_free += sum(gpus for at_s, gpus in limits if at_s == limit_s)
        shadow_s = limit_s
        if will_be_free >= queue[0].gpus:
            break
    spare = will_be_free - queue[0].gpus
    for wish in queue[1:]:
        if wish.gpus > free:
            continue
        if now_s + wish.limit_s > shadow_s:
            if wish.gpus > spare:
                continue
            spare -= wish.gpus
        free -= wish.gpus
        started.append(wish)
    return started


def packed(free: set[tuple[int, int]], gpus: int) -> tuple[tuple[int, int], ...]:
    """The GPUs of a job that fits."""
    left = set(free)
    chosen: list[tuple[int, int]] = []
    while gpus:
        rows = {node: sorted(k for at, k in left if at == node) for node, _ in left}
        holding = [node for node in sorted(rows) if len(rows[node]) >= gpus]
        if holding:
            node = min(holding, key=lambda node: len(rows[node]) - gpus)
        else:
            node = max(sorted(rows), key=lambda node: len(rows[node]))
        mine = [(node, k) for k in rows[node][:gpus]]
        chosen += mine
        left = {gpu for gpu in left if gpu[0] != node}
        gpus -= len(mine)
    return tuple(sorted(chosen))
