# SPDX-License-Identifier: MIT
"""Records of collectives as the inspector plug-ins of NCCL and RCCL write them, of a job that never ran.

Each rank computes, arrives, and waits for the last one; the transfer takes equally long for all. Ranks have noise of
their own, now and then one stalls, the network is noisy for all of them at once and has bursts. Standard library only.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

GIGA = 1e9
INTERVAL_STEPS = 5
"""The plug-in writes what has gathered every so many steps."""


class Behaving(NamedTuple):
    """How a job's steps go; times in s."""

    steps: int = 120
    compute_s: float = 0.2  # of a step on a median GPU
    buckets: int = 4  # collectives of a step over all ranks
    transfer_s: float = 0.01  # each
    noise: float = 0.01  # of each rank's computation, relative
    stall_rate: float = 0.003  # per rank and step
    stall_s: float = 0.2  # mean
    network_noise: float = 0.2  # of a transfer, in logarithms, the same for all ranks
    burst_rate: float = 0.02  # transfers that take ten times as long
    layers: int = 0  # collectives of a step among the ranks of each node (tensor parallel); then buckets are across


class Rank(NamedTuple):
    """One rank: where it is and how slow its GPU is."""

    host: str
    place: int
    slowdown: float = 1.0


def files(
    ranks: Sequence[Rank], behaving: Behaving, draws: random.Random, version: str = "v4.0", start_s: float = 1.7e9
) -> dict[str, str]:
    """File name -> its lines."""
    written: dict[str, list[str]] = {}
    waiting: dict[tuple[int, str], list[dict[str, object]]] = {}
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    pids = {k: 1000 + 7 * rank.place for k, rank in enumerate(ranks)}
    comms = _comms(ranks, behaving, hosts)
    for now_s, comm, number, size, times in _played(ranks, behaving, draws, start_s):
        if not times:  # a dump
            for (k, name), rows in waiting.items():
                rank, header = ranks[k], {"id": name, **_header(k, comms[name], ranks), "comm_name": "unknown"}
                about = {"inspector_output_format_version": version, "git_rev": "", "rec_mechanism": "profiler_plugin",
                         "dump_timestamp_us": int(now_s * 1e6), "hostname": rank.host, "pid": pids[k]}  # fmt: skip
                lines = written.setdefault(f"{rank.host}-pid{pids[k]}.log", [])
                context = {"header": header, "metadata": about}
                if version >= "v4.3":
                    lines.append(json.dumps(context | {"dump_stats": {"coll_records": len(rows), "p2p_records": 0}}))
                    lines += [json.dumps({"coll_perf": row}) for row in rows]
                else:
                    lines += [json.dumps(context | {"coll_perf": row}) for row in rows]
            waiting.clear()
            continue
        for k, took_s in times.items():
            waiting.setdefault((k, comm), []).append(_row(number, size, took_s))
    return {name: "\n".join(lines) + "\n" for name, lines in written.items()}


def _row(number: int, size: int, took_s: float) -> dict[str, object]:
    return {
        "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size,
        "coll_exec_time_us": max(1, round(took_s * 1e6)), "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(size / max(took_s, 1e-6) / GIGA, 6), "coll_busbw_gbs": 0.0,
    }  # fmt: skip


def _header(k: int, members: Sequence[int], ranks: Sequence[Rank]) -> dict[str, int]:
    return {"rank": members.index(k), "n_ranks": len(members), "nnodes": len({ranks[m].host for m in members})}


def _comms(ranks: Sequence[Rank], behaving: Behaving, hosts: Sequence[str]) -> Mapping[str, list[int]]:
    """Communicator -> its ranks: one of all, or one of each node and one across the nodes for each place."""
    if not behaving.layers:
        return {"0x1": list(range(len(ranks)))}
    found = {f"0xa{hosts.index(host)}": [k for k, rank in enumerate(ranks) if rank.host == host] for host in hosts}
    for place in sorted({rank.place for rank in ranks}):
        found[f"0xb{place}"] = [k for k, rank in enumerate(ranks) if rank.place == place]
    return found


def _played(
    ranks: Sequence[Rank], behaving: Behaving, draws: random.Random, start_s: float
) -> Iterator[tuple[float, str, int, int, dict[int, float]]]:
    """(end, communicator, number, bytes, rank -> time in it) of each collective; without ranks it is time to write."""
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    comms = _comms(ranks, behaving, hosts)
    inner = [name for name in comms if name.startswith("0xa")]
    outer = [name for name in comms if not name.startswith("0xa")]
    free_s = [start_s] * len(ranks)
    numbers = dict.fromkeys(comms, 0)
    parts = [(inner, behaving.layers), (outer, behaving.buckets)]
    pieces = behaving.layers + behaving.buckets
    for step in range(behaving.steps):
        for names, times in parts:
            for k in range(times):
                for place, rank in enumerate(ranks):
                    free_s[place] += _computed(rank, behaving, draws) / pieces
                    if k == 0 and draws.random() < behaving.stall_rate:
                        free_s[place] += draws.expovariate(1.0 / behaving.stall_s)
                for name in names:
                    members = comms[name]
                    arrived = {m: free_s[m] for m in members}
                    ended_s = max(arrived.values()) + _transfer(behaving, draws)
                    for m in members:
                        free_s[m] = ended_s
                    numbers[name] += 1
                    size = 25_000_000 - 1_000_000 * (k % 7)
                    yield ended_s, name, numbers[name], size, {m: ended_s - at_s for m, at_s in arrived.items()}
        if step % INTERVAL_STEPS == INTERVAL_STEPS - 1 or step == behaving.steps - 1:
            yield max(free_s), "", 0, 0, {}


def _computed(rank: Rank, behaving: Behaving, draws: random.Random) -> float:
    return behaving.compute_s * rank.slowdown * max(0.1, 1.0 + draws.gauss(0.0, behaving.noise))


def _transfer(behaving: Behaving, draws: random.Random) -> float:
    took_s = behaving.transfer_s * math.exp(draws.gauss(0.0, behaving.network_noise))
    return took_s * (10.0 if draws.random() < behaving.burst_rate else 1.0)
