# SPDX-License-Identifier: MIT
"""A user's own page on a real Slurm: pal explain of any job, the note at its end, avoiding slow GPUs, pal whatif."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.config import load
from slurm_pal.lab.lab import Lab
from slurm_pal.publisher.publication import Publisher
from slurm_pal.submit.lease_file import SCHEMA, Lease
from slurm_pal.submit.watcher import Watcher

from .conftest import short_directory, skip_without_slurm
from .test_filter import BATCH, EXPLAIN, PALSUB, Site

pytestmark = pytest.mark.real_slurm
PATIENCE_S = 60.0
PAL = EXPLAIN[:-1]
QUIET = ("--parsable", "-o", "/dev/null")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """n1 is the fastest node, n3 (1.4) the slow one; Slurm forgets a job soon after its end."""
    skip_without_slurm()
    with short_directory() as path:
        edits = [("MinJobAge=300", "MinJobAge=2")]
        with Lab.up(path, nodes=4, gpus=4, submit_filter=True, conf_edits=edits) as running:
            yield Site(running)


def explained(site: Site, *words: str) -> dict[str, Any]:
    done = site.run(*EXPLAIN, *words, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def slots(told: dict[str, Any]) -> list[tuple[str, int]]:
    return [(gpu["node"], gpu["index"]) for gpu in told["actual"]["gpus"]]


def gone(site: Site, *numbers: int) -> None:
    """Wait until Slurm has forgotten these jobs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(site.client.job(number) is not None for number in numbers):
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


def test_ended_jobs_keep_their_gpus_whoever_placed_them(site: Site) -> None:
    site.round()
    by_filter = site.submit("--gres=gpu:2", "-t", "5").job_id
    by_palsub = int(site.run(*PALSUB, *QUIET, "-t", "5", "--gres=gpu:1", "--wrap", "sleep 300").stdout)
    array = int(site.run("sbatch", *QUIET, "--gres=gpu:1", "--array=1-3", "--wrap", "sleep 300").stdout)
    for number in (by_filter, by_palsub):
        site.wait(number, lambda job: job.state == "RUNNING")
    deadline_s = time.monotonic() + PATIENCE_S
    while len(site.client.tasks(array, [1, 2, 3])) < 3 or site.run("squeue", "-h", "-t", "PD").stdout:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    site.round()
    tasks = site.client.tasks(array, [1, 2, 3])
    assert len(set(tasks.values())) == 3
    lists = f"{by_filter},{array}_[1-3],{by_palsub}"
    before = explained(site, lists)["jobs"]
    assert [row["verdict"]["gpus"] for row in before] == [2, 1, 1, 1, 1]
    verdict = explained(site, str(by_filter))["verdict"]
    assert verdict["slowest"] == 0.97 and verdict["slurm_alone"] == 1.02  # n1 instead of n0
    assert verdict["text"] == (
        "Your job got 2 GPUs; the slowest is 3 % faster than the median GPU here. "
        "Slurm alone would have given it one 2 % slower than the median"
    )
    assert site.run(*EXPLAIN, str(by_palsub)).stdout.startswith("Your job got 1 GPU; it is 3 % faster than")
    assert site.run("scancel", str(by_filter), str(by_palsub), str(array)).returncode == 0
    gone(site, by_filter, by_palsub, *tasks.values())
    after = explained(site, lists)["jobs"]
    assert [slots(row) for row in after] == [slots(row) for row in before]
    last = explained(site, "--last")
    assert last["job_id"] == by_palsub and last["verdict"]["gpus"] == 1 and last["actual"]["state"] is None
    assert slots(explained(site, f"{array}_2")) == slots(before[2])
    lines = site.run(*EXPLAIN, lists).stdout.splitlines()
    assert len(lines) == 6 and lines[0].startswith("5 jobs with 6 GPUs; the slowest, of job ")
    assert site.run(*EXPLAIN, "9999").returncode == 2 and site.run(*EXPLAIN, "9998,9999").returncode == 2


