# SPDX-License-Identifier: MIT
"""Under which keys the jobs of a user are remembered: by the job's name and by its script. Pure, and lightest of all.

Checksums, not cryptographic digests: they are compared only with keys of the same user. A name cannot be
read from its key, though anyone who guesses it can check the guess. The submit filter can make them,
too: Lua 5.1 has no operations on bits, but whole numbers up to 2^53 (etc/filter/classes.lua).
"""

from __future__ import annotations

NAMELESS = frozenset({
    "wrap", "sbatch", "bash", "sh", "interactive", "slurm_script", "salloc", "srun", "mpirun", "mpiexec", "env",
    "python", "python2", "python3", "perl", "julia", "rscript", "apptainer", "singularity", "torchrun", "accelerate",
})  # fmt: skip
"""Job names that say nothing of the work: Slurm's own for jobs without one, and programs that srun names jobs after."""
PROBES = "pal-probe:"
"""How the names of probes begin; what follows is the name of the job that they stand for."""
MODULI = (4053239669, 3144134291)
"""Primes below 2^32: with two bytes more a remainder of one stays below 2^53."""
ROUNDS = 3
"""Of squaring: without them the remainders of a short name would be its letters."""


def name_key(job_name: str) -> str:
    """The key of a job name, "" for one that says nothing of the work."""
    name = job_name.removeprefix(PROBES).encode(errors="surrogateescape").strip()
    return "" if not name or name.lower().decode(errors="replace") in NAMELESS else f"n{checksum(name)}"


def script_key(digest: str) -> str:
    """The key of a script by its digest, "" without one."""
    return f"s{digest}" if digest else ""


def script_digest(body: bytes) -> str:
    """16 hexadecimal digits of what a script does: comments, options of sbatch and blank lines do not count."""
    lines = [line.strip() for line in body.split(b"\n")]
    work = b"\n".join(line for line in lines if line and not line.startswith(b"#"))
    return checksum(work) if work else ""


def checksum(raw: bytes) -> str:
    """16 hexadecimal digits from the remainders of the number whose digits to the base 256 are 1 and these bytes."""
    number = int.from_bytes(b"\1" + raw, "big")
    m, n = MODULI
    one, two = number % m, number % n
    for _ in range(ROUNDS):
        one = (one * one + two) % m
        two = (two * two + one) % n
    return f"{one:08x}{two:08x}"
