"""The published snapshot: what every reader needs of every GPU, in one small file.

One header line of JSON (schema first), then the columns as little-endian arrays and
the names as text; replaced atomically by its one writer. A 10,000-GPU file is about
1 MB and is read in a few milliseconds without any third-party import, because palsub
reads it on every submission. Rows are sorted by node, then by Slurm's GPU index.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_pal.errors import DataError
from slurm_pal.files import read_trusted, write_atomic
from slurm_pal.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS

Column = Any
"""An `array.array` of the type that `_TYPES` gives it; its element type is not known to mypy."""

SCHEMA = "pal.snapshot/1"
NO_CLASS = 255
FLAGS = (
    "outlier", "quarantined", "stale", "unknown", "degraded", "thermal_limited", "ecc", "config_differs", "suspect_hw",
    "node_coupled", "unsteady", "noisy", "small_group", "unconfirmed", "foreign_process", "xid", "host_noise",
)  # fmt: skip
"""Flag names; the position is the bit in the `flags` column. Append only."""


class GpuScore(NamedTuple):
    """What is known of one GPU."""

    node: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a score
    uuid: str
    model: str
    slowdown: dict[str, float]  # sensitivity class -> time relative to the median GPU
    variability_class: dict[str, str]  # sensitivity class -> "v0", "v1", ... or "?"
    measured_s: float  # Unix time of the newest measurement used, 0.0: never
    confidence: float  # 0..1
    flags: tuple[str, ...]


class Snapshot:
    """A snapshot in memory: columns, and the rows of each node.

    `slowdown[c][row]` is a float array for each sensitivity class `c`.
    """

    def __init__(self, header: dict[str, object], columns: dict[str, Column], texts: dict[str, list[str]]) -> None:
        self.cluster = str(header.get("cluster", ""))
        self.epoch = int(str(header.get("epoch", 0)))
        self.written_s = float(str(header.get("written_s", 0.0)))
        self.centroids: dict[str, list[float]] = dict(header.get("centroids") or {})  # type: ignore[call-overload]
        self.nodes = texts["nodes"]
        self.columns = columns
        self._texts = texts
        starts = columns["starts"]
        self.rows = {name: range(int(starts[i]), int(starts[i + 1])) for i, name in enumerate(self.nodes)}

    def __len__(self) -> int:
        return len(self.columns["index"])

    def row(self, node: str, index: int) -> int | None:
        """The row of one GPU, or None when it is not in the snapshot."""
        for row in self.rows.get(node, ()):
            if self.columns["index"][row] == index:
                return row
        return None

    def slowdown(self, sensitivity: str, node: str, index: int) -> float | None:
        """Slowdown of one GPU for a sensitivity class ("?" reads as A); None: never measured.

        A score that has become stale is already shrunk towards 1.0 by the publisher.
        """
        row = self.row(node, index)
        if row is None:
            return None
        value = float(self.columns[f"slowdown_{known_class(sensitivity)}"][row])
        return None if math.isnan(value) else value

    def gpu(self, row: int) -> GpuScore:
        """Everything about one row."""
        name = self._node_of(row)
        slow = {c: float(self.columns[f"slowdown_{c}"][row]) for c in SENSITIVITY_CLASSES}
        bins = {c: int(self.columns[f"class_{c}"][row]) for c in SENSITIVITY_CLASSES}
        mask = int(self.columns["flags"][row])
        return GpuScore(
            node=name,
            index=int(self.columns["index"][row]),
            uuid=self._texts["uuids"][row],
            model=self._texts["models"][int(self.columns["model"][row])],
            slowdown={c: v for c, v in slow.items() if not math.isnan(v)},
            variability_class={c: "?" if b == NO_CLASS else f"v{b}" for c, b in bins.items()},
            measured_s=float(self.columns["measured_s"][row]),
            confidence=float(self.columns["confidence"][row]),
            flags=tuple(name for bit, name in enumerate(FLAGS) if mask >> bit & 1),
        )

    def _node_of(self, row: int) -> str:
        import bisect

        return self.nodes[bisect.bisect_right(self.columns["starts"], row) - 1]


def known_class(sensitivity: str) -> str:
    """The class whose scores stand for `sensitivity`: an unknown job is treated as A."""
    return sensitivity if sensitivity in SENSITIVITY_CLASSES else SENSITIVITY_CLASSES[0]


_TYPES = {"starts": "I", "index": "H", "model": "H", "measured_s": "d", "confidence": "f", "flags": "I"}
_TYPES |= {f"slowdown_{c}": "f" for c in SENSITIVITY_CLASSES} | {f"class_{c}": "B" for c in SENSITIVITY_CLASSES}
_TEXTS = ("nodes", "uuids", "models")


def publish(
    path: str,
    gpus: Sequence[GpuScore],
    *,
    cluster: str,
    epoch: int,
    now_s: float,
    centroids: dict[str, list[float]] | None = None,
) -> None:
    """Write the snapshot atomically, mode 0644.

    Raises DataError for a name that would break the file, OSError when it cannot be written.
    """
    rows = sorted(gpus, key=lambda g: (g.node, g.index))
    columns: dict[str, Column] = {name: array(code) for name, code in _TYPES.items()}
    models = sorted({g.model for g in rows})
    nodes: list[str] = []
    for position, gpu in enumerate(rows):
        if not nodes or nodes[-1] != gpu.node:
            nodes.append(gpu.node)
            columns["starts"].append(position)
        columns["index"].append(gpu.index)
        columns["model"].append(models.index(gpu.model))
        columns["measured_s"].append(gpu.measured_s)
        columns["confidence"].append(gpu.confidence)
        columns["flags"].append(sum(1 << FLAGS.index(flag) for flag in set(gpu.flags)))
        for c in SENSITIVITY_CLASSES:
            columns[f"slowdown_{c}"].append(gpu.slowdown.get(c, math.nan))
            name = gpu.variability_class.get(c, UNKNOWN_CLASS)
            columns[f"class_{c}"].append(int(name[1:]) if name.startswith("v") else NO_CLASS)
    columns["starts"].append(len(rows))
    texts = {"nodes": nodes, "uuids": [g.uuid for g in rows], "models": models}
    header = {"cluster": cluster, "epoch": epoch, "written_s": now_s, "centroids": centroids or {}}
    write_atomic(path, _encode(header, columns, texts), 0o644)


def _encode(header: dict[str, object], columns: dict[str, Column], texts: dict[str, list[str]]) -> bytes:
    parts: list[bytes] = []
    layout: list[list[object]] = []
    for name, column in columns.items():
        little = array(column.typecode, column)
        if sys.byteorder == "big":
            little.byteswap()
        parts.append(little.tobytes())
        layout.append([name, column.typecode, len(parts[-1])])
    for name, words in texts.items():
        if any("\n" in word for word in words):
            raise DataError(f"a name in {name} contains a line break")
        parts.append("\n".join(words).encode())
        layout.append([name, "text", len(parts[-1])])
    body = b"".join(parts)
    full = {"schema": SCHEMA, **header, "layout": layout, "bytes": len(body), "crc32": zlib.crc32(body)}
    return json.dumps(full).encode() + b"\n" + body


def read(path: str) -> Snapshot:
    """Read a snapshot.

    Raises DataError when it is missing, not readable, empty, truncated, damaged or from
    a newer schema; the text says which, and what to do.
    """
    try:
        raw = read_trusted(path)
    except FileNotFoundError:
        raise DataError(f"no snapshot at {path}: run pal-profile run") from None
    except OSError as error:
        raise DataError(f"snapshot {path} cannot be read ({error.strerror}): chmod a+r {path}") from None
    if not raw:
        raise DataError(f"snapshot {path} is empty: run pal-profile publish")
    first, _, _ = raw.partition(b"\n")
    try:
        header = json.loads(first)
        _check_schema(header, path)
        return _decode(header, memoryview(raw)[len(first) + 1 :], path)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"snapshot {path} is damaged ({error}): run pal-profile publish") from None


def _check_schema(header: dict[str, object], path: str) -> None:
    kind, _, version = str(header["schema"]).partition("/")
    if kind != SCHEMA.partition("/")[0] or not version.isdigit():
        raise DataError(f"{path} is not a snapshot (schema {header['schema']!r})")
    if int(version) > int(SCHEMA.partition("/")[2]):
        newer = f"schema {header['schema']!r}, newer than {SCHEMA!r} known here"
        raise DataError(f"snapshot {path} has {newer}: update slurm-pal")


def _decode(header: dict[str, object], body: memoryview, path: str) -> Snapshot:
    if len(body) != header["bytes"]:
        seen = f"{len(body)} of {header['bytes']} bytes"
        raise DataError(f"snapshot {path} is truncated ({seen}): run pal-profile publish")
    if zlib.crc32(body) != header["crc32"]:
        raise DataError(f"snapshot {path} is damaged (checksum differs): run pal-profile publish")
    columns: dict[str, Column] = {}
    texts: dict[str, list[str]] = {}
    position = 0
    layout: list[list[object]] = header["layout"]  # type: ignore[assignment]
    for name, code, size in layout:
        part = body[position : position + int(str(size))]
        position += int(str(size))
        if code == "text":
            text = bytes(part).decode()
            texts[str(name)] = text.split("\n") if text else []
        elif str(name) in _TYPES:
            column = array(_TYPES[str(name)])
            column.frombytes(part)
            if sys.byteorder == "big":
                column.byteswap()
            columns[str(name)] = column
    missing = [name for name in (*_TYPES, *_TEXTS) if name not in columns and name not in texts]
    if missing:
        raise DataError(f"snapshot {path} lacks {', '.join(missing)}: run pal-profile publish")
    return Snapshot(header, columns, texts)
