# SPDX-License-Identifier: MIT
"""The published snapshot: what is written is read, and nothing else is ever taken for it."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import zlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError, one_line
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import FLAGS, GpuScore, LevelRatio, NewerSchemaError, encode, publish, read

from ...doubles.privileges import unprivileged


def gpu(node: str = "n1", index: int = 0, **changes: object) -> GpuScore:
    score = GpuScore(
        node=node,
        index=index,
        uuid=f"GPU-{node}-{index}",
        model="V100",
        slowdown={"A": 1.25, "B": 1.0},
        variability_class={"A": "v1", "B": "v0", "C": "?"},
        measured_s=1.8e9,
        confidence=0.875,
        flags=("outlier", "stale"),
    )
    return score._replace(**changes)  # type: ignore[arg-type]


CENTROIDS = {"A": [0.98, 1.25], "B": [1.0]}
GPUS = [gpu("n2", 1), gpu("n1", 0), gpu("n2", 0), gpu("n10", 3)]


def write(path: Path, gpus: list[GpuScore] | None = None, epoch: int = 7) -> str:
    publish(
        str(path), GPUS if gpus is None else gpus, cluster="lab", epoch=epoch, now_s=1.8e9 + 0.5, centroids=CENTROIDS
    )
    return str(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = read(write(tmp_path / "snapshot"))
    assert (found.cluster, found.epoch, found.written_s, found.centroids) == ("lab", 7, 1.8e9 + 0.5, CENTROIDS)
    assert found.nodes == ["n1", "n10", "n2"] and len(found) == 4
    assert found.gpu(0) == gpu("n1", 0)
    assert found.slowdown("A", "n2", 1) == 1.25
    assert found.slowdown("?", "n2", 1) == 1.25
    assert found.slowdown("C", "n2", 1) is None
    assert found.slowdown("A", "n2", 5) is None and found.slowdown("A", "n9", 0) is None
    assert found.row("n2", 1) == 3 and found.rows["n2"] == range(2, 4)


def test_levels_of_the_network(tmp_path: Path) -> None:
    assert read(write(tmp_path / "snapshot")).network == {}
    levels = {2: LevelRatio(3.1, 2.0, 8, 1.8e9), 1: LevelRatio(2.4, 1.5, 5, 1.8e9 + 0.5)}
    publish(str(tmp_path / "snapshot"), GPUS, cluster="lab", epoch=1, now_s=1.8e9, network=levels)
    found = read(str(tmp_path / "snapshot"))
    assert found.network == {1: 2.4, 2: 3.1} and found.levels == levels


def test_mode_is_readable_by_all(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        path = write(tmp_path / "snapshot")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644


def test_no_gpu_at_all(tmp_path: Path) -> None:
    found = read(write(tmp_path / "snapshot", []))
    assert len(found) == 0 and found.nodes == [] and found.row("n1", 0) is None


def test_every_flag_survives(tmp_path: Path) -> None:
    assert read(write(tmp_path / "snapshot", [gpu(flags=FLAGS)])).gpu(0).flags == FLAGS
    assert len(FLAGS) == len(set(FLAGS)) <= 32


names = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)
float32 = st.floats(0.0, 1e6, width=32)
scores = st.builds(
    GpuScore,
    node=names,
    index=st.integers(0, 65535),
    uuid=names,
    model=names,
    slowdown=st.dictionaries(st.sampled_from(SENSITIVITY_CLASSES), float32),
    variability_class=st.fixed_dictionaries(
        dict.fromkeys(SENSITIVITY_CLASSES, st.one_of(st.just("?"), st.integers(0, 254).map(lambda n: f"v{n}")))
    ),
    measured_s=st.floats(allow_nan=False),
    confidence=st.floats(0.0, 1.0, width=32),
    flags=st.sets(st.sampled_from(FLAGS)).map(lambda s: tuple(f for f in FLAGS if f in s)),
)


@settings(deadline=None)
@given(
    st.lists(scores, max_size=12, unique_by=lambda g: (g.node, g.index)),
    names,
    st.integers(0, 2**53),
    st.dictionaries(st.sampled_from(SENSITIVITY_CLASSES), st.lists(st.floats(0.1, 10.0), max_size=5)),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    gpus: list[GpuScore],
    cluster: str,
    epoch: int,
    centroids: dict[str, list[float]],
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "round-trip")
    publish(path, gpus, cluster=cluster, epoch=epoch, now_s=12.5, centroids=centroids)
    found = read(path)
    assert [found.gpu(row) for row in range(len(found))] == sorted(gpus, key=lambda g: (g.node, g.index))
    assert (found.cluster, found.epoch, found.written_s, found.centroids) == (cluster, epoch, 12.5, centroids)
    for score in gpus:
        row = found.row(score.node, score.index)
        assert row is not None and found.gpu(row).uuid == score.uuid


def test_order_of_gpus_does_not_matter() -> None:
    one, two = (encode(g, cluster="c", epoch=1, now_s=0.0) for g in (GPUS, GPUS[::-1]))
    assert one == two


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": "n\n1"}, "line break"),
        ({"uuid": "GPU\n"}, "line break"),
        ({"model": "\nV100"}, "line break"),
        ({"uuid": "\udcff"}, "cannot hold"),
        ({"index": 70000}, "cannot hold"),
        ({"index": -1}, "cannot hold"),
        ({"variability_class": {"A": "v255"}}, "v254"),
        ({"variability_class": {"A": "vx"}}, "cannot hold"),
        ({"flags": ("lazy",)}, "cannot hold"),
    ],
)
def test_what_the_file_cannot_hold_is_refused_and_the_old_file_stays(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    path = write(tmp_path / "snapshot")
    with pytest.raises(DataError, match=why) as error:
        write(tmp_path / "snapshot", [gpu(**changes)], epoch=8)
    assert "\n" not in one_line(error.value)
    assert read(path).epoch == 7
    assert os.listdir(tmp_path) == ["snapshot"]


def test_two_gpus_in_one_slot_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two GPUs at index 0"):
        write(tmp_path / "snapshot", [gpu(), gpu(uuid="other")])


def test_infinite_centroids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot hold"):
        publish(str(tmp_path / "s"), [], cluster="", epoch=1, now_s=0.0, centroids={"A": [math.inf]})


def fails(path: Path, match: str) -> None:
    with pytest.raises(DataError, match=match) as error:
        read(str(path))
    text = one_line(error.value)
    assert "\n" not in text and str(path) in text


def test_missing_empty_and_directory(tmp_path: Path) -> None:
    fails(tmp_path / "snapshot", "no snapshot at .*: run pal-profile run")
    (tmp_path / "empty").write_bytes(b"")
    fails(tmp_path / "empty", "is empty: run pal-profile publish-scores")
    fails(tmp_path, "is not a regular file")


def test_truncated_at_every_place(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    raw = Path(write(path)).read_bytes()
    for length in range(1, len(raw)):
        path.write_bytes(raw[:length])
        fails(path, "truncated|damaged")
    path.write_bytes(raw + b"x")
    fails(path, "truncated")


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    raw = Path(write(path)).read_bytes()
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            read(str(path))


@given(st.binary(max_size=300))
def test_noise_is_never_a_snapshot(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(noise)
    with pytest.raises(DataError):
        read(str(path))


def sealed(header: object, body: bytes = b"") -> bytes:
    data = json.dumps(header).encode() + b"\n" + body
    return data + zlib.crc32(data).to_bytes(4, "little")


def test_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(sealed({"schema": "pal.snapshot/2", "layout": "of another kind"}))
    fails(path, "newer than 'pal.snapshot/1' known here: update slurm-pal")
    with pytest.raises(NewerSchemaError):
        read(str(path))


@pytest.mark.parametrize(
    "header",
    [
        {"schema": "pal.gpus/1"},
        {"schema": "pal.snapshot/x"},
        {"schema": None},
        {"no": "schema"},
        [],
        "text",
        5,
        None,
        {"schema": "pal.snapshot/1"},
        {"schema": "pal.snapshot/1", "bytes": "many"},
        {"schema": "pal.snapshot/1", "bytes": 0, "layout": 5},
        {"schema": "pal.snapshot/1", "bytes": 0, "layout": [["index", "H", 4]]},
        {"schema": "pal.snapshot/1", "bytes": -5, "layout": []},
        {"schema": "pal.snapshot/1", "bytes": 0, "layout": [["nodes"]]},
    ],
)
def test_wrong_kinds_and_senseless_headers(tmp_path: Path, header: object) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(sealed(header))
    fails(path, "snapshot")


def test_deeply_nested_header(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(b"[" * 200_000)
    fails(path, "damaged")


@pytest.mark.parametrize("column", ["index", "flags", "slowdown_A", "starts", "uuids", "nodes", "models"])
def test_columns_that_do_not_belong_together(tmp_path: Path, column: str) -> None:
    """A file with a right checksum but a missing row: a faulty writer, not a damaged disk."""
    path = tmp_path / "snapshot"
    raw = Path(write(path)).read_bytes()
    end = raw.index(b"\n")
    header, body, start = json.loads(raw[:end]), raw[end + 1 : -4], 0
    for entry in header["layout"]:
        name, code, size = entry
        if name == column:
            cut = size if code == "text" else array(code).itemsize
            body = body[: start + size - cut] + body[start + size :]
            entry[2] -= cut
            header["bytes"] -= cut
        start += entry[2]
    path.write_bytes(sealed(header, body))
    fails(path, "damaged|lacks")


def test_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    os.chmod(write(path), 0o000)
    with unprivileged():
        fails(path, "cannot be read .*: chmod a\\+r")


def test_world_writable_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    os.chmod(write(path), 0o666)
    fails(path, "can be written by everyone: chmod o-w")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_does_not_trust_a_stranger(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    os.chown(write(path), 12345, 12345)
    fails(path, "belongs to uid 12345")


def test_a_reader_sees_the_old_or_the_new_file_never_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    many = [gpu(f"n{i:03d}", k) for i in range(100) for k in range(4)]

    def write_epoch(epoch: int) -> None:
        publish(str(path), [g._replace(confidence=float(epoch)) for g in many], cluster="c", epoch=epoch, now_s=0.0)

    write_epoch(1)
    seen: list[int] = []
    troubles: list[object] = []
    done = threading.Event()

    def reader() -> None:
        try:
            while not done.is_set() or not seen:
                found = read(str(path))
                seen.append(found.epoch)
                if set(found.columns["confidence"]) != {float(found.epoch)}:
                    troubles.append(found.epoch)
        except DataError as error:
            troubles.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    for epoch in range(2, 30):
        write_epoch(epoch)
    done.set()
    thread.join()
    assert troubles == []
    assert seen == sorted(seen)
    assert os.listdir(tmp_path) == ["snapshot"]


def test_an_open_file_survives_its_replacement(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write(path)
    with open(path, "rb") as stream:
        write(path, [], epoch=8)
        old = stream.read()
    (tmp_path / "copy").write_bytes(old)
    assert (read(str(tmp_path / "copy")).epoch, read(str(path)).epoch) == (7, 8)


def test_reading_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import slurm_pal.store.snapshot; heavy = {'numpy', 'pandas', 'click', 'rich', 'dataclasses'}; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert snapshot.SCHEMA == "pal.snapshot/1"
