# SPDX-License-Identifier: MIT
"""Changes through slurmrestd: each is sent once, and what cannot be sent is refused before that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from slurm_pal.base.errors import AnswerLostError, NotByRestError, NotNowError, RefusedError, SlurmError, UsageError
from slurm_pal.slurm import rest_wire
from slurm_pal.slurm.rest_client import RestClient
from slurm_pal.slurm.rest_wire import Wire

from ...doubles.rest_server import OPENAPI, RestServer, offers, told

UNABLE_OLD: dict[str, Callable[[RestClient], object]] = {
    "requeue": lambda c: c.requeue(1), "signal": lambda c: c.signal_batch(1, "USR1"),
    "nodes": lambda c: c.update_nodes(["n1"], Weight="2"), "admin": lambda c: c.update_job(1, AdminComment="x"),
    "factor": lambda c: c.update_jobs([1, 2], SiteFactor="1"), "sweeps": lambda c: c.check_sweeps(),
}  # fmt: skip
ALL = UNABLE_OLD | {
    "cancel": lambda c: c.cancel([1]), "unhold": lambda c: c.unhold(1), "update": lambda c: c.update_job(1, Nice="1"),
}  # fmt: skip


def client_of(server: RestServer, jwt: str = "") -> RestClient:
    return RestClient(Wire(rest_wire.address(server.where), jwt, 5.0, 2**20), conf="/nonexistent")


def orders(server: RestServer) -> list[tuple[str, str, object]]:
    """Method, path and body of what was to change something."""
    heads = [request for request in server.requests if not request.startswith("GET")]
    parts = [(*request.split()[:2], request.partition("\r\n\r\n")[2]) for request in heads]
    return [(method, path, json.loads(body) if body else None) for method, path, body in parts]


@pytest.mark.parametrize("name", sorted(UNABLE_OLD))
def test_what_an_old_version_has_no_key_for_is_refused_before_anything_is_sent(name: str) -> None:
    with RestServer({OPENAPI: offers(38)}) as server, pytest.raises(NotByRestError, match=r"v0\.0\.38.*use .*Slurm's"):
        UNABLE_OLD[name](client_of(server))
    assert not orders(server)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("version", [37, 39])
def test_versions_that_only_read(name: str, version: int) -> None:
    with RestServer({OPENAPI: offers(version)}) as server, pytest.raises(NotByRestError, match=rf"v0\.0\.{version}"):
        ALL[name](client_of(server))
    assert not orders(server)


def test_the_newest_version_is_written_in_its_own_form() -> None:
    done = told({"errors": [], "status": []})
    answers: dict[str, bytes | Iterable[bytes]] = {OPENAPI: offers(36, 38, 45, 99)}
    answers |= {f"/slurm/v0.0.45/{what}": done for what in ("job/7", "jobs/", "nodes/", "jobs/requeue")}
    with RestServer(answers) as server:
        client = client_of(server)
        client.update_job(7, ReqNodeList="", ExcNodeList="n[1-2]", StartTime="now+2", SiteFactor="-3")
        client.cancel([7, 8], pending_only=True)
        client.cancel([])
        client.update_nodes(["n1", "n2"], Weight="4", AvailableFeatures="a,b")
        client.update_nodes([], Weight="4")
        client.requeue(7)
        with pytest.raises(UsageError, match="TimeLimit=soon is not a value"):
            client.update_job(7, TimeLimit="soon")
        with pytest.raises(UsageError, match="control character"):
            client.update_job(7, Comment="a\nb")
    body = {"required_nodes": [""], "excluded_nodes": ["n[1-2]"], "begin_time": "now+2", "site_factor": -3}
    weight = {"set": True, "infinite": False, "number": 4}
    assert orders(server) == [
        ("POST", "/slurm/v0.0.45/job/7", body),
        ("DELETE", "/slurm/v0.0.45/jobs/", {"jobs": ["7", "8"], "job_state": ["PENDING"]}),
        ("POST", "/slurm/v0.0.45/nodes/", {"name": ["n1", "n2"], "weight": weight, "features": ["a,b"]}),
        ("POST", "/slurm/v0.0.45/jobs/requeue", {"jobs": ["7"], "flags": ["Incomplete"]}),
    ]


def test_a_key_that_this_version_would_ignore_is_refused() -> None:
    for version in (42, 45):
        with RestServer({OPENAPI: offers(version, without="site_factor")}) as server:
            with pytest.raises(NotByRestError, match=rf"cannot change site_factor of jobs in v0\.0\.{version}"):
                client_of(server).update_job(7, SiteFactor="1")
            assert not orders(server)


LOST: list[bytes | Iterable[bytes]] = [
    b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", told("<html>", "502 NO", "text/html"), b"nonsense\r\n\r\n",
    told({"errors": [{"error_number": 1803, "error": "Unable to contact slurm controller (receive failure)"}]}),
    told({"errors": [{"error_number": 5004, "error": "Zero Bytes were transmitted or received"}]}), told("[]"),
]  # fmt: skip


@pytest.mark.parametrize("answer", LOST, ids=range(len(LOST)))
def test_a_change_whose_answer_is_lost_is_not_sent_again(answer: bytes) -> None:
    with RestServer({OPENAPI: offers(42), "/slurm/v0.0.42/job/7": answer}) as server:
        with pytest.raises(AnswerLostError, match="may have been carried out"):
            client_of(server).update_job(7, Comment="x")
        assert len(orders(server)) == 1


def test_what_is_certain_is_not_called_lost(tmp_path: Path) -> None:
    refused = told(
        {"errors": [{"error_number": 2017, "description": "Job update", "error": "Invalid job id"}]}, "404 NO"
    )
    busy = told({"errors": [{"error_number": 11, "error": "Resource temporarily unavailable"}]}, "422 NO")
    paths = {1: refused, 2: busy, 3: told({"errors": []}), 4: told("no", "401 NO"), 5: told("<html>", "413 NO")}
    answers: dict[str, bytes | Iterable[bytes]] = {f"/slurm/v0.0.42/job/{job}": one for job, one in paths.items()}
    with RestServer(answers | {OPENAPI: offers(42)}) as server:
        client = client_of(server, "se.cr.et")
        with pytest.raises(RefusedError, match=r"POST job/1 refused: Job update: Invalid job id$"):
            client.update_jobs([1, 3], Comment="x")
        assert [path[-1] for _, path, _ in orders(server)] == ["1", "3"], "one does not keep the others from it"
        with pytest.raises(NotNowError):
            client.update_job(2, Comment="x")
        for job in (4, 5):
            with pytest.raises(SlurmError) as caught:
                client.update_job(job, Comment="x")
            assert not isinstance(caught.value, AnswerLostError) and "se.cr.et" not in str(caught.value)
    where = rest_wire.address(f"unix:{tmp_path}/none")
    with pytest.raises(SlurmError, match="cannot be reached") as caught:
        Wire(where).change("POST", "/x", {})
    assert not isinstance(caught.value, AnswerLostError)


@pytest.mark.parametrize("version", [38, 42])
def test_jobs_that_have_ended_need_no_cancelling(version: int) -> None:
    gone = [{"error_number": 2017, "error_code": 2017, "error": "Invalid job id specified"}]
    held = [{"error": {"code": 2021, "string": "Job/step already completed"}, "step_id": "7"}]
    base = f"/slurm/v0.0.{version}"
    answers: dict[str, bytes | Iterable[bytes]] = {f"{base}/job/7": told({"errors": gone}, "500 NO")}
    answers |= {f"{base}/jobs/": told({"errors": [], "status": held}), OPENAPI: offers(version)}
    with RestServer(answers) as server:
        client_of(server).cancel([7])
    denied = [{"error": {"code": 2010, "string": "Invalid user id"}, "step_id": "7"}]
    errors = told({"errors": [{"error_code": 2010, "error": "Invalid user id"}]}, "500 NO")
    answers |= {f"{base}/job/7": errors, f"{base}/jobs/": told({"errors": [], "status": denied})}
    with RestServer(answers) as server, pytest.raises(RefusedError, match="Invalid user id"):
        client_of(server).cancel([7])


def test_submitting_is_the_stand_ins_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "pal.toml").touch()
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(tmp_path / "pal.toml"))
    answers: dict[str, bytes | Iterable[bytes]] = {OPENAPI: offers(42)}
    path, script = "/slurm/v0.0.42/job/submit", "#!/bin/sh\ntrue\n"
    with RestServer(answers | {path: told({"job_id": 71, "errors": []})}) as server:
        assert client_of(server).submit(["-N1", "-t", "5"], script) == 71
        ((method, _, body),) = orders(server)
        assert method == "POST" and isinstance(body, dict) and body["job"]["nodes"] == "1"
        with pytest.raises(NotByRestError, match=r"v0\.0\.42\) cannot be given --hint=x"):
            client_of(server).submit(["--hint=x"], script)
    with RestServer(answers | {path: b""}) as server:
        with pytest.raises(AnswerLostError, match="the job may exist"):
            client_of(server).submit([], script)
        assert len(orders(server)) == 1
