# SPDX-License-Identifier: MIT
"""What the submit filter takes from Python: reasons and their sentences, defaults, and how to read the table."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base import marks
from slurm_pal.base.config import KEYS
from slurm_pal.placement.faulty import FAULTY
from slurm_pal.placement.patience import WAIT_SHARE
from slurm_pal.sensitivity.keys import MODULI, ROUNDS
from slurm_pal.store.lua_table import SCHEMA

REASONS = {
    "best": "the free GPUs that suit it best",
    "slow": "only slow GPUs are free, and waiting for others can pay",
    "slow-all": "only slow GPUs are free, and no better ones will become free for this job",
    "slow-rare": "only slow GPUs are free, and better ones become free too rarely to wait for them",
    "faulty": "only GPUs that were seen to fail are free, and waiting for others can pay",
    "faulty-all": "only GPUs that were seen to fail are free, and no better ones will become free for this job",
    "avoid": "its user wants it to avoid slow GPUs, and waiting for others can pay",
    "soft": "nobody would take a node list back",
    "memory": "Slurm would give it all the memory of a node, and how much is free is not known here",
    "size": "nodes of several sizes may take it, and the best may be too small for what Slurm adds to its request",
    "long": "some of its options are too long to be read here",
    "same": "no other free GPUs suit the request",
    "alike": "the free GPUs are equally fast for it",
    "busy": "no suitable GPUs are free now, and a node list could only delay a job that queues",
    "off": "switched off by the user",
    "palsub": "palsub has decided",
    "het": "Slurm places the parts of a heterogeneous job together",
    "array": "an array has one node list for all its tasks",
    "open": "its number of nodes is not fixed, and a node list could split it",
    "own": "the user, or their palsub, named the nodes",
    "prefer": "the user gave --prefer",
    "immediate": "it must start at once or not at all",
    "comment": "the user's own comment leaves no room for the mark of a lease",
    "stdin": "the script came through a pipe, which can be read only once",
    "later": "the job does not start now",
    "constraint": "Slurm weighs the constraint",
    "network": "Slurm weighs the network",
    "shape": "Slurm derives the number of GPUs or nodes",
    "models": "it may get GPUs of several models, which scores do not compare",
    "partition": "more than one partition may take the job",
    "reservation": "the reservation names the nodes",
    "table": "there is no table of free GPUs",
    "stale": "the table of free GPUs is too old",
    "nobody": "nobody would take a node list back",
}
"""Code in a mark (`why`) -> what it means."""
ACTS = {"nodelist": "sent to", "exclude": "kept off", "prefer": "preference for"}
"""What was done (`act`) with the nodes or features of a mark (`set`); any other `act`: the job was left to Slurm."""
LEFT = "left to Slurm"
SETTINGS = {
    "pass_s": KEYS["submit"]["lease_pass_s"].default,
    "lease_max_s": KEYS["submit"]["lease_max_s"].default,
    "run_share": KEYS["submit"]["expected_run_share"].default,
    "run_s": KEYS["submit"]["expected_run_s"].default,
    "wait_share": WAIT_SHARE,
    "avoid": KEYS["submit"]["avoid_slow"].default,
    "faulty": FAULTY,
}
"""The filter's word for a setting -> its value where the table does not say."""


def lua() -> str:
    """The Lua table of all this."""
    checksum = {"moduli": MODULI, "rounds": ROUNDS}
    found = {
        "schema": SCHEMA, "settings": SETTINGS, "checksum": checksum, "acts": ACTS, "left": LEFT, "why": REASONS,
        "places": marks.PLACES,
    }  # fmt: skip
    return literal(found)


def literal(value: object, indent: str = "") -> str:
    """Texts, numbers, tuples and mappings of them as Lua. Raises TypeError for anything else."""
    if isinstance(value, Mapping):
        inner = indent + "  "
        rows = [f"{inner}[{literal(key)}] = {literal(item, inner)},\n" for key, item in value.items()]
        return "{\n" + "".join(rows) + indent + "}"
    if isinstance(value, tuple):
        return "{ " + ", ".join(literal(item) for item in value) + " }"
    if isinstance(value, str):
        return '"' + "".join(map(_quoted, value)) + '"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    raise TypeError(f"{value!r} cannot be written as Lua")


def _quoted(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    return "".join(f"\\{byte:03d}" for byte in character.encode())
