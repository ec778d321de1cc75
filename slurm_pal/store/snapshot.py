# SPDX-License-Identifier: MIT
"""The published snapshot: what every reader needs about every GPU, in one small file.

One header line of JSON (schema first), the columns as little-endian arrays, the names as
text, and a checksum over all of it; replaced atomically by its one writer. A 10,000-GPU file is about
1 MB and is read in a few milliseconds without any third-party import, because palsub
reads it on every submission. Rows are sorted by node, then by Slurm's GPU index.
"""

from __future__ import annotations

import math
import sys
from binascii import crc32

from slurm_pal.base.errors import DataError
from slurm_pal.base.faults import FAULTS, OK, state_of
from slurm_pal.base.files import Reader, read_trusted, sweep_words, write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.base.light import Any, Mapping, NamedTuple, Sequence, json
from slurm_pal.base.numbers import digits

Column = Any
"""Numbers of the type that `_TYPES` gives it: an `array.array`, or a view of the bytes that were read."""

SCHEMA = "pal.snapshot/1"
NO_CLASS = 255
CHECKSUM_BYTES = 4
FLAGS = (
    "outlier", "quarantined", "stale", "unknown", "degraded", "thermal_limited", "ecc", "config_differs", "suspect_hw",
    "node_coupled", "unsteady", "noisy", "small_group", "unconfirmed", "foreign_process", "xid", "host_noise",
    "clock_skew", "step", "drift", "no_answer", "missing", "not_capped", "late",
)  # fmt: skip
"""Flag names; the position is the bit in the `flags` column. Append only."""
CLASS_ALARMS = ("flat", "shifted")
"""States of the classes besides "ok", the gravest first; `variability.notices` says what they are."""
_FAULTY = sum(1 << FLAGS.index(flag) for flag in FAULTS)


class NewerSchemaError(DataError):
    """A newer slurm-pal wrote the snapshot, so we must not replace it."""


class GpuScore(NamedTuple):
    """What is known about one GPU."""

    node: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used on scores
    uuid: str
    model: str
    slowdown: dict[str, float]  # sensitivity class -> time relative to the median GPU
    variability_class: dict[str, str]  # sensitivity class -> "v0", "v1", ... or "?"
    measured_s: float  # Unix time of the newest measurement used, 0.0: never
    confidence: float  # 0..1
    flags: tuple[str, ...]

    @property
    def state(self) -> str:
        """ "ok", or that of a GPU that was seen to fail and not measured cleanly since."""
        return state_of(self.flags)


class LevelRatio(NamedTuple):
    """What an all-reduce takes at one level of the network, against one within a node."""

    ratio: float  # of a large message, by what crosses each link
    small_ratio: float  # of a message so small that only latency counts
    pairs: int  # pairs of nodes measured: the ratios are their medians
    measured_s: float  # Unix time of the newest of them

    def line(self, level: int) -> str:
        """For people."""
        import time

        day, many = time.strftime("%Y-%m-%d", time.localtime(self.measured_s)), "s" * (self.pairs > 1)
        said = f"network level {level}: an all-reduce takes {self.ratio:.2f} times as long as within a node"
        return f"{said}, a small one {self.small_ratio:.2f} times ({self.pairs} pair{many} of nodes, {day})"


