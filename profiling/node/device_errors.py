# SPDX-License-Identifier: MIT
"""What a GPU library raises, as one clear line with the record's flag for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from slurm_pal.profiling.node.devices import DeviceError

FOREIGN = (RuntimeError, MemoryError, ImportError, OSError)
"""What most errors of a library derive from; the last two report a library, or a part of one, that is missing."""

_FAULTS = (
    # After any of these the context is dead and the driver has logged an Xid (or its like).
    ("uncorrectable ecc", "ecc"),
    ("illegal memory access", "xid"),
    ("illegal instruction", "xid"),
    ("illegal address", "xid"),
    ("misaligned address", "xid"),
    ("hardware stack error", "xid"),
    ("global/shared address space", "xid"),
    ("invalid program counter", "xid"),
    ("unspecified launch failure", "xid"),
    ("launch timed out", "xid"),
    ("device lost", "xid"),
    ("device_lost", "xid"),
    ("gpu is lost", "xid"),
    ("nvlink", "xid"),
)
_HINTS = (("out of memory", "free the GPU, or measure it alone in an exclusive job"),)


def device_error(error: BaseException, doing: str) -> DeviceError:
    """A DeviceError for what went wrong while `doing`; its flag is "xid" or "ecc" where the device broke.

    Only the first line of a library's message is kept: what follows is advice for its developers.
    """
    said = str(error).strip()
    first = said.splitlines()[0] if said else type(error).__name__
    low = said.lower()
    flag = next((flag for sign, flag in _FAULTS if sign in low), "")
    hint = next((f"; {hint}" for sign, hint in _HINTS if sign in low), "")
    return DeviceError(f"{doing}: {first}{hint}", flag)


@contextlib.contextmanager
def told(errors: tuple[type[Exception], ...], doing: str) -> Iterator[None]:
    """Turn what a library raises inside into a DeviceError."""
    try:
        yield
    except errors as error:
        raise device_error(error, doing) from None
