# SPDX-License-Identifier: MIT
"""A real slurmrestd: jobs that come through it are placed as palsub's, and what the backends read agrees."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from slurm_pal.base.config import load
from slurm_pal.base.errors import MissingPackageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs, slurm_version
from slurm_pal.publisher.publication import Publisher
from slurm_pal.slurm import releases
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.rest_client import RestClient
from slurm_pal.slurm.rest_wire import Wire, address

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .scored import publish_slowdowns

pytestmark = pytest.mark.real_slurm
SLOWDOWNS = {"n0": 1.02, "n1": 0.97, "n2": 1.0, "n3": 1.4}
SCRIPT = "#!/bin/sh\nsleep 300\n"
PAL = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()")


class Site:
    """A lab with slurmrestd and the filter, which is this process's Slurm."""

    def __init__(self, lab: Lab) -> None:
        self.socket, self.env = lab.directory.rest_socket, lab.environ()
        self.cli = CliClient(conf=lab.directory.conf)
        self.rest = RestClient(Wire(address(f"unix:{self.socket}")), lab.directory.conf)
        publish_slowdowns(load(self.env), SLOWDOWNS)
        self.publisher = Publisher(load(self.env), self.cli, stays=True)

    def publish(self) -> None:
        """No jobs, and a table that says so."""
        self.cli.cancel([job.job_id for job in self.cli.jobs()])
        alive = {"PENDING", "RUNNING", "COMPLETING"}
        self.until(lambda: not alive & {state for state, _ in self.cli.job_states().values()})
        time.sleep(1.1)  # the table knows of what was given away in earlier seconds only
        self.publisher.publish(time.time())

    def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline_s, self.cli.jobs()
            time.sleep(queue_of.LOOK_S)

    def post(self, script: str, gres: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Submit as any client of slurmrestd would, in the form of its newest version."""
        version = max(path.split("/")[2] for path in self.get("/openapi/v3")["paths"] if path.startswith("/slurm/v"))
        job: dict[str, object] = {"name": "by-rest", "current_working_directory": "/", "standard_output": "/dev/null"}
        if version > "v0.0.38":
            pairs = [f"{name}={value}" for name, value in environment.items()]
            job |= {"tres_per_node": f"gres/{gres}", "environment": pairs}
        else:
            job |= {"gres": gres, "environment": environment}
        return self.get(f"/slurm/{version}/job/submit", {"script": script, "job": job})

    def get(self, path: str, body: object = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.socket)
        head = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, head)
        with connection.getresponse() as response:
            answer: dict[str, Any] = json.loads(response.read())
        connection.close()
        return answer

    def job(self, answer: dict[str, Any]) -> SlurmJob:
        assert not answer["errors"], answer
        found = self.cli.job(answer["job_id"])
        assert found is not None
        return found

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = self.env | {"SLURM_PAL_SLURM_BACKEND": "rest", "SLURM_PAL_SLURM_REST": f"unix:{self.socket}"} | variables
        return subprocess.run([*PAL, *words], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    skip_without_slurm()
    try:
        programs = find_programs(rest=True)
    except MissingPackageError as error:
        pytest.skip(str(error))
    if releases.has(slurm_version(programs["slurmctld"]), "slurmrestd refuses SlurmUser"):
        pytest.skip("slurmrestd of this release does not run as the user of a lab")
    with (
        short_directory() as path,
        Lab.up(path, nodes=4, gpus=4, submit_filter=True, rest=True) as lab,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert lab.status().state == "up" and lab.status().daemons["slurmrestd"] == 1
        for name, value in lab.variables().items():
            patch.setenv(name, value)
        yield Site(lab)


PATH = {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("script", "variables", "mark"),
    [
        ("#!/bin/sh\n#PAL class=A\nsleep 300\n", {}, "class=A;from=#PAL;"),
        ("#!/bin/sh\n#PAL app=resnet50 movable\nsleep 300\n", {}, "class=A;from=#PAL:resnet50;mov=1;"),
        (SCRIPT, {"SLURM_PAL_CLASS": "B"}, "class=B;from=SLURM_PAL_CLASS;"),
        (SCRIPT, {"SLURM_PAL_APP": "resnet50"}, "class=A;from=SLURM_PAL_APP:resnet50;"),
        (SCRIPT, {"SLURM_PAL_OFF": "1"}, "act=none;why=off;"),
    ],
)
def test_a_job_by_rest_is_placed_by_what_it_says(site: Site, script: str, variables: dict[str, str], mark: str) -> None:
    site.publish()
    job = site.job(site.post(script, gres="gpu:2", environment=PATH | variables))
    off = "SLURM_PAL_OFF" in variables
    assert mark in job.admin_comment and job.req_nodes == (() if off else ("n1",))
    if off or not script.startswith("#!/bin/sh\n#PAL class"):
        return
    site.until(lambda: getattr(site.cli.job(job.job_id), "nodes", ()) == ("n1",))
    site.publish()
    palsub = [sys.executable, "-P", "-m", "slurm_pal.cli.palsub", "--pal-class", "A", "--parsable", "--gres=gpu:2"]
    done = subprocess.run([*palsub, "-o", "/dev/null", "--wrap", "sleep 300"], capture_output=True, text=True)
    same = site.cli.job(int(done.stdout))
    assert same is not None and same.req_nodes == ("n1",), "as palsub places it"


def test_a_warning_of_the_filter_comes_back_by_rest(site: Site) -> None:
    answer = site.post("#!/bin/sh\n#PAL app=nobody-knows\nsleep 300\n", gres="gpu:1", environment=PATH)
    assert "nobody-knows is not an application known here" in answer["job_submit_user_msg"]


def in_one_state(site: Site, words: Mapping[str, Any]) -> tuple[Overview, Overview]:
    """What both say while nothing changes between them."""
    deadline_s = time.monotonic() + 30
    while True:
        told, seen, again = (client.overview(**words) for client in (site.cli, site.rest, site.cli))
        if told._replace(jobs=()) == again._replace(jobs=()):
            return told, seen
        assert time.monotonic() < deadline_s, (told, again)


def test_the_backends_agree(site: Site) -> None:
    """All that both read of nodes, partitions, reservations and jobs of many kinds."""
    site.publish()

    def submit(*words: str) -> int:
        return site.cli.submit([*words, "-o", "/dev/null"], SCRIPT)

    failed = site.cli.submit(["-o", "/dev/null"], "#!/bin/sh\nexit 3\n")
    site.until(lambda: getattr(site.cli.job(failed), "state", "") == "FAILED")
    first = submit("--gres=gpu:2", '--comment=h\xe9 "x" pal:job=A;from=me\nJobId=7', "-J", "na me=1 UserId=0(0)")
    submit("-w", "n0", "-N1", "--gpus=2", "--exclusive", "-t", "10")
    array = submit("-w", "n0", "-N1", "--exclude=n2", "--gpus-per-node=2", "--mem=4G", "--array=1-3%2")
    submit("--hold", "--nodes=1-4", "--gpus=6", "--mem-per-cpu=1G", "--nice=5")
    submit("-N2", "--gpus-per-node=1", "--no-requeue", "-t", "30", "--export=NONE")
    submit("--begin=now+1hour", "--gres=gpu:1")
    subprocess.run(
        ["scontrol", "create", "reservation", "ReservationName=now", "StartTime=now", "Duration=10", "Nodes=n3",
         f"Users={os.environ.get('USER', 'root')}", "Flags=IGNORE_JOBS"], check=True,
    )  # fmt: skip
    site.cli.fence("later", ["n2"], 3600, 60, "root")
    try:
        site.until(lambda: sum(job.state == "RUNNING" for job in site.cli.jobs()) == 3)
        time.sleep(1.5)  # a pass of backfill may still change reasons
        for words in ({}, {"marked": True, "reservations": True}, {"marked": True, "whole": frozenset({"gpu"})}):
            told, seen = in_one_state(site, words)
            if site.cli.version() >= (24, 11):  # v0.0.42 does not show this; the only partition is the default
                less = tuple(one._replace(preempt="") for one in told.partitions)
                told = told._replace(partitions=less)
            assert seen._replace(jobs=()) == told._replace(jobs=()), words
            assert [job.job_id for job in seen.jobs] == sorted(job.job_id for job in told.jobs)
        assert seen.reservations == {} and site.rest.overview(reservations=True).reservations == {"now": ("n3",)}
        for one, other in zip(site.cli.jobs(), site.rest.jobs(), strict=True):
            ended = one.state in ("FAILED", "CANCELLED")  # slurmrestd forgets what these had
            left = {"raw": {}} | ({"gpus_given": 0, "asks": None, "array_task_id": None} if ended else {})
            assert one._replace(**left) == other._replace(**left)
        assert site.cli.job_states() == site.rest.job_states() and site.cli.job_states("na ").keys() == {first}
        assert site.rest.job_states("na ").keys() == {first} and site.rest.job_states(user="nobody") == {}
        own = {job.array_task_id: job.job_id for job in site.cli.jobs() if job.array_job_id == array}
        assert site.rest.tasks(array, [1, 3, 9]) == {task: own.get(task, array) for task in (1, 3)}
        assert site.rest.tasks(999_999, [1]) == {}
        assert site.rest.job(999_999) is None and site.cli.version() == site.rest.version()
        both = [client.statistics().get("Agent queue size") for client in (site.cli, site.rest)]
        assert both[0] == both[1] is not None
    finally:
        site.cli.release("now")
        site.cli.release("later")


def test_commands_that_read_need_no_command_of_slurm(site: Site, tmp_path: Any) -> None:  # noqa: ANN401
    site.publish()
    job = site.job(site.post("#!/bin/sh\n#PAL class=A\nsleep 300\n", gres="gpu:1", environment=PATH))
    site.until(lambda: getattr(site.cli.job(job.job_id), "nodes", ()) == ("n1",))
    without = {"PATH": str(tmp_path)}
    nodes = json.loads(site.run("nodes", "--json", **without).stdout)["nodes"]
    assert [(row["node"], row["gpus_in_use"]) for row in nodes] == [("n0", 0), ("n1", 1), ("n2", 0), ("n3", 0)]
    gpus = json.loads(site.run("gpus", "--json", **without).stdout)["gpus"]
    assert [row["in_use"] for row in gpus if row["node"] == "n1"] == [True, False, False, False]
    assert "sent to n1: the free GPUs that suit it best" in site.run("explain", str(job.job_id), **without).stdout
    findings = json.loads(site.run("doctor", "--json", **without).stdout)["findings"]
    slurm = [
        (one["level"], one["text"].partition(";")[0].partition(",")[0]) for one in findings if one["topic"] == "slurm"
    ]
    assert slurm == [("note", "not in PATH: sbatch"), ("ok", "slurmrestd answers")]
    probed = site.run("probe", "--wrap", "true", **without)
    assert probed.returncode == 8 and "pal: probe of wrap: job " in probed.stderr, probed
    assert "its GPU was not seen at work" in probed.stderr, "it has run, and ended at once"