class Snapshot:
    """A snapshot in memory: columns, and the rows of each node.

    `slowdown[c][row]` is a float array for each sensitivity class `c`.
    """

    def __init__(self, header: dict[str, object], columns: dict[str, Column], texts: dict[str, list[str]]) -> None:
        self.cluster = str(header.get("cluster", ""))
        self.epoch = int(str(header.get("epoch", 0)))
        self.written_s = float(str(header.get("written_s", 0.0)))
        self.centroids: dict[str, list[float]] = dict(header.get("centroids") or {})  # type: ignore[call-overload]
        # model -> sensitivity class -> share of its GPUs that were measured at their power cap
        self.met_cap: dict[str, dict[str, float]] = dict(header.get("met_cap") or {})  # type: ignore[call-overload]
        noticed: list[Any] = list(header.get("notices") or [])  # type: ignore[call-overload]
        self.notices: list[dict[str, Any]] = [notice for notice in noticed if isinstance(notice, dict)]
        levels: dict[str, Any] = dict(header.get("network") or {})  # type: ignore[call-overload]
        # 1: several nodes of one leaf or of a flat network, 2: several leaves below a switch of level 1, ...
        self.levels = {int(level): LevelRatio(*row) for level, row in levels.items()}
        self.nodes = texts["nodes"]
        self.columns = columns
        self._texts = texts
        starts = columns["starts"]
        self.rows = {name: range(int(starts[i]), int(starts[i + 1])) for i, name in enumerate(self.nodes)}

    def __len__(self) -> int:
        return len(self.columns["index"])

    @property
    def network(self) -> dict[int, float]:
        """Level of the network -> time of an all-reduce there over that within a node; {}: not measured."""
        return {level: row.ratio for level, row in self.levels.items()}

    @property
    def class_state(self) -> str:
        """ "ok", "flat" (some GPUs of class A are all in one class) or "shifted" (some changed speed together)."""
        states = {notice.get("state") for notice in self.notices}
        return next((state for state in CLASS_ALARMS if state in states), OK)

    def row(self, node: str, index: int) -> int | None:
        """The row of one GPU, or None if it is not in the snapshot."""
        for row in self.rows.get(node, ()):
            if self.columns["index"][row] == index:
                return row
        return None

    def slowdown(self, sensitivity: str, node: str, index: int) -> float | None:
        """Slowdown of one GPU for a sensitivity class ("?" reads as A); None: never measured.

        The publisher has already shrunk stale scores towards 1.0.
        """
        row = self.row(node, index)
        if row is None:
            return None
        value = float(self.columns[f"slowdown_{known_class(sensitivity)}"][row])
        return None if math.isnan(value) else value

    def faulty(self, row: int) -> bool:
        """Whether the GPU of a row was seen to fail, and not measured cleanly since."""
        return bool(self.columns["flags"][row] & _FAULTY)

    def faulty_rows(self) -> frozenset[int]:
        """The rows of all such GPUs."""
        return frozenset(row for row, mask in enumerate(self.columns["flags"]) if mask & _FAULTY)

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


def empty() -> Snapshot:
    """A snapshot before anything was measured."""
    return Snapshot({}, *_columns([]))


def known_class(sensitivity: str) -> str:
    """The class whose scores are used for `sensitivity`: an unknown job is treated as A."""
    return sensitivity if sensitivity in SENSITIVITY_CLASSES else SENSITIVITY_CLASSES[0]


_TYPES = {"starts": "I", "index": "H", "model": "H", "measured_s": "d", "confidence": "f", "flags": "I"}
_TYPES |= {f"slowdown_{c}": "f" for c in SENSITIVITY_CLASSES} | {f"class_{c}": "B" for c in SENSITIVITY_CLASSES}
_TEXTS = ("nodes", "uuids", "models")


def changeable(snapshot: Snapshot, name: str) -> Column:
    """A copy of a column, of the same type, that may be changed."""
    from array import array

    return array(_TYPES[name], snapshot.columns[name])


def publish(
    path: str,
    gpus: Sequence[GpuScore],
    *,
    cluster: str,
    epoch: int,
    now_s: float,
    centroids: dict[str, list[float]] | None = None,
    met_cap: dict[str, dict[str, float]] | None = None,
    notices: Sequence[dict[str, Any]] = (),
    network: Mapping[int, LevelRatio] | None = None,
) -> None:
    """Write the snapshot atomically, mode 0644.

    Raises DataError for a value that the file cannot hold, OSError when it cannot be written.
    """
    data = encode(
        gpus,
        cluster=cluster,
        epoch=epoch,
        now_s=now_s,
        centroids=centroids,
        met_cap=met_cap,
        notices=notices,
        network=network,
    )
    write_atomic(path, data, 0o644)