def test_the_note_survives_failure_requeue_and_a_restarted_run(site: Site, tmp_path: Path) -> None:
    """Also where the job's environment is hostile; the exit status is the script's own."""
    site.round()
    (tmp_path / "click.py").write_text("raise SystemExit(1)\n")
    fails = (
        "--pal-note",
        "--gres=gpu:1",
        f"--export=ALL,PYTHONPATH={tmp_path}",
        "--wrap",
        "echo mine; sleep 1; exit 7",
    )
    runs = ("--pal-note", "--gres=gpu:1", "--open-mode=append", "-t", "5", "--wrap", "echo run; sleep 300")
    out = [tmp_path / "fails", tmp_path / "runs"]
    first, second = (
        int(site.run(*PALSUB, "--parsable", "-o", str(path), *words).stdout)
        for path, words in zip(out, (fails, runs), strict=True)
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while "slurm-pal: " not in (out[0].read_text() if out[0].exists() else ""):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert re.fullmatch(
        r"mine\nslurm-pal: ran on a GPU at 0\.97 of a median GPU's time; Slurm alone would have given 1\.02\n",
        out[0].read_text(),
    )
    ended = site.wait(first, lambda job: job.state == "FAILED")
    assert ended.exit_code == "7:0"
    site.wait(second, lambda job: job.state == "RUNNING")
    inside = site.run("srun", "--overlap", f"--jobid={second}", "-n1", *PAL, "note")
    assert inside.stdout.startswith("slurm-pal: ran on a GPU at ") and inside.returncode == 0, inside.stderr
    assert site.run("scontrol", "requeue", str(second)).returncode == 0
    site.wait(second, lambda job: job.state == "RUNNING" and job.restarts == 1)
    time.sleep(1.0)
    assert site.run("scancel", str(second)).returncode == 0
    gone(site, second)
    lines = [line for line in out[1].read_text().splitlines() if line.startswith(("run", "slurm-pal: "))]
    assert [line.partition(" at ")[0] for line in lines] == ["run", "slurm-pal: ran on a GPU"] * 2
    assert "Slurm alone" in lines[1] and "Slurm alone" not in lines[3]


def test_signals_to_the_batch_shell_are_the_script_s(site: Site, tmp_path: Path) -> None:
    """Of `scancel --batch --signal`: with the note's wrapper around the script, and without it."""
    numbers = (26, 34, 63)  # VTALRM and two real-time signals
    traps = "".join(f"trap 'echo got {number}' {number}\n" for number in numbers)
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{traps}echo begun\nwhile :; do sleep 0.1; done\n")
    ends = []
    for words in ((*PALSUB, "--pal-note"), ("sbatch",)):
        out = tmp_path / f"{len(ends)}.out"
        done = site.run(*words, "--parsable", "-o", str(out), "-t", "5", str(script))
        job = int(done.stdout)
        said = "begun\n"
        for number in (*numbers, 50):  # of which the script has no trap for the last
            deadline_s = time.monotonic() + PATIENCE_S
            while not out.exists() or out.read_text() != said:
                assert time.monotonic() < deadline_s, out.read_text()
                time.sleep(0.1)
            site.run("scancel", f"--signal={number}", "--batch", str(job))
            said += f"got {number}\n"
        ended = site.wait(job, lambda job: job.state == "FAILED")
        ends.append((ended.exit_code, out.read_text()))
    assert ends[0] == ends[1] and ends[0][0] == "0:50"


def test_plain_sbatch_has_the_same_options(site: Site, tmp_path: Path) -> None:
    site.clear()
    site.round()
    out = tmp_path / "out"
    words = ("--pal-note", "--pal-avoid-slow=1.2", "--exclude=n2", "--gres=gpu:1", "-t", "1")
    done = site.run("sbatch", "--parsable", "-o", str(out), *words, "--wrap", "echo mine; sleep 2; exit 7")
    job = site.wait(int(done.stdout), lambda job: job.state == "FAILED")
    assert job.exit_code == "7:0" and job.nodes == ("n1",) and job.exc_nodes == ("n2", "n3")
    assert out.read_text() == (
        "mine\nslurm-pal: ran on a GPU at 0.97 of a median GPU's time; Slurm alone would have given 1.02\n"
    )


def test_a_site_may_have_the_line_in_admin_comments(site: Site) -> None:
    config = load(site.env)
    config.set("submit", "admin_note", True, "test")
    publisher = Publisher(config, site.client, stays=True)
    publisher.publish(time.time())
    number = site.submit("--gres=gpu:1", "-t", "5").job_id
    site.wait(number, lambda job: job.state == "RUNNING")
    publisher.publish(time.time())
    text = site.job(number).admin_comment
    assert text.startswith("pal:lease=") and text.endswith(
        "slurm-pal: ran on a GPU at 0.97 of a median GPU's time; Slurm alone would have given 1.02"
    )
    assert explained(site, str(number))["filter"]["act"] == "nodelist"
    site.run("scancel", str(number))


def test_avoiding_slow_gpus_waits_no_longer_than_they_cost(site: Site) -> None:
    """n3 (1.4) alone is free: a job of a minute waits for .4 x 30 s, and then runs there."""
    site.clear()
    full = [site.submit("-w", node, "--gres=gpu:4", "-t", "5").job_id for node in ("n0", "n1", "n2")]
    for number in full:
        site.wait(number, lambda job: job.state == "RUNNING")
    site.round()
    words = ("--pal-avoid-slow=1.2", "--parsable", "-o", "/dev/null", "--gres=gpu:1", "-t", "1", "--exclude=n2")
    number = int(site.run(*PALSUB, *words, "--wrap", "sleep 300").stdout)
    waits = site.job(number)
    assert waits.state == "PENDING" and waits.exc_nodes == ("n2", "n3") and "set=n2,n3" in waits.comment
    shown = explained(site, str(number))["decision"]["avoid_slow"]
    assert (shown["bound"], shown["nodes"], shown["seconds"], shown["refused"]) == (1.2, "n3", 12.0, "")
    deadline_s = time.monotonic() + PATIENCE_S
    while (job := site.job(number)).state == "PENDING":
        assert time.monotonic() < deadline_s
        site.round()
        time.sleep(0.5)
    assert job.nodes == ("n3",) and job.start_s - job.submit_s >= 11
    assert "kept off n3 for 12 s at most" in site.run(*EXPLAIN, str(number)).stdout
    refused = site.run(*PALSUB, *QUIET, "--pal-avoid-slow", "-N4", "--gres=gpu:1", "-t", "1", "--wrap", "sleep 1")
    assert refused.returncode == 0 and refused.stderr.splitlines() == [
        "palsub: --pal-avoid-slow: submitted as written, since no node would be left that could run it"
    ]
    assert site.job(int(refused.stdout)).exc_nodes == ()
    site.clear()


def test_the_users_watcher_takes_node_list_and_exclusion_back(site: Site, tmp_path: Path) -> None:
    """n1 is taken between decision and start: first the node list ends, then the exclusion."""
    site.clear()
    full = [site.submit("-w", node, "--gres=gpu:4", "-t", "5").job_id for node in ("n0", "n1", "n2")]
    for number in full:
        site.wait(number, lambda job: job.state == "RUNNING")
    number = site.client.submit(
        ["-o", "/dev/null", "--gres=gpu:1", "-t", "5", "-w", "n1", "--exclude=n3"], "#!/bin/sh\nsleep 60\n"
    )
    now_s = time.time()
    lease = Lease(number, now_s, now_s + 2, 1.0, now_s + 60, pinned="n1", excluded="n3", avoid_until_s=now_s + 6)
    (tmp_path / f"{number}.json").write_text(json.dumps({"schema": SCHEMA, **lease._asdict()}))
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def sleep(seconds: float) -> None:
        job = site.job(number)
        if not seen or seen[-1] != (job.req_nodes, job.exc_nodes):
            seen.append((job.req_nodes, job.exc_nodes))
        time.sleep(seconds)

    Watcher(str(tmp_path), site.client, sleep=sleep).run()
    job = site.wait(number, lambda job: job.state == "RUNNING")
    assert seen[:2] == [(("n1",), ("n3",)), ((), ("n3",))] and (job.nodes, job.exc_nodes) == (("n3",), ())
    site.clear()


def test_whatif_says_when_and_where_and_changes_nothing(site: Site, tmp_path: Path) -> None:
    site.clear()
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --gres=gpu:2 -t 10 -o /dev/null\nsleep 60\n")

    def asked(*words: str) -> dict[str, Any]:
        done = site.run(*PAL, "whatif", *words, "--json")
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    before = site.run("squeue", "-h", "-t", "all", "-o", "%A").stdout
    told = asked("--exclude", "slow=1.2", str(script))
    rows = {row["kind"]: row for row in told["variants"]}
    assert (rows["as written"]["gpus"], rows["as written"]["slowdown"]) == ("n1:0,1", 0.97), told
    assert rows["fewer"]["options"] == {"gres": "gpu:1"} and rows["shorter"]["options"] == {"time": "5"}
    assert rows["later"]["wait_s"] > 60 or time.localtime().tm_hour == 22
    assert told["avoided"]["nodes"] == ["n3"] and rows["without"]["wait_s"] == 0
    assert told["slurm_commands"] == 4 + len(rows)
    assert set(site.run("squeue", "-h", "-t", "all", "-o", "%A").stdout.split()) <= set(before.split())  # none is new
    full = [site.submit("-w", node, "--gres=gpu:4", "-t", "5").job_id for node in ("n0", "n1", "n2")]
    for number in full:
        site.wait(number, lambda job: job.state == "RUNNING")
    waits = site.submit("--gres=gpu:4", "-t", "10", "-w", "n1").job_id
    site.wait(waits, lambda job: job.start_s > time.time())
    of_job = asked(str(waits))
    own = of_job["variants"][0]
    assert 60 < own["wait_s"] <= 300 and own["nodes"] == ["n1"] and own["gpus"] is None
    site.run("scancel", str(waits))
    text = site.run(*PAL, "whatif", str(script)).stdout
    assert text.startswith(
        "As written the job starts now on n3:0,1, the slowest GPU 40 % slower than the median GPU here"
    )
    lost = site.run(*PAL, "whatif", "--exclude", "slow=1.2", "--", "--gres=gpu:4", "-t", "10", "--wrap", "true").stdout
    assert lost.startswith(
        "Avoiding GPUs slower than 1.2 gives up 4 of 16 GPUs (25 %): n3, where 4 GPUs are such; for "
    )
    assert "it waits 5 min longer" in lost.splitlines()[0] or "it waits 4 min longer" in lost.splitlines()[0], lost
    for words, said in (
        (["no-such.sh"], "script no-such.sh was not found"), (["99999"], "job 99999 is unknown"),
        (["--at", "now;x", str(script)], "--at 'now;x' is not a time"), ([], "name a job, a script, or --exclude"),
        (["--exclude", "fast"], "is neither slow"),
    ):  # fmt: skip
        done = site.run(*PAL, "whatif", *words)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    site.clear()


def test_the_filter_avoids_slow_gpus_for_those_who_want_it(site: Site) -> None:
    site.clear()
    words = (*BATCH, "--gres=gpu:1", "-t", "1", "--exclude=n2", "--wrap", "sleep 300")
    done = site.run("env", "SLURM_PAL_AVOID_SLOW=1.2", *words)
    job = site.wait(int(done.stdout), lambda job: job.state == "RUNNING")
    assert job.nodes == ("n1",) and job.exc_nodes == ("n2", "n3") and done.stderr == ""
    told = explained(site, str(job.job_id))
    assert told["filter"]["avoid"] == "1.2" and told["verdict"]["slurm_alone"] == 1.02
    all_nodes = ("-N4", "--gres=gpu:1", "-t", "1", "--wrap", "true")
    done = site.run("env", "SLURM_PAL_AVOID_SLOW=1", *BATCH, *all_nodes)
    assert done.returncode == 0 and "avoid-slow: submitted as written" in done.stderr, done.stderr
    assert site.job(int(done.stdout)).exc_nodes == ()
    text = site.run(*EXPLAIN, done.stdout.strip()).stdout
    assert "GPUs slower than 1.1 are to be avoided: submitted as written" in text
    site.clear()
