# SPDX-License-Identifier: MIT
"""What jobs have cost, by account and partition: sacct's hours at today's prices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from slurm_pal.base import prices
from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, one_line
from slurm_pal.base.numbers import digits
from slurm_pal.base.prices import CPU, GIB, GPU, Prices, Usage
from slurm_pal.slurm import accounting

COLUMNS = ("Account", "Partition", "ElapsedRaw", "AllocTRES")
HEADER = ("ACCOUNT", "PARTITION", "JOBS", "GPU_H", "COST")
CSV_COLUMNS = ("account", "partition", "jobs", "gpu_h", "cost")
DAYS = 30
"""How far back the site's report goes."""
REPORT_S = 60.0
"""The site's report waits no longer for sacct."""
NO_PRICE = "no price is known: state [prices] in pal.toml, or TRESBillingWeights in slurm.conf"


class CostRow(NamedTuple):
    """One account in one partition."""

    account: str
    partition: str
    jobs: int
    gpu_h: float
    cost: float | None  # None: no price is known there


class AccountCost(NamedTuple):
    """One account in all partitions."""

    account: str
    jobs: int
    gpu_h: float
    cost: float | None  # of what is priced; None: nothing is
    partitions: tuple[CostRow, ...]  # the dearest first


class Money(NamedTuple):
    """What the jobs of the last DAYS have cost, or why that is not known."""

    accounts: tuple[AccountCost, ...] = ()  # the dearest first
    complaints: tuple[str, ...] = ()  # about the prices
    missing: str = ""


def usage_of(text: str) -> Usage:
    """What a job held, by AllocTRES (sacct(1)), like `billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=2000M,node=1`."""
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    kind = next((name.removeprefix(f"{GPU}:") for name in pairs if name.startswith(f"{GPU}:")), "")
    gpus = digits(pairs.get(GPU) or pairs.get(f"{GPU}:{kind}", "")) or 0
    return Usage(
        gpus, digits(pairs.get(CPU, "")) or 0, _gib(pairs.get("mem", "")), digits(pairs.get("node", "")) or 1, kind
    )


def _gib(text: str) -> float:
    unit = GIB.get(text[-1:].lower(), 0.0)
    try:
        return float(text[:-1]) * unit
    except ValueError:
        return 0.0


def rows(lines: Iterable[str], known: Prices) -> list[CostRow]:
    """Lines of sacct with COLUMNS, summed up; the dearest first."""
    found: dict[tuple[str, str], CostRow] = {}
    for line in lines:
        words = line.rstrip("\n").split("|")
        seconds = digits(words[2]) if len(words) == len(COLUMNS) else None
        if not seconds or not words[3]:
            continue
        used, hours = usage_of(words[3]), seconds / 3600.0
        price = known.per_hour(words[1], used)
        old = found.get((words[0], words[1]), CostRow(words[0], words[1], 0, 0.0, None if price is None else 0.0))
        cost = None if price is None or old.cost is None else old.cost + price * hours
        found[words[0], words[1]] = CostRow(words[0], words[1], old.jobs + 1, old.gpu_h + used.gpus * hours, cost)
    return sorted(found.values(), key=lambda row: (-(row.cost or 0.0), -row.gpu_h, row.account, row.partition))


def by_account(found: Iterable[CostRow]) -> tuple[AccountCost, ...]:
    """Rows of accounts and partitions, summed up by account; the dearest first."""
    sums = []
    for name, own in groupby(sorted(found, key=lambda row: row.account), key=lambda row: row.account):
        parts = tuple(own)  # sorting is stable: still the dearest first
        priced = [row.cost for row in parts if row.cost is not None]
        jobs, gpu_h = sum(row.jobs for row in parts), sum(row.gpu_h for row in parts)
        sums.append(AccountCost(name, jobs, gpu_h, sum(priced) if priced else None, parts))
    return tuple(sorted(sums, key=lambda one: (-(one.cost or 0.0), -one.gpu_h, one.account)))


def money(config: Config, partitions: Iterable[Partition] | None, now_s: float) -> Money:
    """For the site's report, by account; without it why. `partitions`: None where Slurm does not answer."""
    if partitions is None:
        return Money(missing="Slurm does not answer")
    known = prices.current(config, partitions, now_s)
    if not known.rates:
        return Money((), tuple(known.complaints), NO_PRICE)  # sacct is not asked
    try:
        found = by_account(read(known, now_s - DAYS * 86400.0, REPORT_S))
    except SlurmError as error:
        return Money((), tuple(known.complaints), one_line(error))
    return Money(found, tuple(known.complaints), "" if found else f"accounting knows no job of the last {DAYS} days")


def read(known: Prices, since_s: float, timeout_s: float = 600.0) -> list[CostRow]:
    """From the accounting database. Raises SlurmError."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_s))
    command = ["sacct", "-a", "-X", "-n", "-P", "-S", since, "-E", "now", "-o", ",".join(COLUMNS)]
    with accounting.history(command, timeout_s) as stream:
        return rows((line.decode(errors="replace") for line in stream), known)