def encode(
    gpus: Sequence[GpuScore],
    *,
    cluster: str,
    epoch: int,
    now_s: float,
    centroids: dict[str, list[float]] | None = None,
    met_cap: dict[str, dict[str, float]] | None = None,
    notices: Sequence[dict[str, Any]] = (),
    network: Mapping[int, LevelRatio] | None = None,
) -> bytes:
    """The bytes of a snapshot; the same arguments, in any order of `gpus`, give the same bytes.

    Raises DataError for a value that the file cannot hold: a name with a line break, a
    class beyond v254, an unknown flag, two GPUs in one slot.
    """
    rows = sorted(gpus, key=lambda g: (g.node, g.index))
    header: dict[str, object] = {"cluster": cluster, "epoch": epoch, "written_s": now_s, "centroids": centroids or {}}
    header |= {"met_cap": met_cap} if met_cap else {}
    header |= {"notices": list(notices)} if notices else {}
    header |= {"network": {str(level): list(row) for level, row in sorted(network.items())}} if network else {}
    try:
        columns, texts = _columns(rows)
        return _encode(header, columns, texts)
    except (ValueError, OverflowError) as error:
        raise DataError(f"the snapshot cannot hold a value: {error}") from None


def _columns(rows: Sequence[GpuScore]) -> tuple[dict[str, Column], dict[str, list[str]]]:
    from array import array

    columns: dict[str, Column] = {name: array(code) for name, code in _TYPES.items()}
    models = {model: i for i, model in enumerate(sorted({g.model for g in rows}))}
    nodes: list[str] = []
    slot: tuple[str, int] | None = None
    for position, gpu in enumerate(rows):
        if slot == (gpu.node, gpu.index):
            raise DataError(f"two GPUs at index {gpu.index} of node {gpu.node!r}")
        slot = (gpu.node, gpu.index)
        if not nodes or nodes[-1] != gpu.node:
            nodes.append(gpu.node)
            columns["starts"].append(position)
        columns["index"].append(gpu.index)
        columns["model"].append(models[gpu.model])
        columns["measured_s"].append(gpu.measured_s)
        columns["confidence"].append(gpu.confidence)
        columns["flags"].append(sum(1 << FLAGS.index(flag) for flag in set(gpu.flags)))
        for c in SENSITIVITY_CLASSES:
            columns[f"slowdown_{c}"].append(gpu.slowdown.get(c, math.nan))
            columns[f"class_{c}"].append(_class_number(gpu.variability_class.get(c, UNKNOWN_CLASS)))
    columns["starts"].append(len(rows))
    return columns, {"nodes": nodes, "uuids": [g.uuid for g in rows], "models": list(models)}


def _class_number(name: str) -> int:
    if not name.startswith("v"):
        return NO_CLASS
    number = int(name[1:])
    if not 0 <= number < NO_CLASS:
        raise DataError(f"class {name} is beyond v{NO_CLASS - 1}")
    return number


def _encode(header: dict[str, object], columns: dict[str, Column], texts: dict[str, list[str]]) -> bytes:
    from array import array

    parts: list[bytes] = []
    layout: list[list[object]] = []
    for name, column in columns.items():
        little = array(_TYPES[name], column)
        if sys.byteorder == "big":
            little.byteswap()
        parts.append(little.tobytes())
        layout.append([name, column.typecode, len(parts[-1])])
    for name, words in texts.items():
        if any("\n" in word for word in words):
            raise DataError(f"a name in {name} contains a line break")
        parts.append("".join(f"{word}\n" for word in words).encode())
        layout.append([name, "text", len(parts[-1])])
    body = b"".join(parts)
    full = {"schema": SCHEMA, **header, "layout": layout, "bytes": len(body)}
    data = json.dumps(full, allow_nan=False).encode() + b"\n" + body
    return data + crc32(data).to_bytes(CHECKSUM_BYTES, "little")


