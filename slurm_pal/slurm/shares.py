# SPDX-License-Identifier: MIT
"""What decides priorities beside the queue: shares of accounts and users, priorities of QOS, prices of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.parse import value
from slurm_pal.slurm.question import Runner

ROOT = "root"
_ASSOCIATIONS = ("sacctmgr", "-n", "-P", "show", "associations", "format=Account,ParentName,User,Fairshare")
_QOS = ("sacctmgr", "-n", "-P", "show", "qos", "format=Name,Priority")
_PARTITIONS = ("scontrol", "-o", "show", "partition")


class Association(NamedTuple):
    """One account, or with a user this user's part of it."""

    account: str
    user: str = ""
    parent: str = ROOT  # of an account
    shares: int = 1


class Shares(NamedTuple):
    """As accounting and slurm.conf say; empty where they do not."""

    associations: tuple[Association, ...] = ()
    qos: Mapping[str, int] = {}  # name -> Priority
    billing: Mapping[str, str] = {}  # partition -> TRESBillingWeights


def shares(run: Runner) -> Shares:
    """Three short questions. Raises SlurmError where slurmdbd or slurmctld does not answer."""
    return Shares(
        tuple(filter(None, map(_association, _lines(run, *_ASSOCIATIONS)))),
        {name: digits(text) or 0 for name, _, text in (line.partition("|") for line in _lines(run, *_QOS)) if name},
        dict(filter(None, map(_billing, _lines(run, *_PARTITIONS)))),
    )


def _lines(run: Runner, *argv: str) -> list[str]:
    done = run(argv, "")
    if done.returncode:
        raise SlurmError(f"{argv[0]} failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return [line for line in done.stdout.splitlines() if line.strip()]


def _association(line: str) -> Association | None:
    """Words of administrators; a share of "parent" counts as one."""
    words = line.split("|")
    if len(words) != 4 or not words[0] or (words[0] == ROOT and not words[2]):
        return None
    account, parent, user, text = words
    number = digits(text)
    return Association(account, user, parent or ROOT, 1 if number is None else number)


def _billing(line: str) -> tuple[str, str] | None:
    pairs = dict(word.partition("=")[::2] for word in line.split())
    text = value(pairs, "TRESBillingWeights")
    return (pairs["PartitionName"], text) if text and "PartitionName" in pairs else None
