# SPDX-License-Identifier: MIT
"""Rounds of the publisher on a fake Slurm: who takes leases back, and what is promised when something is amiss."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, SlurmError, UsageError
from slurm_pal.base.files import locked
from slurm_pal.base.prices import GPU
from slurm_pal.cli.pal import pal
from slurm_pal.decide.lease import comment
from slurm_pal.leases import promise
from slurm_pal.publisher import publication as rounds
from slurm_pal.publisher.publication import Publisher
from slurm_pal.sensitivity.history import Label, Seen
from slurm_pal.sensitivity.keys import name_key
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeNode, FakeSlurm, write_shims
from slurm_pal.store import heartbeat, labels, snapshot, starts, user_files
from slurm_pal.store.lua_table import read_table
from slurm_pal.store.snapshot import GpuScore

MAX_AGE_S = 180.0


def scores(config: Config, epoch: int = 1) -> None:
    gpus = [
        GpuScore(f"n{i}", k, f"{i}-{k}", "m", {"A": 1.0 + i / 10}, {"A": "v0"}, 1.0, 1.0, ())
        for i in range(2)
        for k in range(4)
    ]
    snapshot.publish(config.snapshot_path, gpus, cluster="fake", epoch=epoch, now_s=1.0)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    return config


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm([FakeNode("n0"), FakeNode("n1")])


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests: the fake Slurm's SlurmUser is root."""
    monkeypatch.setattr("slurm_pal.publisher.publication.os.geteuid", lambda: 0)


def blocked(slurm: FakeSlurm) -> int:
    """A job pinned to a full node, with palsub's mark of a lease of 60 s."""
    client = CliClient(slurm)
    client.submit(["-w", "n1", "--gres=gpu:4"], "#!/bin/sh\n")
    return client.submit(
        ["-w", "n1", "--gres=gpu:1", f"--comment={comment(60, '', '', 'nodelist', 'n1')}"], "#!/bin/sh\n"
    )


def publisher(config: Config, slurm: FakeSlurm, stays: bool = True) -> Publisher:
    return Publisher(config, CliClient(slurm), stays)