def read(path: str, reader: Reader = read_trusted) -> Snapshot:
    """Read a snapshot; `reader` reads files.

    Raises DataError if it is missing, not readable, empty, truncated, damaged or of a
    newer schema; the text says which, and what to do.
    """
    try:
        raw = reader(path)
    except FileNotFoundError:
        raise DataError(f"no snapshot at {path}: {sweep_words(path)}") from None
    except OSError as error:
        raise DataError(f"snapshot {path} cannot be read ({error.strerror}): chmod a+r {path}") from None
    if not raw:
        raise DataError(f"snapshot {path} is empty: run pal-profile publish-scores")
    end = raw.find(b"\n")
    try:
        header = json.loads(raw[: end if end >= 0 else len(raw)])
        _check_schema(header, path)
        return _decode(header, raw, end + 1, path)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DataError(f"snapshot {path} is damaged ({error}): run pal-profile publish-scores") from None


def _check_schema(header: dict[str, object], path: str) -> None:
    kind, _, version = str(header["schema"]).partition("/")
    if kind != SCHEMA.partition("/")[0] or (number := digits(version)) is None:
        raise DataError(f"{path} is not a snapshot (schema {header['schema']!r})")
    if number > int(SCHEMA.partition("/")[2]):
        newer = f"schema {header['schema']!r}, newer than {SCHEMA!r} known here"
        raise NewerSchemaError(f"snapshot {path} has {newer}: update slurm-pal")


def _decode(header: dict[str, object], raw: bytes, start: int, path: str) -> Snapshot:
    body_bytes = int(str(header["bytes"]))
    end = start + body_bytes
    if start == 0 or len(raw) != end + CHECKSUM_BYTES:
        seen = f"{len(raw) - start} of {body_bytes + CHECKSUM_BYTES} bytes after the header"
        raise DataError(f"snapshot {path} is truncated ({seen}): run pal-profile publish-scores")
    if crc32(memoryview(raw)[:end]) != int.from_bytes(raw[end:], "little"):
        raise DataError(f"snapshot {path} is damaged (checksum differs): run pal-profile publish-scores")
    columns: dict[str, Column] = {}
    texts: dict[str, list[str]] = {}
    layout: list[list[object]] = header["layout"]  # type: ignore[assignment]
    for name, code, size in layout:
        part = raw[start : start + int(str(size))]
        start += len(part)
        if code == "text":
            texts[str(name)] = part.decode().split("\n")[:-1]
        elif str(name) in _TYPES:
            columns[str(name)] = _column(_TYPES[str(name)], part)
    missing = [name for name in (*_TYPES, *_TEXTS) if name not in columns and name not in texts]
    if missing:
        raise DataError(f"snapshot {path} lacks {', '.join(missing)}: run pal-profile publish-scores")
    _check_lengths(columns, texts)
    return Snapshot(header, columns, texts)


def _column(code: str, part: bytes) -> Column:
    """Little-endian numbers as this machine reads them. `array` is not needed for that, and loads `collections`."""
    if sys.byteorder == "little":
        return memoryview(part).cast(code)  # type: ignore[call-overload]
    from array import array

    column = array(code, part)
    column.byteswap()
    return column


def _check_lengths(columns: dict[str, Column], texts: dict[str, list[str]]) -> None:
    """Raises ValueError when the columns do not belong together."""
    rows = len(columns["index"])
    uneven = [name for name in _TYPES if name != "starts" and len(columns[name]) != rows]
    starts = columns["starts"]
    if uneven or len(texts["uuids"]) != rows:
        raise ValueError(f"columns of different lengths: {', '.join(uneven) or 'uuids'}")
    if len(starts) != len(texts["nodes"]) + 1 or starts[0] != 0 or starts[-1] != rows:
        raise ValueError("rows and nodes do not belong together")
    if rows and max(columns["model"]) >= len(texts["models"]):
        raise ValueError("a row has a model that is not listed")
