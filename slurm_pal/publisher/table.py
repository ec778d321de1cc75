# SPDX-License-Identifier: MIT
"""Standing answers as records of the filter's table (store/lua_table.py has the file)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.cluster import Counting, Node
from slurm_pal.base.config import Config
from slurm_pal.base.faults import OK
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.base.prices import Prices, Rates
from slurm_pal.decide.alternatives import TIME
from slurm_pal.decide.steering import BEATS, Market, PricedGpus
from slurm_pal.placement.faulty import FAULTY
from slurm_pal.placement.patience import WAIT_SHARE
from slurm_pal.publisher.standing import Offered, Richest, Size, Standing
from slurm_pal.sensitivity.catalogue import APPLICATIONS
from slurm_pal.slurm.parse import counting, whole
from slurm_pal.store.gpus_text import decimal
from slurm_pal.store.lua_table import NAME, name
from slurm_pal.store.snapshot import Snapshot

_SETTINGS = {
    "pass_s": ("submit", "lease_pass_s"),
    "lease_max_s": ("submit", "lease_max_s"),
    "run_share": ("submit", "expected_run_share"),
    "run_s": ("submit", "expected_run_s"),
    "barred": ("placement", "barred_slowdown"),
    "avoid": ("submit", "avoid_slow"),
    "locality": ("placement", "locality_penalty"),
}
"""The filter's word for a setting of pal.toml."""
_MEMORY = {"mem_node": "DefMemPerNode", "mem_cpu": "DefMemPerCPU", "most_mem_cpu": "MaxMemPerCPU"}
"""The filter's word for what slurm.conf says of memory, MiB."""
_TRES = re.compile(r"[a-z0-9_.:-]+")
MOST_AVOIDED = 256
"""Nodes with slow GPUs that the table names for each class, the slowest ones."""
ENTRY = 64  # an entry of a list is node x ENTRY + GPUs gone


def records(
    answers: Standing, config: Config, scores_epoch: int, slurm: Mapping[str, str] | None = None,
    market: Market | None = None, prices: Prices | None = None,
) -> dict[str, str]:  # fmt: skip
    """All records of the table, in the order in which they stand there. `slurm` is Slurm's configuration, `market`
    what the tick has published of partitions, `prices` what hours cost there.

    Raises DataError for a name that the filter could not read.
    """
    found = {"scores_epoch": str(scores_epoch), "settings": _settings(config, slurm or {})}
    guest, waits = config.text("loan", "guest"), config.text("loan", "waits")
    if guest and waits:
        found[f"waits.{name(guest, 'partition')}"] = name(waits, "partition")
    if answers.network:
        found["network"] = "1"
    if answers.default:
        found["default"] = name(answers.default, "partition")
    found |= {f"app.{name(app, 'application')}": c for app, c in applications(config)[0].items()}
    for c, features in answers.prefer.items():
        found[f"prefer.{c}"] = "|".join(name(feature, "feature") for feature in features)
    for (partition, gpu_type), pool in answers.pools.items():
        kind = name(gpu_type, "GPU type") if gpu_type else "-"
        found[f"pool.{name(partition, 'partition')}.{kind}"] = str(pool)
    found |= {f"node.{number}": _node(node) for number, node in enumerate(answers.nodes, 1)}
    for (pool, c, preference, count), entries in answers.lists.items():
        text = " ".join([str((place + 1) * ENTRY + gone) for place, gone in entries])
        found[f"list.{pool}.{c}.{preference}.{count}"] = text
    found |= {f"alike.{pool}.{c}": "1" for pool, c in answers.alike}
    for (pool, c, count), plain in answers.plain.items():
        there = decimal(plain.slowdown), name(plain.node, "node"), decimal(plain.otherwise)
        found[f"plain.{pool}.{c}.{count}"] = ":".join(there)
    for (pool, c, count), names in answers.slow.items():
        found[f"slow.{pool}.{c}.{count}"] = ",".join(names)
    site = counting(dict(slurm or {}))
    for partition, own in answers.counting.items():
        found[f"counts.{name(partition, 'partition')}"] = _counts(own.over(site))
    for partition, nodes in answers.left.items():
        left = (f"{name(node, 'node')}={cpus}" for node, cpus in nodes.items())
        found[f"left.{name(partition, 'partition')}"] = " ".join(left)
    found |= {f"most.{pool}": _richest(richest) for pool, richest in answers.richest.items()}
    found |= {f"size.{number}": _size(size) for number, size in enumerate(answers.sizes)}
    for (pool, c), spares in answers.spares.items():
        words = (f"{spare.size}:{name(spare.name, 'node')}={spare.fast}" for spare in spares)
        found[f"spare.{pool}.{c}"] = " ".join(words)
    found |= {f"ends.{pool}.{c}": f"{3600 * rate:.4g}" for (pool, c), rate in answers.ends_per_s.items()}
    if (goal := config.text("submit", "goal")) != TIME:
        found["goal"] = goal
    found |= _market(market) if market is not None else {}
    return found | (_prices(prices) if prices is not None else {})


