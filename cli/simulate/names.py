# SPDX-License-Identifier: MIT
"""pal simulate --list: the tables of names that its options take."""

from __future__ import annotations

from typing import Any

from slurm_pal.cli import tables
from slurm_pal.cli.simulate.trace_inputs import KEYS
from slurm_pal.report.listing import Listing
from slurm_pal.research import allocation_policies
from slurm_pal.research.loans_comparison import KEYS as LOAN_KEYS
from slurm_pal.research.loans_comparison import POLICIES as LOANS
from slurm_pal.research.loans_comparison import LoanSettings
from slurm_pal.research.price_replay import MIN_COST, STRATEGIES
from slurm_pal.research.replica.published_policies import summaries as replica_policies
from slurm_pal.research.unequal_policies import POLICIES as UNEQUAL
from slurm_pal.simulate import levers
from slurm_pal.simulate.aliases import POLICY_ALIASES, QUEUE_ALIASES, REPLICA_ALIASES
from slurm_pal.simulate.inputs import FORMATS
from slurm_pal.simulate.policies import POLICIES, STUDIES, STUDY, TICK
from slurm_pal.simulate.profiles import KINDS
from slurm_pal.simulate.queues import QUEUES
from slurm_pal.simulate.scores import EXACT, PARTS

REPLICAS = {
    "blox-pal": "the simulator published with PAL; its policies are those below",
    "gavel": "the simulator published with Gavel; its policies are those with gavel:",
}
HEADER = ("OPTION", "NAME", "SUMMARY")


def rows() -> list[tuple[str, str, str]]:
    published = replica_policies()
    found = [
        ("--policy", name, row.shown) for name, row in sorted(POLICIES.items(), key=lambda pair: pair[1].runs == STUDY)
    ]
    found[len(POLICIES) - len(STUDIES) : 0] = [("--policy", name, summary) for name, summary in levers.names().items()]
    found += [
        ("--policy", alias, f"the same as {name}") for alias, name in POLICY_ALIASES.items() if alias not in POLICIES
    ]
    found += _allocation()
    found += [("--replica", name, summary) for name, summary in REPLICAS.items()]
    found += [("--replica", name, f"blox-pal: {summary}") for name, summary in published.items()]
    found += [
        ("--replica", alias, f"the same as {name}") for alias, name in REPLICA_ALIASES.items() if name in published
    ]
    found += [("--policy", name, f"study: owners and guests: {row.summary}") for name, row in LOANS.items()]
    found.append(("--policy", MIN_COST, f"study: prices that move: {STRATEGIES[MIN_COST]}"))
    found += [("--queue", name, row.summary) for name, row in QUEUES.items()]
    found += [("--queue", alias, f"the same as {name}") for alias, name in QUEUE_ALIASES.items() if alias not in QUEUES]
    found += [("--format", name, row.summary) for name, row in FORMATS.items()]
    found += [("--profile", name, row.summary) for name, row in KINDS.items()]
    found += [
        ("--profile", "DIR", "as medians:DIR; with --replica as runs:DIR"),
        ("--profile", "FILE.csv", "a row per GPU, columns PerfVar_classA, B, C and where known D"),
        ("--scores", EXACT, "belief is the truth"),
    ]
    found += [("--scores", name, part.summary) for name, part in PARTS.items()]
    keys = {name: [key.summary] for name, key in KEYS.items()}
    usual = LoanSettings()._asdict()
    for name, summary in LOAN_KEYS.items():
        keys.setdefault(name, []).append(f"study: owners and guests: {summary}; default: {usual[name]:g}")
    return found + [("--generate", f"{name}=", "; ".join(summaries)) for name, summaries in keys.items()]


def _allocation() -> list[tuple[str, str, str]]:
    """The policies for GPUs of several types; some only where moves are free and GPUs are shared."""
    found = [
        ("--policy", name, f"study: unequal GPUs: {row.summary}")
        for name, row in UNEQUAL.items()
        if name not in POLICIES
    ]
    for name in allocation_policies.names():
        if name not in UNEQUAL:
            shared = ", two jobs on the same GPUs" * name.endswith(allocation_policies.PACKING)
            said = f"{allocation_policies.policy(name).summary}{shared}"
            found.append(("--policy", name, f"study: replica gavel: {said}"))
    return found


def as_json() -> dict[str, Any]:
    """The same for programs; of each policy what runs it."""
    found = rows()
    runs = {name: row.runs for name, row in POLICIES.items()}
    runs |= dict.fromkeys(levers.names(), TICK)
    runs |= {alias: runs[name] for alias, name in POLICY_ALIASES.items() if alias not in runs}
    policies = [
        {"name": name, "runs": runs.get(name, STUDY), "summary": summary.removeprefix(f"{STUDY}: ")}
        for option, name, summary in found
        if option == "--policy"
    ]
    others = [
        {"option": option.lstrip("-"), "name": name, "summary": summary}
        for option, name, summary in found
        if option != "--policy"
    ]
    return {"policies": policies, "names": others}


def show_lists(form: tables.Form) -> None:
    """The names; in CSV options without their dashes, which a spreadsheet would take for a formula."""
    found = rows()
    told = [{"option": option.lstrip("-"), "name": name, "summary": summary} for option, name, summary in found]
    listing = Listing(("option", "name", "summary"), told, HEADER, found)
    tables.show(form, listing, "simulate-list", lambda _: as_json())
