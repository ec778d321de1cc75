# SPDX-License-Identifier: MIT
"""Labels of jobs: when they come, when they change, how far they are believed, how they are kept."""

from __future__ import annotations

import itertools
import os
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config, load
from slurm_pal.base.errors import DataError
from slurm_pal.sensitivity.history import HALF_LIFE_S, KEPT, Label, Seen, confidence, evidence, learnt
from slurm_pal.sensitivity.keys import name_key, script_digest, script_key
from slurm_pal.store import labels, lua_table, sure_labels, user_files
from slurm_pal.store.sure_labels import SureLabels

NOW_S = 1_700_000_000.0


def after(*jobs: tuple[str, float]) -> Label:
    label = Label()
    for number, (sensitivity, sure) in enumerate(jobs):
        label = learnt(label, Seen(number, sensitivity, sure, NOW_S))
    return label


@pytest.mark.parametrize(
    ("jobs", "label"),
    [
        ([("B", 0.9)], "B"),
        ([("B", 0.79)], "?"),
        ([("B", 0.9), ("A", 1.0), ("A", 1.0)], "B"),
        ([("B", 0.9), ("A", 1.0), ("A", 1.0), ("A", 0.8)], "A"),
        ([("B", 0.9), ("A", 1.0), ("A", 0.7), ("A", 1.0)], "B"),  # one was not sure: not three in a row
        ([("B", 0.9), ("A", 1.0), ("C", 1.0), ("A", 1.0)], "B"),
    ],
)
def test_a_label_changes_only_after_three_sure_jobs_in_a_row(jobs: list[tuple[str, float]], label: str) -> None:
    assert after(*jobs).sensitivity == label


def test_a_second_word_of_a_job_replaces_its_first() -> None:
    label = after(("B", 0.9))
    again = learnt(label, Seen(0, "B", 1.0, NOW_S + 60))
    assert (again.jobs, again.seen) == (1, (Seen(0, "B", 1.0, NOW_S + 60),))
    thrice = label
    for _ in range(3):
        thrice = learnt(thrice, Seen(7, "A", 1.0, NOW_S))
    assert thrice.sensitivity == "B" and thrice.jobs == 2


def test_confidence_falls_with_disagreement_and_age() -> None:
    assert confidence(after(("B", 0.9), ("B", 1.0)), NOW_S) == pytest.approx(0.95)
    assert confidence(after(("B", 0.9), ("A", 1.0)), NOW_S) == pytest.approx(0.45)
    assert confidence(after(("B", 1.0)), NOW_S + HALF_LIFE_S) == pytest.approx(0.5)
    assert confidence(Label(), NOW_S) == 0.0
    told = evidence(after(("B", 1.0), ("A", 1.0)), "jobs named x", NOW_S + 2 * 86400)
    assert told.why == "1 of the last 2 jobs named x were measured B, newest 2 d ago"


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.floats(0, 1)), max_size=30))
def test_what_is_kept_is_bounded_and_the_label_was_seen(jobs: list[tuple[str, float]]) -> None:
    label = after(*jobs)
    assert label.jobs == len(jobs) and len(label.seen) == min(KEPT, len(jobs))
    assert label.sensitivity == "?" or label.sensitivity in {c for c, sure in jobs if sure >= 0.8}
    assert 0.0 <= confidence(label, NOW_S) <= 1.0


def test_keys_are_of_the_work_and_not_of_its_dress() -> None:
    one = script_digest(b"#!/bin/sh\n#SBATCH -N1\n\npython3 train.py\n")
    assert one == script_digest(b"#!/bin/sh\n#SBATCH -N4 --mem=8G\n# better\n  python3 train.py")
    assert one != script_digest(b"#!/bin/sh\npython3 test.py\n")
    assert script_digest(b"#!/bin/sh\n") == "" == script_key("")
    assert name_key("train") == name_key("pal-probe:train") != name_key("train2")
    assert name_key("wrap") == name_key("") == name_key("pal-probe:wrap") == ""


def test_no_name_can_be_read_from_its_key() -> None:
    """Of short names all digits are of use, and names that hardly differ have keys that do not."""
    names = ["x", "y", "ab", "ac", "abc", "train1", "train2"]
    keys = [name_key(name)[1:] for name in names]
    for name, key in zip(names, keys, strict=True):
        assert name.encode().hex() not in key and len(key) == 16 and "0000" not in key
    for one, other in itertools.pairwise(keys):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 10


def test_labels_are_kept_and_found(tmp_path: Path) -> None:
    path = labels.path_of(str(tmp_path / "snapshot.labels"), 1000)
    assert labels.read(path) == {} == labels.lookup(path, ["nx"])
    known = {f"n{i:016x}": after(*[("A", 0.9)] * (1 + i % 3)) for i in range(20)}
    labels.write(path, known)
    assert labels.read(path) == known
    assert labels.lookup(path, ["n" + "0" * 15 + "7", "s" + "0" * 16]) == {
        "n" + "0" * 15 + "7": known["n" + "0" * 15 + "7"]
    }
    assert Path(path).stat().st_mode & 0o777 == 0o600


