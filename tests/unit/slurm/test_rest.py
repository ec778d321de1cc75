# SPDX-License-Identifier: MIT
"""The REST backend on answers of three releases, and on servers that are none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base import config
from slurm_pal.base.errors import ConfigError, NotByRestError, SlurmError
from slurm_pal.slurm import rest_wire
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.rest_client import RestClient
from slurm_pal.slurm.rest_wire import Wire

from ...doubles.rest_server import OPENAPI, RestServer, offers, told

DATA = Path(__file__).parents[2] / "data"
BASE = {"22.05.8": ("/slurm/v0.0.38", 38), "24.11.5": ("/slurm/v0.0.42", 42), "26.05.5": ("/slurm/v0.0.45", 45)}
UNABLE: dict[str, Callable[[RestClient], object]] = {
    "update_partition": lambda c: c.update_partition("gpu", Nodes="n1"), "release": lambda c: c.release("r"),
    "reserve": lambda c: c.reserve("r", "n1", 1, "root"), "fence": lambda c: c.fence("r", ["n1"], 1.0, 1.0, "root"),
    "config": lambda c: c.config(), "site_factors": lambda c: c.site_factors(),
}  # fmt: skip


def client_of(server: RestServer, jwt: str = "", timeout_s: float = 30.0, most: int = 2**20) -> RestClient:
    return RestClient(Wire(rest_wire.address(server.where), jwt, timeout_s, most), conf="/nonexistent")


@pytest.fixture(params=sorted(BASE))
def shown(request: pytest.FixtureRequest) -> Iterator[RestClient]:
    """A client of what this release of slurmrestd showed."""
    base, version = BASE[request.param]
    table = json.loads((DATA / f"slurm-{request.param}" / "rest.json").read_text())
    answers: dict[str, bytes | Iterable[bytes]] = {f"{base}/{what}": told(body) for what, body in table.items()}
    answers[f"{base}/ping"] = told({"meta": table["nodes"]["meta"], "errors": []})
    with RestServer(answers | {OPENAPI: offers(36, version - 1, version, slash="/")}) as server:
        yield client_of(server)


def test_nodes_of_all_releases(shown: RestClient) -> None:
    n1, n2 = shown.nodes()
    assert (n1.name, n1.states, n1.gpus_used, n1.gpu_types) == ("n1", {"MIXED"}, 2, ("v100",) * 4)
    assert (n1.cpus, n1.cpus_used, n1.memory_mib, n1.partitions, n1.weight) == (8, 1, 1000, ("gpu",), 1)
    assert (n2.name, n2.states, n2.gpus_used) == ("n2", {"IDLE"}, 0)


def test_jobs_of_all_releases(shown: RestClient) -> None:
    (job,) = shown.jobs()
    assert (job.job_id, job.state, job.name, job.user, job.uid) == (1, "RUNNING", "r1", "root", 0)
    assert (job.gpus, job.gpus_given, job.gpus_per_node, job.nodes) == ({"n1": (0, 1)}, 2, 2, ("n1",))
    assert (job.unlimited, job.time_limit_s, job.end_s, job.batch, job.may_requeue) == (True, None, 0.0, True, True)
    assert (job.asks.gpu_types, job.asks.nodes_min, job.asks.nodes_max) == ({"v100"}, 1, 1)
    assert 1795211490 < job.submit_s <= job.start_s and job.array_job_id is None and not job.het
    assert job.exit_code == "0:0" and not job.asks.whole_nodes


def test_partitions_in_both_forms_and_the_release(shown: RestClient) -> None:
    overview = shown.overview()
    (gpu,) = overview.partitions
    assert gpu.default, "v0.0.42 shows none, and there is one partition"
    assert (gpu.name, gpu.up, gpu.nodes, gpu.max_time_s) == ("gpu", True, ("n1", "n2"), None)
    if shown.version() == (22, 5):
        assert (gpu.tier, gpu.grace_s, gpu.preempt, gpu.default_time_s) == (3, 10, "REQUEUE", 1800)
        assert gpu.counting.mem_cpu_mib == 500 and gpu.counting.most_cpus == 0
        assert gpu.admits == (("AllowAccounts", "a,b"),)
    else:
        assert (gpu.tier, gpu.default_time_s, gpu.counting.most_cpus, gpu.admits) == (1, None, 0, ())
    assert [job.job_id for job in overview.jobs] == [1] and shown.version() in ((22, 5), (24, 11), (26, 5))


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"job_state": ["CANCELLED", "COMPLETING"]}, {"state": "COMPLETING"}),
        ({"job_state": ["PENDING", "REQUEUED"]}, {"state": "REQUEUED"}),
        ({"job_state": ["NEW_WORD"]}, {"state": "UNKNOWN"}),
        ({"job_state": "PENDING", "node_count": 1, "max_nodes": 4, "shared": "none"}, {"state": "PENDING"}),
        ({"state_reason": "ReqNodeNotAvail", "state_description": "ReqNodeNotAvail, n1"},
         {"reason": "ReqNodeNotAvail,_n1"}),
        ({"exit_code": 256 + 9}, {"exit_code": "1:9"}),
        ({"exit_code": {"return_code": {"set": True, "infinite": False, "number": 3}}}, {"exit_code": "3:0"}),
        ({"comment": "one\ntwo JobId=7", "required_nodes": "n[1-2]"},
         {"comment": "one two JobId=7", "req_nodes": ("n1", "n2")}),
        ({"required_nodes": "n[1-"}, {"user": "", "req_nodes": ()}),  # no list of Slurm's: nobody's
        ({"time_limit": {"set": True, "infinite": False, "number": 90}}, {"time_limit_s": 5400, "unlimited": False}),
        ({"array_job_id": 3, "array_task_id": 0}, {"array_job_id": 3, "array_task_id": 0}),
        ({"job_resources": {"nodes": "n[1-3]"}, "gres_detail": ["gpu:1(IDX:2)"]},
         {"gpus": {"n1": (), "n2": (), "n3": ()}}),
        ({"gres_detail": None, "nice": True, "cpus": 10**30, "name": 7, "job_resources": []}, {"nice": 0, "name": ""}),
    ],
)  # fmt: skip
def test_forms_of_a_job(row: dict[str, Any], wanted: dict[str, Any]) -> None:
    with RestServer({OPENAPI: offers(38), "/slurm/v0.0.38/job/7": told({"jobs": [{"job_id": 7, **row}]})}) as server:
        job = client_of(server).job(7)
    assert job is not None and {name: getattr(job, name) for name in wanted} == wanted
    assert job.asks.nodes_max == row.get("max_nodes", 1)


def test_a_few_jobs_are_asked_for_one_by_one_and_many_at_once() -> None:
    gone = told({"errors": [{"error_number": 2017, "error": "Invalid job id specified"}], "jobs": []}, "500 ERROR")
    base = "/slurm/v0.0.40"
    answers = {f"{base}/job/{n}": told({"jobs": [{"job_id": n}, {"job_id": 99}]}) for n in (1, 2)}
    answers |= {f"{base}/job/3": gone, f"{base}/jobs": told({"jobs": [{"job_id": n} for n in range(1, 9)]})}
    with RestServer(answers | {OPENAPI: offers(40)}) as server:
        client = client_of(server)
        assert sorted(client.jobs_of([1, 2, 3])) == [1, 2] and client.job(3) is None
        assert sorted(client.jobs_of([1, 2, 3, 4, 5, 55])) == [1, 2, 3, 4, 5]
    assert [request.split()[1] for request in server.requests[-1:]] == [f"{base}/jobs"]
    assert sum(OPENAPI in request for request in server.requests) == 1, "the document is read once"


def test_tasks_of_an_array() -> None:
    rows = [
        {"job_id": 17, "array_job_id": 17, "array_task_id": None, "array_task_string": "5,7-9%2"},
        {"job_id": 19, "array_job_id": 17, "array_task_id": 2}, {"job_id": 21, "array_job_id": 4, "array_task_id": 3},
    ]  # fmt: skip
    with RestServer({OPENAPI: offers(38), "/slurm/v0.0.38/job/17": told({"jobs": rows})}) as server:
        client = client_of(server)
        assert client.tasks(17, [2, 5, 9, 3, 11]) == {2: 19, 5: 17, 9: 17}


def test_reservations_that_are_active() -> None:
    now_s = int(time.time())
    spans = {"now": (now_s - 60, now_s + 600), "later": (now_s + 600, now_s + 900), "over": (now_s - 90, now_s - 60)}
    rows = [{"name": name, "node_list": "n1", "start_time": a, "end_time": b} for name, (a, b) in spans.items()]
    answers = {"/reservations": {"reservations": rows}, "/nodes": {"nodes": [{"name": "n1", "reason": "fan"}]},
               "/partitions": {"partitions": [{"name": "p", "nodes": "n1"}]}, "/jobs": {"jobs": []}}  # fmt: skip
    with RestServer({OPENAPI: offers(38)} | {f"/slurm/v0.0.38{p}": told(b) for p, b in answers.items()}) as server:
        client = client_of(server)
        assert client.overview(reservations=True).reservations == {"now": ("n1",)}
        assert (client.node_reason("n1"), client.node_reason("n2")) == ("fan", "")


def test_the_token_and_its_user_are_in_the_head() -> None:
    with RestServer({OPENAPI: told("", "401 UNAUTHORIZED")}) as server, pytest.raises(SlurmError) as caught:
        client_of(server, "abc.def").nodes()
    assert "X-SLURM-USER-TOKEN: abc.def" in server.requests[0] and "X-SLURM-USER-NAME: " in server.requests[0]
    assert "does not accept this user (HTTP 401): set slurm.rest_token" in str(caught.value)
    assert "abc.def" not in str(caught.value)


def test_a_token_that_slurmctld_refuses_is_named_as_a_reason() -> None:
    refused = told({"errors": [{"error_number": -1, "error": "Unspecified error"}]})
    with RestServer({OPENAPI: offers(38), "/slurm/v0.0.38/nodes": refused}) as server:
        with pytest.raises(SlurmError, match=r"Unspecified error \(so it is also with a token that has expired"):
            client_of(server, "old").nodes()
        with pytest.raises(SlurmError, match=r"Unspecified error$"):
            client_of(server).nodes()


def trickle() -> Iterator[bytes]:
    """A byte now and then, for ten seconds."""
    yield b"HTTP/1.1 200 OK\r\n\r\n{"
    for _ in range(500):
        time.sleep(0.02)
        yield b" "


BAD: list[tuple[Mapping[str, bytes | Iterable[bytes]], str]] = [
    ({OPENAPI: told("<html><body>It works!\x1b[31m", kind="text/html")},
     r"sent text/html and no JSON \(HTTP 200\): <html><body>It works!\\x1b\[31m$"),
    ({OPENAPI: told("{" * 100000)}, "sent JSON that is cut short or broken"),
    ({OPENAPI: told("[1]")}, "and no JSON"),
    ({OPENAPI: told('{"paths": ')}, "sent JSON that is cut short or broken"),
    ({OPENAPI: told({"paths": {}})[:-5]}, "ended before its answer was complete"),
    ({OPENAPI: told("x" * 2**21)}, "answered with more than 1 MiB"),
    ({OPENAPI: b"HTTP/1.1 200 OK\r\n\r\n{" + b" " * 2**21}, "answered with more than 1 MiB"),
    ({OPENAPI: b"220 smtp ready\r\n"}, r"speaks no HTTP \(BadStatusLine\)"),
    ({OPENAPI: b""}, "cannot be reached|without an answer"),
    ({OPENAPI: trickle()}, "did not answer within 0.5 s"),
    ({OPENAPI: told({})}, r"has no OpenAPI document \(HTTP 200\): correct slurm.rest"),
    ({}, r"sent application/json and no JSON \(HTTP 404\): Unable find requested URL"),
    ({OPENAPI: offers(36, 99)}, r"offers v0.0.36, v0.0.99, and v0.0.37 to v0.0.45 are known here"),
    ({OPENAPI: offers(38), "/slurm/v0.0.38/nodes": told({"errors": [{"error": "Unable to contact slurm\x1b"}]})},
     r"GET nodes failed: Unable to contact slurm\\x1b"),
    ({OPENAPI: offers(38), "/slurm/v0.0.38/nodes": told({"errors": []}, "500 ERROR")}, "GET nodes failed: HTTP 500"),
    ({OPENAPI: offers(38), "/slurm/v0.0.38/nodes": told({"errors": []})}, "GET nodes shows no nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "words"), BAD)
def test_what_is_no_answer_is_one_clear_line(answers: Mapping[str, bytes | Iterable[bytes]], words: str) -> None:
    with RestServer(answers) as server, pytest.raises(SlurmError, match=words) as caught:
        client_of(server, timeout_s=0.5).nodes()
    assert str(caught.value).startswith("slurmrestd") and "\n" not in str(caught.value)


def test_a_socket_that_somebody_serves_and_one_that_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"/proc/self/cwd/s{os.getpid()}"  # short enough, wherever tmp_path is
    with RestServer({OPENAPI: offers(38), "/slurm/v0.0.38/nodes": told({"nodes": []})}, path) as server:
        assert client_of(server).nodes() == () and "Host: localhost" in server.requests[0]
    with pytest.raises(SlurmError, match=r"cannot be reached \(Connection refused\): start it, or correct slurm.rest"):
        client_of(server).nodes()
    os.unlink(path)
    with pytest.raises(SlurmError, match="No such file or directory"):
        client_of(server).nodes()


@pytest.mark.parametrize("name", sorted(UNABLE))
def test_what_slurmrestd_cannot_do_is_refused_before_anybody_is_asked(name: str) -> None:
    with RestServer({}) as server, pytest.raises(NotByRestError, match="SLURM_PAL_SLURM_BACKEND=cli"):
        UNABLE[name](client_of(server))
    assert not server.requests


@pytest.mark.parametrize(
    "text",
    ["", "unix:rel", "unix:", "/run/x", "ftp://h", "http://", "http://u:p@h", "http://h:99999", "http://h?x",
     "http://h h", "https://h#x", "http://h\r\nX: y"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be unix:/PATH, http://HOST:PORT or https://HOST:PORT"):
        rest_wire.address(text)


def test_addresses() -> None:
    assert rest_wire.address("unix:/run/slurmrestd.socket")[1:3] == ("unix", "/run/slurmrestd.socket")
    assert rest_wire.address("https://[::1]:6820/rest/")[1:] == ("https", "::1", 6820, "/rest")


def test_only_a_token_that_is_ones_own_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("SLURM_JWT=eyJ.a-_b\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=rf"others can read {file} \(mode 0640\): chmod 600"):
        rest_wire.token(str(file), {})
    file.chmod(0o600)
    assert rest_wire.token(str(file), {}) == "eyJ.a-_b"
    assert rest_wire.token(str(file), {"SLURM_JWT": "own"}) == "own" and rest_wire.token("", {}) == ""
    for text in ("", "a b", "a\r\nX: y", "\xe9", "x" * 20000):
        file.write_text(text)
        with pytest.raises(ConfigError, match="holds no token: write what scontrol token prints"):
            rest_wire.token(str(file), {})
    with pytest.raises(ConfigError, match=r"\$SLURM_JWT holds no token"):
        rest_wire.token("", {"SLURM_JWT": "a\nb"})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        rest_wire.token(str(tmp_path / "none"), {})
    with pytest.raises(ConfigError, match="is not a regular file"):
        rest_wire.token(str(tmp_path), {})
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ConfigError, match=f"belongs to uid {uid}, not to you"):
        rest_wire.token(str(file), {})


def test_rest_is_a_backend(tmp_path: Path) -> None:
    with RestServer({OPENAPI: offers(38)}) as server:
        (tmp_path / "pal.toml").write_text(f'[slurm]\nbackend = "rest"\nrest = "{server.where}"\n')
        loaded = config.load({"SLURM_PAL_CONFIG": str(tmp_path / "pal.toml"), "XDG_CONFIG_HOME": str(tmp_path)})
        assert type(connect(loaded)) is RestClient and not server.requests
        with pytest.raises(NotByRestError, match=r"as sweeps do: use .cli. where Slurm's commands are"):
            connect(loaded, sweeps=True)
