"""Under which keys the jobs of a user are remembered: by the job's name and by its script. Pure, and lightest of all.

Checksums, not cryptographic digests: only keys of the same user stand beside them.
"""

from __future__ import annotations

import zlib

NAMELESS = frozenset({"wrap", "sbatch", "bash", "sh", "interactive", "slurm_script"})
"""Job names that say nothing of the work: Slurm gives them to whatever has no name of its own."""
PROBES = "pal-probe:"
"""How the names of probes begin; what follows is the name of the job that they stand for."""


def name_key(job_name: str) -> str:
    """The key of a job name, "" for one that says nothing of the work."""
    name = job_name.removeprefix(PROBES).strip()
    return "" if name.lower() in NAMELESS or not name else f"n{_short(name.encode(errors='surrogateescape'))}"


def script_key(digest: str) -> str:
    """The key of a script by its digest, "" without one."""
    return f"s{digest}" if digest else ""


def script_digest(body: bytes) -> str:
    """16 hexadecimal digits of what a script does: comments, options of sbatch and blank lines do not count."""
    lines = [line.strip() for line in body.split(b"\n")]
    work = b"\n".join(line for line in lines if line and not line.startswith(b"#"))
    return _short(work) if work else ""


def _short(raw: bytes) -> str:
    return f"{zlib.crc32(raw):08x}{zlib.adler32(raw):08x}"