def readable(path: str, uid: int) -> bool:
    """Whether a process of this user can read the file."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os._exit(0 if labels.read(path) else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_nobody_reads_what_another_users_jobs_were_measured_to_be(tmp_path: Path) -> None:
    """Names are guessed from keys: they are no secret to who has the file."""
    for parent in (tmp_path, *tmp_path.parents):
        if "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o011)
    folder = user_files.site_folder(str(tmp_path / "snapshot"))
    known = {name_key("train"): after(("A", 0.9))}
    path, old = labels.path_of(folder, 4001), labels.path_of(folder, 4002)
    labels.write(path, known, reader=4001)
    assert (readable(path, 4001), readable(path, 4002)) == (access_lists(tmp_path), False)
    labels.write(old, known)
    for name, mode in ((old, 0o644), (folder, 0o755)):  # as earlier versions made them
        os.chmod(name, mode)
    assert readable(old, 4001)
    user_files.protect(folder)
    assert (readable(old, 4001), readable(old, 4002)) == (False, access_lists(tmp_path))
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o711
    assert labels.read(path) == known == labels.read(old)


def access_lists(folder: Path) -> bool:
    """Whether files here can have access control lists."""
    (folder / "probe").touch()
    try:
        os.setxattr(folder / "probe", "system.posix_acl_access", struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", tag, 6, 0xFFFFFFFF) for tag in (1, 4, 32)))  # fmt: skip
    except OSError:
        return False
    return True


def test_protecting_touches_labels_only(tmp_path: Path) -> None:
    for name in ("5.jsonl", "notes.txt", "x.jsonl", "5.jsonl.bak"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    (tmp_path / "6.jsonl").symlink_to("notes.txt")
    os.mkfifo(tmp_path / "7.jsonl", 0o644)
    user_files.protect(str(tmp_path))
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) & 0o007 for path in tmp_path.iterdir()}
    assert modes.pop("6.jsonl") == 7
    assert {name for name, mode in modes.items() if not mode} == {"5.jsonl"}


def test_the_keys_not_used_for_longest_are_forgotten(tmp_path: Path) -> None:
    path = labels.path_of(str(tmp_path), 1)
    many = {f"n{i}": Label("A", 1, (Seen(i, "A", 1.0, float(i)),)) for i in range(labels.MOST_KEYS + 5)}
    labels.write(path, many)
    assert sorted(labels.read(path)) == sorted(f"n{i}" for i in range(5, labels.MOST_KEYS + 5))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load({"SLURM_PAL_PATHS_SNAPSHOT": str(tmp_path / "snapshot")})


def publish(config: Config, uid: int, known: labels.Labels) -> Path:
    path = labels.path_of(user_files.site_folder(config.snapshot_path), uid)
    labels.write(path, known)
    return Path(path)


def test_the_filters_table_gets_what_is_sure_by_now(config: Config) -> None:
    sure, mixed, other = name_key("train"), name_key("tune"), script_key(script_digest(b"x"))
    publish(
        config, 1000, {sure: after(("B", 0.9)), mixed: after(("B", 0.9), ("A", 1.0)), "strange key": after(("A", 1.0))}
    )
    publish(config, 0, {other: after(("C", 0.85), ("C", 0.854))})
    found = SureLabels(config)
    assert found.records(NOW_S) == {"label.1000": f"{sure}=B:0.900", "label.0": f"{other}=C:0.852"}
    lua_table.encode(lua_table.Header(1, 1, 1.0, ""), found.records(NOW_S))
    assert SureLabels(config).records(NOW_S + HALF_LIFE_S) == {}
    config.set("sensitivity", "history_sure", 0.9, "test")
    config.set("sensitivity", "trust", "measured", "test")
    assert SureLabels(config).records(NOW_S) == {"label.1000": f"{sure}=B:0.900", "trust": "measured"}


def test_files_of_labels_that_do_not_change_are_read_once_a_day(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(config, 5, {name_key("x"): after(("A", 1.0))})
    found, read = SureLabels(config), []
    whole = labels.read
    monkeypatch.setattr(labels, "read", lambda path: read.append(path) or whole(path))
    for at_s in (0.0, 5.0, 80000.0, 90000.0, 90005.0, 10.0):  # at last the clock goes back
        assert set(found.records(NOW_S + at_s)) == {"label.5"}
    assert len(read) == 3
    publish(config, 5, {name_key("y"): after(("C", 1.0))})
    assert found.records(NOW_S)["label.5"].startswith(name_key("y"))
    path.write_text("{}")
    assert found.records(NOW_S) == {}
    path.unlink()
    path.mkdir()
    assert found.records(NOW_S) == {}


def test_the_table_holds_the_newest_labels_of_the_users_seen_last(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sure_labels, "MOST_OF_USER", 3)
    monkeypatch.setattr(sure_labels, "MOST", 5)
    keys = [name_key(str(i)) for i in range(6)]
    for uid in range(3):
        known = {key: Label("A", 1, (Seen(i, "A", 1.0, NOW_S + i),)) for i, key in enumerate(keys)}
        os.utime(publish(config, uid, known), (uid, uid))
    found = SureLabels(config).records(NOW_S)
    newest = [f"{key}=A:1.000" for key in reversed(keys)]
    assert found == {"label.2": " ".join(newest[:3]), "label.1": " ".join(newest[:2])}


@pytest.mark.parametrize(
    "text",
    [
        "", "{}\n", '{"schema": "pal.labels/9"}\n', '{"schema": "pal.labels/1"}',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "Z", "jobs": 1, "seen": [[1, "A", 1, 1]]}\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "A", "jobs": 1, "seen": []}\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "A", "jobs": 1, "seen": [[1, "A", 1]]}\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx"\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "A", "jobs": 1, "seen": [[1, "A", NaN, 1]]}\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "A", "jobs": 1, "seen": [[1, "A", 7, 1]]}\n',
        '{"schema": "pal.labels/1"}\n{"key": "nx", "class": "A", "jobs": 1, "seen": [[1, "A", 1, Infinity]]}\n',
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "5.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"5\.jsonl cannot be read .*rm it"):
        labels.read(str(tmp_path / "5.jsonl"))
    with pytest.raises(DataError):
        labels.lookup(str(tmp_path / "5.jsonl"), ["nx"])
