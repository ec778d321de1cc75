# SPDX-License-Identifier: MIT
"""The same bodies on the fake Slurm and on a real one: what slurm-pal relies on holds on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.offers import build_view
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Rule
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import snapshot

from . import queue_of

SLEEP = "#!/bin/sh\nsleep 60\n"
NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real_slurm)])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliClient]:
    """A Slurm of four empty nodes with four GPUs each, reached through its commands on PATH."""
    if request.param == "fake":
        commands = tmp_path / "bin"
        commands.mkdir()
        write_shims(str(commands), str(tmp_path / "fake.json"), [FakeNode(name) for name in NODES])
        monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    else:
        for name, value in request.getfixturevalue("lab").variables().items():
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_PAL_PATHS_SNAPSHOT", str(tmp_path / "snapshot"))
    monkeypatch.chdir(tmp_path)
    found = CliClient()
    yield found
    live = [
        number for number, (state, _) in found.job_states().items() if state in ("PENDING", "RUNNING", "COMPLETING")
    ]
    found.cancel(live)
    for number in live:
        until(found, number, lambda job: job.state not in ("PENDING", "RUNNING", "COMPLETING"))


def until(client: CliClient, number: int, wanted: Callable[[SlurmJob], bool], limit_s: float = 20.0) -> SlurmJob:
    """Poll a job until it is as wanted; fail with what it is when it never becomes so."""
    deadline_s = time.monotonic() + limit_s
    while True:
        job = client.job(number)
        assert job is not None
        if wanted(job):
            return job
        assert time.monotonic() < deadline_s, job.raw
        time.sleep(queue_of.LOOK_S)


def running(client: CliClient, *argv: str) -> SlurmJob:
    number = client.submit([*argv, "-o", "/dev/null"], SLEEP)
    return until(client, number, lambda job: job.state == "RUNNING")


def test_gpus_are_handed_out_lowest_index_first_on_the_first_node_that_fits(client: CliClient) -> None:
    assert running(client, "--gres=gpu:1").gpus == {"n0": (0,)}
    assert running(client, "-w", "n1", "--gres=gpu:3").gpus == {"n1": (0, 1, 2)}
    assert running(client, "--gres=gpu:2").gpus == {"n0": (1, 2)}, "first fit, not best fit"
    assert running(client, "--gres=gpu:1").gpus == {"n0": (3,)}


def test_the_prediction_of_plain_slurm_and_of_its_indexes_comes_true(client: CliClient) -> None:
    rule = Rule("A", 1.7, 1.2)
    shapes = [
        (("--gres=gpu:3",), GpuShape(3, 1, 3)),
        (("--gres=gpu:2",), GpuShape(2, 1, 2)),
        (("--gres=gpu:4",), GpuShape(4, 1, 4)),
        (("--gres=gpu:1",), GpuShape(1, 1, 1)),
        (("-N2", "--gres=gpu:1"), GpuShape(2, 2, 1)),
    ]
    empty = publish({})
    for argv, shape in shapes:
        view = build_view(client.overview(), empty, shape, "A", NODES)
        predicted = plain_pick(view, shape, rule)
        assert predicted is not None
        expected = {view.names[n]: g for n, g in zip(predicted.nodes, predicted.gpus, strict=True)}
        assert running(client, *argv).gpus == expected, argv


def test_an_exclusive_job_is_given_every_gpu_of_its_node(client: CliClient) -> None:
    assert running(client, "--gres=gpu:1", "--exclusive").gpus == {"n0": (0, 1, 2, 3)}


def test_a_total_fills_nodes_in_order(client: CliClient) -> None:
    assert running(client, "--gpus=6").gpus == {"n0": (0, 1, 2, 3), "n1": (0, 1)}


def test_a_node_list_is_hard_and_its_clearing_frees_the_job(client: CliClient) -> None:
    running(client, "-w", "n2", "--gres=gpu:4")
    number = client.submit(["-w", "n2", "--gres=gpu:1", "-o", "/dev/null"], SLEEP)
    waiting = until(client, number, lambda job: job.reason == "Resources")
    assert waiting.state == "PENDING" and waiting.req_nodes == ("n2",)
    client.update_job(number, ReqNodeList="", ExcNodeList="")
    # Which node is not foretold here: the backfill pass that starts it need not take the first.
    assert until(client, number, lambda job: job.state == "RUNNING").nodes != ("n2",)


def test_an_exclusion_is_hard_too(client: CliClient) -> None:
    for name in NODES[1:]:
        running(client, "-w", name, "--gres=gpu:4")
    number = client.submit(["-x", "n0", "--gres=gpu:1", "-o", "/dev/null"], SLEEP)
    waiting = until(client, number, lambda job: job.reason == "Resources")
    assert waiting.exc_nodes == ("n0",)


def test_a_pinned_pending_job_is_a_claim_in_the_overview(client: CliClient) -> None:
    running(client, "-w", "n3", "--gres=gpu:4")
    number = client.submit(["-w", "n3", "--gres=gpu:2", "-o", "/dev/null"], SLEEP)
    until(client, number, lambda job: job.reason == "Resources")
    overview = client.overview()
    assert [job.job_id for job in overview.jobs if job.state == "PENDING"] == [number]
    view = build_view(overview, publish({}), GpuShape(1, 1, 1), "A", NODES)
    assert "n3" not in view.names


def test_states_by_name_and_cancelling(client: CliClient) -> None:
    mine = client.submit(["-J", "pal-test:x", "--gres=gpu:1", "-o", "/dev/null"], SLEEP)
    client.submit(["-J", "other", "--gres=gpu:1", "-o", "/dev/null"], SLEEP)
    assert mine in client.job_states(name_prefix="pal-test:")
    client.cancel([mine])
    until(client, mine, lambda job: job.state == "CANCELLED")
    client.cancel([mine])  # a second time does no harm


def test_a_wrong_node_name_is_slurms_own_word(client: CliClient) -> None:
    with pytest.raises(SlurmError, match="Invalid node name specified"):
        client.submit(["-w", "n99", "--gres=gpu:1"], SLEEP)
    assert client.job(999_999) is None


def publish(slowdowns: dict[tuple[str, int], float]) -> snapshot.Snapshot:
    """A snapshot with these class-A slowdowns, as the site under test publishes it."""
    path = os.environ["SLURM_PAL_PATHS_SNAPSHOT"]
    scores = [
        snapshot.GpuScore(node, index, f"GPU-{node}-{index}", "m", {"A": slow, "B": 1.0, "C": 1.0},
                          dict.fromkeys("ABC", "v0"), time.time(), 1.0, ())
        for (node, index), slow in slowdowns.items()
    ]  # fmt: skip
    snapshot.publish(path, scores, cluster="", epoch=1, now_s=time.time(), centroids={c: [1.0] for c in "ABC"})
    return snapshot.read(path)


def palsub(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slurm_pal.cli.palsub", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_palsub_places_by_class_and_says_why(client: CliClient) -> None:
    publish(
        {(node, index): 1.5 if node == "n0" else 0.96 if node == "n2" else 1.0 for node in NODES for index in range(4)}
    )
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1 --no-requeue -o /dev/null\n#PAL class=A\nsleep 60\n")
    plain = running(client, "--gres=gpu:1")
    assert plain.nodes == ("n0",)
    done = palsub("--pal-watch", "--parsable", "job.sh")
    assert done.returncode == 0 and done.stderr == ""
    job = until(client, int(done.stdout), lambda job: job.state == "RUNNING")
    assert job.nodes == ("n2",)
    argv = [
        sys.executable,
        "-c",
        "from slurm_pal.cli.start import main; main()",
        "explain",
        done.stdout.strip(),
        "--json",
    ]
    body = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert body["actual"]["gpus"][0]["node"] == "n2" and body["decision"] is not None
    wait_for_the_watcher(client)


def test_a_jobs_name_is_shown_and_does_nothing_to_the_terminal(client: CliClient) -> None:
    job = running(client, "--gres=gpu:1", "--job-name=x\x1b]0;owned\x07\r\u202etxt")
    argv = [sys.executable, "-c", "from slurm_pal.cli.start import main; main()", "explain", str(job.job_id)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"Job {job.job_id} (x\\x1b]0;owned\\x07\\x0d\\u202etxt): RUNNING" in done.stdout
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()


def test_palsub_off_is_plain_sbatch(client: CliClient) -> None:
    publish({("n0", index): 1.5 for index in range(4)})
    done = palsub("--pal-off", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 60")
    assert until(client, int(done.stdout), lambda job: job.state == "RUNNING").nodes == ("n0",)


def wait_for_the_watcher(client: CliClient) -> None:
    """The watcher ends by itself when jobs that cannot be requeued have started."""
    leases = Path(os.environ["XDG_STATE_HOME"]) / "slurm-pal" / "leases"
    deadline_s = time.monotonic() + 30
    while list(leases.glob("*/*.json")):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.real_slurm
@pytest.mark.parametrize("client", ["real"], indirect=True)
def test_line_ends_in_a_users_words_hide_and_forge_nothing(client: CliClient) -> None:
    """From 26.05 on the command line stands in the job's record, before the comments."""
    words = ["-wn0", "--gres=gpu:1", "-J", "a\nNodeName=evil State=IDLE", "--comment", "one\ntwo"]
    done = subprocess.run(
        ["sbatch", "--parsable", *words, "--wrap", "sleep 60\nReservationName=evil Nodes=n0 AdminComment=no"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    number = int(done.stdout)
    until(client, number, lambda job: job.state == "RUNNING")
    client.update_job(number, AdminComment="pal:lease=60")
    overview = client.overview(reservations=True, marked=True)
    assert tuple(node.name for node in overview.nodes) == NODES and not overview.reservations
    job = next(job for job in overview.jobs if job.job_id == number)
    assert (job.raw["AdminComment"], job.gpus_per_node, job.gpus) == ("pal:lease=60", 1, {"n0": (0,)})
    assert job.comment.split()[:2] == ["one", "two"]