@pytest.mark.usefixtures("root")
def test_a_round_takes_back_and_publishes(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    number, now_s = blocked(slurm), time.time()
    made = publisher(config, slurm)
    first = made.publish(now_s)
    assert first.ended == () and first.trouble == () and first.gpus_written and slurm.jobs[number].state == "PENDING"
    table = read_table(config.table_path)
    assert (table.header.clears, table.header.written_s) == ("daemon", int(now_s))
    assert heartbeat.fresh(config.snapshot_path, now_s, MAX_AGE_S)
    second = made.publish(now_s + 61)
    assert [(u.job_id, u.fields) for u in second.ended] == [(number, {"ReqNodeList": ""})]
    assert slurm.jobs[number].state == "RUNNING" and not second.gpus_written
    scores(config, epoch=2)
    assert made.publish(now_s + 62).gpus_written
    made.stop(now_s + 63)
    assert read_table(config.table_path).header.clears == ""
    assert not heartbeat.fresh(config.snapshot_path, now_s + 63, MAX_AGE_S)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("where", ["comment", "admin_comment"])
def test_a_list_ends_after_a_pass_where_slurm_does_not_start_the_job_on_free_gpus(config: Config, where: str) -> None:
    """By the same rule for palsub's lease and the filter's, however long they were granted."""
    slurm = FakeSlurm([FakeNode("n0"), FakeNode("n1", full=True)])
    scores(config)
    number = CliClient(slurm).submit(["-w", "n1", "--gres=gpu:1"], "#!/bin/sh\n")
    setattr(slurm.jobs[number], where, comment(533, "", "", "nodelist", "n1"))
    now_s, made = time.time(), publisher(config, slurm)
    assert made.publish(now_s).ended == () and slurm.jobs[number].state == "PENDING"
    assert [update.job_id for update in made.publish(now_s + 4).ended] == [number]
    assert slurm.jobs[number].state == "RUNNING" and list(slurm.jobs[number].placed) == ["n0"]


@pytest.mark.usefixtures("root")
def test_what_is_known_of_users_jobs_is_for_slurmctld_alone(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    key = name_key("train")
    label = Label("C", 1, (Seen(1, "C", 0.9, time.time()),))
    labels.write(labels.path_of(user_files.site_folder(config.snapshot_path), 1000), {key: label}, reader=1000)
    config.set("sensitivity", "trust", "measured", "test")
    made = publisher(config, slurm)
    for leave in (lambda: made.publish(time.time()), lambda: made.stop(time.time())):
        leave()
        whole, public = read_table(config.table_path), read_table(config.public_table_path)
        assert whole.records["label.1000"] == f"{key}=C:0.900" and whole.records["trust"] == "measured"
        assert public.header == whole.header
        assert public.records == {k: v for k, v in whole.records.items() if k not in ("label.1000", "trust")}
        modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (config.table_path, config.public_table_path)]
        assert modes == [0o600, 0o644]


def test_who_is_not_slurm_user_publishes_what_all_may_read(
    config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(config)
    label = Label("C", 1, (Seen(1, "C", 0.9, time.time()),))
    labels.write(labels.path_of(user_files.site_folder(config.snapshot_path), 1000), {name_key("train"): label})
    monkeypatch.setattr(rounds, "slurm_user_uid", lambda: 12345)
    monkeypatch.setattr(rounds.os, "geteuid", lambda: 12346)
    publisher(config, slurm, stays=False).publish(time.time())
    for path in (config.table_path, config.public_table_path):
        assert not [key for key in read_table(path).records if key.startswith("label")]
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o644


@pytest.mark.usefixtures("root")
def test_who_goes_takes_everything_back(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    number = blocked(slurm)
    made = publisher(config, slurm)
    assert made.take_back_all() == ([], [])  # it never knew that it may
    assert made.publish(time.time()).ended == ()
    made.stop(time.time())
    ended, trouble = made.take_back_all()
    assert [update.job_id for update in ended] == [number] and not trouble
    assert slurm.jobs[number].state == "RUNNING"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("refusals", "leaves"), [(3, False), (20, True)])
def test_a_job_that_slurm_has_in_hand_gets_its_list_back_all_the_same(
    refusals: int, leaves: bool, config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 24.11 on most tries to change a waiting job fail; whoever leaves tries longer."""
    scores(config)
    blocked(slurm)
    left = refusals

    def run(argv: list[str], stdin: str) -> Completed:
        nonlocal left
        if "update" in argv and left:
            left -= 1
            return Completed(1, "", "Resource temporarily unavailable for job 1\n")
        return slurm(argv, stdin)

    made = Publisher(config, CliClient(run), stays=True)  # type: ignore[arg-type]
    now_s = time.time()
    made.publish(now_s)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    if leaves:
        ended, trouble = made.take_back_all()
    else:
        done = made.publish(now_s + 61)
        ended, trouble = [*done.ended], [*done.trouble]
    assert len(ended) == 1 and not trouble and not left


@pytest.mark.usefixtures("root")
def test_a_forged_record_frees_nobody_elses_job(
    config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's name may hold a line end, and what follows may look like another job's record."""
    scores(config)
    client = CliClient(slurm)
    client.submit(["-w", "n1", "--gres=gpu:4"], "#!/bin/sh\n")
    theirs = client.submit(["-w", "n1", "--gres=gpu:1"], "#!/bin/sh\n")
    made = publisher(config, slurm)
    made.publish(time.time())
    seen = client.overview()
    forged = tuple(
        job._replace(comment=comment(0, "", "", "nodelist", "n1")) if job.job_id == theirs else job for job in seen.jobs
    )
    monkeypatch.setattr(CliClient, "overview", lambda self, **_: seen._replace(jobs=forged))
    assert made.publish(time.time() + 999).ended == ()
    assert slurm.jobs[theirs].state == "PENDING"


@pytest.mark.usefixtures("root")
def test_epochs_rise_whatever_the_clock_does(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    made = publisher(config, slurm)
    epochs = []
    for now_s in (1000.0, 1000.0, 500.0, 2000.0):
        made.publish(now_s)
        epochs.append(read_table(config.table_path).header.epoch)
    made.stop(100.0)
    epochs.append(read_table(config.table_path).header.epoch)
    assert epochs == [1_000_000, 1_000_001, 1_000_002, 2_000_000, 2_000_001]


def test_others_than_slurm_user_promise_nothing(
    config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_pal.publisher.publication.os.geteuid", lambda: 4711)
    scores(config)
    number = blocked(slurm)
    done = publisher(config, slurm).publish(time.time() + 999)
    assert done.ended == () and slurm.jobs[number].state == "PENDING"
    assert done.trouble == ("leases are not taken back: only SlurmUser (root) and root may do that",)
    assert read_table(config.table_path).header.clears == ""
    assert not os.path.exists(config.snapshot_path + ".heartbeat")


@pytest.mark.usefixtures("root")
def test_one_shot_promises_nothing(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    number = blocked(slurm)
    done = publisher(config, slurm, stays=False).publish(time.time() + 999)
    assert done.ended == () and done.trouble == () and slurm.jobs[number].state == "PENDING"
    assert read_table(config.table_path).header.clears == ""
    assert not os.path.exists(config.snapshot_path + ".heartbeat")


@pytest.mark.usefixtures("root")
def test_without_a_snapshot_leases_are_still_taken_back(config: Config, slurm: FakeSlurm) -> None:
    number = blocked(slurm)
    done = publisher(config, slurm).publish(time.time() + 61)
    assert slurm.jobs[number].state == "RUNNING" and done.table is None
    assert len(done.trouble) == 1 and "no snapshot at" in done.trouble[0]
    publisher(config, slurm).stop(0.0)  # no table: nothing to retire


@pytest.mark.usefixtures("root")
def test_a_job_that_slurm_will_not_change_does_not_keep_the_others(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    first, second = blocked(slurm), blocked(slurm)

    def run(argv: list[str], stdin: str) -> object:
        if f"JobId={first}" in argv:
            slurm.finish(first)
        return slurm(argv, stdin)

    done = Publisher(config, CliClient(run), stays=True).publish(time.time() + 61)  # type: ignore[arg-type]
    assert [update.job_id for update in done.ended] == [second]
    assert len(done.trouble) == 1 and f"job {first} stays for now" in done.trouble[0] and done.table is not None


def test_a_dead_controller_is_the_callers_to_tell(config: Config, slurm: FakeSlurm) -> None:
    slurm.down = True
    with pytest.raises(SlurmError):
        publisher(config, slurm).publish(1.0)
    assert not os.path.exists(config.table_path)


@pytest.mark.usefixtures("root")
def test_a_stand_in_is_told(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    config.set("placement", "policy", "pal", "test")
    done = publisher(config, slurm).publish(1.0)
    assert done.table is not None
    assert done.table.notes == ("placement.policy pal cannot be put into a table: class-fit is used instead",)


@pytest.mark.usefixtures("root")
def test_a_table_that_cannot_be_written(config: Config, slurm: FakeSlurm, tmp_path: Path) -> None:
    scores(config)
    config.set("paths", "table", str(tmp_path / "absent" / "t.lua"), "test")
    done = publisher(config, slurm).publish(1.0)
    assert done.table is None and "cannot be written" in done.trouble[0]


@pytest.fixture
def command(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The fake Slurm on PATH, and a pal.toml."""
    (tmp_path / "bin").mkdir()
    write_shims(str(tmp_path / "bin"), str(tmp_path / "fake.json"), [FakeNode("n0"), FakeNode("n1")])
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return config


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, ["publish-table", *words])


def test_the_command_once(command: Config) -> None:
    missing = invoke()
    assert isinstance(missing.exception, DataError) and "no snapshot at" in str(missing.exception)
    scores(command)
    done = invoke()
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith(f"{command.table_path}: 2 nodes with free GPUs in 1 pools, ")
    assert done.stdout.splitlines()[1] == f"{command.gpus_path}: written"
    assert invoke().stdout.splitlines()[1] == f"{command.gpus_path}: unchanged"


def test_the_command_by_its_earlier_name(command: Config) -> None:
    assert isinstance(CliRunner().invoke(pal, ["publish"]).exception, DataError)
    scores(command)
    done = CliRunner().invoke(pal, ["publish", "--json"])
    assert (done.exit_code, done.stderr) == (0, "") and json.loads(done.stdout)["schema"] == "pal.publish/1"


@pytest.mark.parametrize("every", ["0", "-1", "nan", "30", "1e9"])
def test_an_interval_that_nobody_would_believe(every: str, command: Config) -> None:
    done = invoke("--every", every)
    assert isinstance(done.exception, UsageError) and "below 30 s" in str(done.exception)


def test_one_publisher_at_a_time(command: Config) -> None:
    scores(command)
    with locked(command.table_path + ".lock", "x"):
        done = invoke()
    assert isinstance(done.exception, BusyError)


@pytest.mark.usefixtures("root")
def test_an_advising_daemon_gives_way_to_who_promises(config: Config, slurm: FakeSlurm) -> None:
    scores(config)
    now_s = time.time()
    advises = Publisher(config, CliClient(slurm), stays=False, by_turns=True)
    assert advises.publish(now_s).table is not None
    with promise.publishing(config.table_path, 0.0):  # the lock is free between its publications
        promises = publisher(config, slurm)
        assert promises.publish(now_s + 1).table is not None
        beside = advises.publish(now_s + 2)
        assert beside.table is None and beside.trouble == ()
        advises.stop(now_s + 3)
        assert read_table(config.table_path).header.clears == "daemon"
        assert heartbeat.fresh(config.snapshot_path, now_s + 3, MAX_AGE_S)


def test_a_place_that_does_not_exist(command: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PAL_PATHS_TABLE", "/nonexistent/pal_table.lua")
    done = invoke()
    assert isinstance(done.exception, DataError) and "mkdir /nonexistent" in str(done.exception)


@pytest.mark.parametrize("enforced", ["none", "associations,limits"])
def test_prices_are_published_where_all_partitions_take_a_job_alike(
    config: Config, slurm: FakeSlurm, enforced: str
) -> None:
    scores(config)
    config.prices = {"gpu": {GPU: 2.5}}
    overview, known = CliClient(slurm).overview(), snapshot.read(config.snapshot_path)
    rounds.write_table(config, overview, known, 1.0, "daemon", False, slurm={"AccountingStorageEnforce": enforced})
    found = read_table(config.table_path)[1].get("price.gpu")
    assert found == ("gpu=2.5" if enforced == "none" else None)


@pytest.mark.usefixtures("root")
def test_starts_have_one_writer_at_a_time(config: Config, slurm: FakeSlurm) -> None:
    """Two would write each run twice, and throw history away where both find the file full."""
    scores(config)
    written = Path(starts.path_of(config.snapshot_path))
    CliClient(slurm).submit(["-w", "n0", "--gres=gpu:1"], "#!/bin/sh\n")
    advises = Publisher(config, CliClient(slurm), stays=False, by_turns=True)
    with promise.publishing(config.table_path, 0.0):
        assert advises.publish(time.time()).trouble == () and not written.exists()
        publisher(config, slurm).publish(time.time())
    assert written.read_text().count("\n") == 1
    advises.publish(time.time())
    assert written.read_text().count("\n") == 1
    CliClient(slurm).submit(["-w", "n0", "--gres=gpu:1"], "#!/bin/sh\n")
    advises.publish(time.time())
    assert written.read_text().count("\n") == 2
