# SPDX-License-Identifier: MIT
"""sbatch's stand-in: one job is sent once, and sbatch is run in its place only where nothing was sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from slurm_pal.base.errors import NotByRestError, UsageError
from slurm_pal.slurm.rest_program import stand_in
from slurm_pal.submit import rest_options
from slurm_pal.submit.argv import parse
from slurm_pal.submit.rest_sbatch import in_force

from ...doubles.rest_server import OPENAPI, RestServer, offers, told

SUBMIT = "/slurm/v0.0.42/job/submit"
SECRET = "ey.se-cr.et"


def run(where: str, *words: str, path: Path, script: bytes = b"#!/bin/sh\n") -> subprocess.CompletedProcess[bytes]:
    env = {
        "PATH": str(path), "SLURM_JWT": SECRET, "SLURM_PAL_SLURM_BACKEND": "rest", "SLURM_PAL_SLURM_REST": where,
        "SLURM_PAL_CONFIG": str(path / "pal.toml"), "HOME": str(path), "MINE": "here",
    }  # fmt: skip
    (path / "pal.toml").touch()
    argv = stand_in().argv(["sbatch", *words])
    return subprocess.run(argv, env=env, input=script, capture_output=True, check=False, cwd=path)


def with_sbatch(path: Path) -> Path:
    (path / "sbatch").write_text('#!/bin/sh\nread -r line\necho "ran $# $line"\n')
    (path / "sbatch").chmod(0o755)
    return path


def asked(*words: str, **variables: str) -> dict[str, str]:
    return in_force(parse([*words, "--wrap=true"]), variables, None)


def test_variables_count_as_for_sbatch() -> None:
    """Those that its programs of three releases name, and no others."""
    assert asked(SBATCH_COMMENT="x", SBATCH_EXTRA="x", SBATCH_WAIT4SWITCH="2").keys() == {"wrap"}
    assert asked(SBATCH_BURST_BUFFER="x", SBATCH_CLUSTER_CONSTRAINT="y").keys() > {"bb", "cluster-constraint"}
    for name in ("SPREAD_SEGMENTS", "CONSOLIDATE_SEGMENTS", "CONTAINER_TYPE"):
        with pytest.raises(NotByRestError, match="cannot be given --"):
            rest_options.described(asked(**{f"SBATCH_{name}": "1"}), 45)
    assert asked("--switches=1", SBATCH_WAIT4SWITCH="2")["switches"] == "1@2"
    assert asked("--switches=1@3", SBATCH_WAIT4SWITCH="2")["switches"] == "1@3"
    assert asked(SBATCH_REQ_SWITCH="1", SBATCH_WAIT4SWITCH="2")["switches"] == "1@2"
    with pytest.raises(UsageError, match="only one of --mem"):
        asked("--mem=1G", "--mem-per-cpu=1G")
    assert asked("--mem-per-cpu=1G", SBATCH_MEM_PER_NODE="2G").keys() == {"wrap", "mem-per-cpu"}


@pytest.mark.parametrize(("version", "kinds"), [(38, "END,FAIL"), (42, ["END", "FAIL"]), (45, ["FAIL"])])
def test_mail_types_and_folders_are_sbatchs(version: int, kinds: object, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    submit = f"/slurm/v0.0.{version}/job/submit"
    with RestServer({OPENAPI: offers(version), submit: told({"job_id": 9, "errors": []})}) as server:
        words = ("--mail-type=END", "--mail-type=FAIL", "-D", "link/..")
        assert run(server.where, *words, path=tmp_path).stdout == b"Submitted batch job 9\n"
        job = json.loads(posted(server)[0].partition("\r\n\r\n")[2])["job"]
    assert job["mail_type"] == kinds
    assert job["current_working_directory"] == f"{tmp_path}/link/..", "not what lexically is the same"


def test_how_gpus_are_bound_is_the_users_word_first() -> None:
    for name, value in (("gpu-bind", "closest"), ("tres-bind", "gres/gpu:closest")):
        found = rest_options.described({"gpus-per-task": "1", "ntasks": "2", name: value}, 42)
        assert found["tres_bind"] == "gres/gpu:closest" and found["tres_per_task"] == "gres/gpu=1"
    assert rest_options.described({"gpus-per-task": "1", "ntasks": "2"}, 42)["tres_bind"] == "gres/gpu:per_task:1"
    assert rest_options.described({"gpus-per-task": "2", "gpus": "4"}, 42)["tasks"] == 2
    with pytest.raises(NotByRestError, match="no multiple"):
        rest_options.described({"gpus-per-task": "2", "gpus": "3"}, 42)
    assert rest_options.described({"ntasks-per-node": "2"}, 38) == {"tasks_per_node": 2, "tasks": 2}
    assert rest_options.described({"time": "0"}, 42)["time_limit"]["infinite"] is True
    assert rest_options.described({"switches": "1@1:30"}, 42)["wait_for_switch"] == 90


def posted(server: RestServer) -> list[str]:
    return [request for request in server.requests if request.startswith("POST")]


def test_a_job_is_sent_with_what_sbatch_would_send(tmp_path: Path) -> None:
    answers: dict[str, bytes | Iterable[bytes]] = {OPENAPI: offers(42)}
    answers[SUBMIT] = told({"job_id": 9, "errors": [{"error_number": 0}], "job_submit_user_msg": "hello\x1b[1m\nthere"})
    body = b"#!/bin/sh\n#SBATCH -n2 --mem=1G\nexit\n"
    with RestServer(answers) as server:
        done = run(server.where, "-t", "5", path=tmp_path, script=body)
        assert (done.returncode, done.stdout) == (0, b"Submitted batch job 9\n")
        assert done.stderr == b"palsub: hello\\x1b[1m\npalsub: there\n"
        assert run(server.where, "--parsable", path=tmp_path).stdout == b"9\n"
        assert run(server.where, "--quiet", path=tmp_path).stdout == b""
    head, _, text = posted(server)[0].partition("\r\n\r\n")
    job = json.loads(text)["job"]
    assert f"X-SLURM-USER-TOKEN: {SECRET}" in head and SECRET not in text
    assert (job["tasks"], job["minimum_cpus"], job["memory_per_node"]["number"], job["name"]) == (2, 2, 1024, "sbatch")
    assert job["script"] == body.decode() and job["current_working_directory"] == str(tmp_path)
    assert {"MINE=here", "SLURM_JOB_NAME=sbatch"} <= {*job["environment"]}


@pytest.mark.parametrize("answer", [b"", told("<html>", "504 NO", "text/html"), told({"errors": []})])
def test_a_job_whose_answer_is_lost_is_neither_sent_again_nor_given_to_sbatch(answer: bytes, tmp_path: Path) -> None:
    with RestServer({OPENAPI: offers(42), SUBMIT: answer}) as server:
        done = run(server.where, path=with_sbatch(tmp_path))
        assert len(posted(server)) == 1
    assert done.returncode == 1 and not done.stdout and done.stderr.startswith(b"palsub: the job may exist: slurmrestd")
    assert done.stderr.count(b"\n") == 1 and SECRET.encode() not in done.stderr


def test_a_job_that_slurm_refuses_is_not_given_to_sbatch(tmp_path: Path) -> None:
    refused = told(
        {"errors": [{"description": "Batch job", "error_number": 2000, "error": "Bad \x1b partition"}]}, "500 NO"
    )
    with RestServer({OPENAPI: offers(42), SUBMIT: refused}) as server:
        done = run(server.where, path=with_sbatch(tmp_path))
    text = b"palsub: slurmrestd refused the job: Batch job: Bad \\x1b partition\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", text)


def test_sbatch_is_run_where_nothing_was_sent(tmp_path: Path) -> None:
    reasons: list[tuple[dict[str, bytes | Iterable[bytes]], Sequence[str], bytes, bytes]] = [
        ({OPENAPI: offers(42)}, ["--hint=x"], b"#!/bin/sh\n", b"cannot be given --hint=x"),
        ({OPENAPI: offers(39)}, ["-n1"], b"#!/bin/sh\n", b"offers v0.0.39"),
        ({OPENAPI: offers(99)}, ["-n1"], b"#!/bin/sh\n", b"offers v0.0.99"),
        ({OPENAPI: told("no", "401 NO")}, ["-n1"], b"#!/bin/sh\n", b"does not accept this user"),
        ({OPENAPI: offers(42), SUBMIT: told("no", "401 NO")}, ["-n1"], b"#!/bin/sh\n", b"does not accept this user"),
        ({OPENAPI: offers(42)}, ["-n1"], b"#!/bin/sh\n# \xff\n", b"is not UTF-8"),
        (
            {OPENAPI: offers(42, without="segment_size")},
            ["--segment=1"],
            b"#!/bin/sh\n",
            b"cannot be given --segment=1",
        ),
        ({OPENAPI: told({"paths": {"/slurm/v0.0.42/nodes/": {}}})}, ["-n1"], b"#!/bin/sh\n", b"has no keys of jobs"),
        ({OPENAPI: offers(42)}, ["--version"], b"#!/bin/sh\n", b"or palsub --pal-help"),
        ({OPENAPI: offers(42)}, ["--no-such"], b"#!/bin/sh\n", b"--no-such is not an option"),
    ]
    bare = tmp_path / "bare"
    bare.mkdir()
    for answers, words, script, text in reasons:
        with RestServer(answers) as server:
            done = run(server.where, *words, path=bare, script=script)
            assert done.returncode in (2, 6) and done.stderr.startswith(b"palsub: not submitted: "), text
            assert text in done.stderr and done.stderr.count(b"\n") == 1 and SECRET.encode() not in done.stderr
            done = run(server.where, *words, path=with_sbatch(tmp_path), script=script)
        assert done.stdout == b"ran %d #!/bin/sh\n" % len(words) and b"palsub: submitted by sbatch: " in done.stderr
    done = run("unix:/nonexistent", path=bare)
    assert done.returncode == 6 and b"cannot be reached (No such file or directory)" in done.stderr
    assert run("gopher://x", path=bare).returncode == 7


def test_palsub_under_sbatchs_name_is_not_run_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(with_sbatch(tmp_path) / "sbatch")])
    done = run("unix:/nonexistent", path=tmp_path)
    assert done.returncode == 6 and done.stderr.startswith(b"palsub: not submitted: ") and not done.stdout


@pytest.mark.parametrize("version", [38, 42])
def test_every_option_of_sbatch_has_a_key_or_is_refused(version: int) -> None:
    """An option that is read here, and for which there is no key, is never left out silently."""
    from slurm_pal.submit.options_table import LONG

    table = rest_options.NEW if version >= 40 else rest_options.OLD
    for name in {*LONG} - {*table} - rest_options.LOCAL:
        with pytest.raises(NotByRestError, match=f"cannot be given --{name}"):
            rest_options.described({name: ""}, version)
    for name in ("wait", "test-only", "clusters", "hint", "uid", "nodefile", "x11", "propagate", "bbf"):
        assert name not in table and name not in rest_options.LOCAL


def test_values_without_a_counterpart() -> None:
    for name, value in (
        ("mem", "1X"), ("time", "soon"), ("nice", "x"), ("signal", "R:USR1"), ("nodelist", "./file"), ("gres", "none"),
        ("mail-type", "END,SOON"), ("gpus-per-task", "a100:1"), ("exclusive", "yes"), ("priority", "TOP"),
    ):  # fmt: skip
        with pytest.raises(NotByRestError, match=f"--{name}={value}: leave it out"):
            rest_options.described({name: value}, 42)
    with pytest.raises(NotByRestError, match="two values for tres_per_node"):
        rest_options.described({"gres": "gpu:1", "gpus-per-node": "1"}, 42)
    flags = rest_options.described({"spread-job": "", "gres-flags": "enforce-binding"}, 42)["flags"]
    assert flags == ["SPREAD_JOB", "GRES_BINDING_ENFORCED"]