def avoided(nodes: Iterable[Node], scores: Snapshot, least: float) -> dict[str, str]:
    """For jobs whose users avoid slow GPUs: nodes with a GPU slower than `least` or faulty, and its slowdown."""
    found: dict[str, list[tuple[float, str]]] = {c: [] for c in SENSITIVITY_CLASSES}
    for node in nodes:
        gpus = [scores.gpu(row) for row in scores.rows.get(node.name, range(0))]
        if not gpus or not NAME.fullmatch(node.name):
            continue
        fails = any(gpu.state != OK for gpu in gpus)
        for c, slow in found.items():
            worst = FAULTY if fails else max(gpu.slowdown.get(c, 1.0) for gpu in gpus)
            if worst > least:
                slow.append((worst, node.name))
    return {
        f"avoid.{c}": " ".join(f"{name}={decimal(worst)}" for worst, name in sorted(slow, reverse=True)[:MOST_AVOIDED])
        for c, slow in found.items() if slow
    }  # fmt: skip


def _prices(prices: Prices) -> dict[str, str]:
    """By which a goal chooses; what the filter could not read is left out: a partition without a price."""
    return {f"price.{name}": _rates(rates) for name, rates in prices.rates.items() if NAME.fullmatch(name)}


def _rates(rates: Rates) -> str:
    words = {tres.removeprefix("gres/"): amount for tres, amount in rates.items()}
    return " ".join(f"{tres}={amount:.9g}" for tres, amount in words.items() if _TRES.fullmatch(tres))


def _market(market: Market) -> dict[str, str]:
    """What steers new jobs of several partitions; what the filter could not read is left out."""
    from_s, till_s = market.at_s - CLOCK_SKEW_S, market.at_s + BEATS * market.every_s
    words = f"from={from_s:.0f} till={math.ceil(till_s)} every={market.every_s:g} room={market.room:g}"
    found = {"market": words}
    for partition, some in market.gpus.items():
        if NAME.fullmatch(partition):
            found[f"priced.{partition}"] = "|".join(_priced(one) for one in some)
    for app, sizes in market.speeds.items():
        if NAME.fullmatch(app):
            found[f"speed.{app}"] = " ".join(f"{gpus}:{_speeds(at)}" for gpus, at in sizes.items())
    return found


def _priced(one: PricedGpus) -> str:
    slow = " ".join(f"{c}={decimal(value)}" for c, value in one.slowdown.items())
    return f"{slow} price={one.price:.6g} load={one.load_s:.6g}"


def _speeds(at: Mapping[str, tuple[float, float]]) -> str:
    return ",".join(f"{name}={speed:.6g}@{error:.3g}" for name, (speed, error) in at.items() if NAME.fullmatch(name))


def applications(config: Config) -> tuple[dict[str, str], tuple[str, ...]]:
    """Application -> class, the site's own first, and the names that the filter cannot read."""
    every = {app: known.sensitivity for app, known in APPLICATIONS.items()}
    every |= {app.lower(): c for app, c in config.apps.items()}
    strange = tuple(app for app in every if not NAME.fullmatch(app))
    return {app: c for app, c in every.items() if app not in strange}, strange


def _settings(config: Config, slurm: Mapping[str, str]) -> str:
    words = [f"{word}={config.number(*key):g}" for word, key in _SETTINGS.items()]
    words += [f"{word}={mib}" for word, key in _MEMORY.items() if (mib := whole(slurm.get(key, ""))) > 0]
    return " ".join([*words, f"wait_share={WAIT_SHARE:g}", f"faulty={FAULTY:g}"])


def _counts(counts: Counting) -> str:
    """What the filter cannot read of a partition in slurmctld."""
    words = {
        "gpumem": counts.mem_gpu_mib, "gpucpus": counts.cpus_gpu, "memory": int(counts.memory),
        "onetask": int(counts.one_task_per_core),
    }  # fmt: skip
    return " ".join(f"{word}={number}" for word, number in words.items() if number)


def _node(node: Offered) -> str:
    free = len(node.slowdown["A"])
    head = f"{name(node.name, 'node')} cpus={node.cpus} mem={node.memory_mib} gpus={node.gpus} free={free}"
    head += f" allcpus={node.all_cpus} allmem={node.all_memory_mib}" + _threads(node.threads)
    scores = " ".join(f"{c}={','.join(map(decimal, row))}" for c, row in node.slowdown.items())
    return f"{head} feat={','.join(node.features)} {scores}"


def _size(size: Size) -> str:
    head = f"allcpus={size.cpus} allmem={size.memory_mib} gpus={size.gpus}" + _threads(size.threads)
    return f"{head} feat={','.join(size.features)}"


def _threads(threads: int) -> str:
    return f" threads={threads}" if threads > 1 else ""


def _richest(most: Richest) -> str:
    rates = f"cpusgpu={most.cpus_per_gpu} memgpu={most.memory_mib_per_gpu}"
    return f"allcpus={most.cpus} allmem={most.memory_mib} {rates}"
