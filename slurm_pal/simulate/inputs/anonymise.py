# SPDX-License-Identifier: MIT
"""A sacct export without names, for sites that want to show theirs.

Names become keyed BLAKE2b hashes: the same name gives the same hash under one key, and
without the key nobody can try names one by one. Keep the key, or throw it away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import TextIO

from slurm_pal.base.errors import UsageError
from slurm_pal.sensitivity.catalogue import APPLICATIONS
from slurm_pal.simulate.inputs.collect import Unusable
from slurm_pal.simulate.inputs.sacct_columns import NAME, NAMES, PLAIN, SEPARATOR, SacctColumns, header
from slurm_pal.simulate.trace import BadRow

KEY_BYTES = (16, hashlib.blake2b.MAX_KEY_SIZE)
_HASH_BYTES = 8


def anonymise(
    stream_in: Iterable[str], stream_out: TextIO, key: bytes, keep: Collection[str] = tuple(APPLICATIONS)
) -> list[BadRow]:
    """Copy an export, row by row, with names hashed; the rows that were left out.

    Hashed: users, accounts, groups, QOS, reservations, clusters, their numbers, and job
    names, except those (case aside) in `keep`. Job ids, times, sizes, partitions and
    states stay, the latter without who cancelled. Every other column is emptied. A row
    that cannot be cut into columns is left out, since its contents are not known.

    Raises UsageError for a key of another length than 16 to 64 bytes and for a header
    without the needed columns.
    """
    if not KEY_BYTES[0] <= len(key) <= KEY_BYTES[1]:
        raise UsageError(f"the key has {len(key)} bytes; it must have {KEY_BYTES[0]} to {KEY_BYTES[1]}")
    kept = {name.lower() for name in keep}
    lines = (text.rstrip("\r\n") for text in stream_in)
    first = next(lines, "").removeprefix("\ufeff")
    columns = header(first)
    stream_out.write(first + "\n")
    left_out = []
    for line, text in enumerate(lines, start=2):
        if not text.strip() or text == first:
            continue
        try:
            cells = columns.cut(text)
        except Unusable:  # whose text quotes the row
            left_out.append(BadRow(line, f"cannot be cut into the {len(columns.names)} columns of the header"))
            continue
        stream_out.write(_row(columns, cells, key, kept))
    return left_out


def _row(columns: SacctColumns, cells: list[str], key: bytes, kept: set[str]) -> str:
    clean = [_clean(name, cell.strip(), key, kept) for name, cell in zip(columns.names, cells, strict=True)]
    return SEPARATOR.join([*clean, ""] if columns.closed else clean) + "\n"


def _clean(column: str, cell: str, key: bytes, kept: set[str]) -> str:
    if column == "state":
        return cell.partition(" ")[0]
    if column in PLAIN or (column == NAME and cell.lower() in kept):
        return cell
    if column in NAMES or column == NAME:
        return hashed(column, cell, key)
    return ""


def hashed(kind: str, text: str, key: bytes) -> str:
    """A name's hash, 16 hexadecimal digits; the same name as another kind (user, account) has another one."""
    if not text:
        return ""
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=_HASH_BYTES, person=kind.encode()[:16])
    return digest.hexdigest()
