# SPDX-License-Identifier: MIT
"""The command-line backend on the fake Slurm, and its behaviour when Slurm fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_pal.base import config
from slurm_pal.base.errors import MissingPackageError, SlurmError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.offers import build_view, free_indexes, used_indexes
from slurm_pal.slurm import parse
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.slurm.pyslurm_client import PyslurmClient
from slurm_pal.slurm.told import clean_environment, job_environment
from slurm_pal.store import snapshot

from ...doubles.answers import Answers, Told

SCRIPT = "#!/bin/sh\nsleep 1\n"


def test_jobs_take_the_first_node_and_the_lowest_index() -> None:
    client = CliClient(FakeSlurm())
    first, second, pinned = (
        client.submit(argv, SCRIPT) for argv in (["-G1"], ["--gres=gpu:2"], ["-w", "n2", "-G", "1"])
    )
    jobs = {job.job_id: job.gpus for job in client.jobs()}
    assert jobs == {first: {"n0": (0,)}, second: {"n0": (1, 2)}, pinned: {"n2": (0,)}}


@pytest.mark.parametrize(
    ("index", "found"),
    [(2, 19), (5, 17), (9, 17), (4, None), (11, None), (0, 20), (99, None)],
)
def test_the_job_of_an_arrays_task(index: int, found: int | None) -> None:
    """Task 2 runs as job 19, task 0 has ended, 5 and 7 to 9 wait in the array's own record."""
    rows = [(19, 17, "2"), (17, 17, "5,7-9%2"), (20, 17, "0"), (21, 21, "4"), (22, "N/A", "N/A")]

    def squeue(argv: Sequence[str], stdin: str) -> Completed:
        assert argv[-2:] == ["-j", "17"]
        *ends, last = [field.split(":", 1)[1] for field in argv[argv.index("-O") + 1].split(",")]
        lines = ["".join(f"{text}{end}" for text, end in zip(row, [*ends, last], strict=True)) for row in rows]
        return Completed(0, "".join(f"{line}\n" for line in lines), "")

    assert CliClient(squeue).tasks(17, [index]) == ({} if found is None else {index: found})


def test_an_array_that_slurm_does_not_know_has_no_task() -> None:
    said = "slurm_load_jobs error: Invalid job id specified\n"
    assert CliClient(lambda argv, stdin: Completed(1, "", said)).tasks(17, [2]) == {}
    with pytest.raises(SlurmError, match="squeue failed"):
        CliClient(lambda argv, stdin: Completed(1, "", "connection refused\n")).tasks(17, [2])


@pytest.mark.parametrize(
    ("text", "has"),
    [("1-9", True), ("1-9:2", True), ("0-8:2", False), ("[1,5]", True), ("5%1", True), ("1,2,...", True), ("", False)],
)
def test_tasks_that_wait(text: str, has: bool) -> None:
    assert parse.has_task(text, 5) is has


def test_a_pinned_job_waits_until_its_list_is_cleared() -> None:
    slurm = FakeSlurm([FakeNode("n0", gpus=1), FakeNode("n1", gpus=1)])
    client = CliClient(slurm)
    client.submit(["-w", "n0", "-G1"], SCRIPT)
    waiting = client.submit(["-w", "n0", "-G1"], SCRIPT)
    assert client.job_states()[waiting] == ("PENDING", "Resources")
    client.update_job(waiting, ReqNodeList="", ExcNodeList="")
    job = client.job(waiting)
    assert job is not None and job.state == "RUNNING" and job.nodes == ("n1",)


def test_overview_reads_nodes_partitions_and_running_jobs_at_once() -> None:
    slurm = FakeSlurm()
    client = CliClient(slurm)
    client.submit(["--gres=gpu:4"], SCRIPT)
    calls = len(slurm.calls)
    overview = client.overview()
    assert len(slurm.calls) == calls + 2
    assert [node.name for node in overview.nodes] == ["n0", "n1", "n2", "n3"]
    assert overview.nodes[0].gpus_used == 4
    assert overview.partitions[0].default and overview.partitions[0].nodes == ("n0", "n1", "n2", "n3")
    assert used_indexes(overview.jobs) == {"n0": {0, 1, 2, 3}}


def test_cancel_ends_pending_jobs_only_when_asked_so() -> None:
    client = CliClient(FakeSlurm([FakeNode("n0", gpus=1)]))
    running, pending = client.submit(["-G1"], SCRIPT), client.submit(["-G1"], SCRIPT)
    client.cancel([running, pending], pending_only=True)
    states = {number: state for number, (state, _) in client.job_states().items()}
    assert states == {running: "RUNNING", pending: "CANCELLED"}
    client.cancel([])


def test_a_dead_controller_is_one_clear_error() -> None:
    slurm = FakeSlurm()
    slurm.down = True
    client = CliClient(slurm)
    for call in (client.overview, client.nodes, client.jobs, client.job_states, client.version, client.config):
        with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
            call()


def test_missing_and_silent_commands() -> None:
    with pytest.raises(SlurmError, match="not in PATH: apt-get install slurm-client"):
        subprocess_runner()(["no-such-slurm-command"], "")
    with pytest.raises(SlurmError, match=r"did not answer within 0\.1 s"):
        subprocess_runner(0.1)([sys.executable, "-c", "import time; time.sleep(30)"], "")


def test_our_calls_do_not_inherit_display_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    env = clean_environment()
    assert "SQUEUE_FORMAT" not in env and "SBATCH_PARTITION" not in env
    assert env["SLURM_TIME_FORMAT"] == "standard" and env["SLURM_CONF"] == "/etc/slurm/slurm.conf"


def test_a_job_of_ours_gets_little_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither libraries and GPUs of whoever begins a sweep, nor options of theirs for sbatch."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\n/usr/bin/env > {tmp_path}/seen\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setattr("os.environ", {
        "PATH": str(tmp_path), "HOME": "/h", "CUDA_VISIBLE_DEVICES": "3", "SBATCH_QOS": "x", "OMP_NUM_THREADS": "1",
        "SLURM_CONF": "/etc/slurm.conf", "SLURM_PAL_CONFIG": "/etc/pal.toml", "PYTHONPATH": "/x",
    })  # fmt: skip
    assert CliClient().submit(["-N1"], "#!/bin/sh\n") == 7
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    ours = {"PATH", "HOME", "LC_ALL", "SLURM_CONF", "SLURM_PAL_CONFIG", "SLURM_TIME_FORMAT"}
    assert ours == {*job_environment()} and ours <= seen <= ours | {"PWD", "_", "SHLVL", "OLDPWD"}


def test_control_characters_never_reach_an_update() -> None:
    with pytest.raises(UsageError, match="control character"):
        CliClient(FakeSlurm()).update_job(1, Comment="a\nReqNodeList=n1")


def test_odd_answers_are_errors_not_guesses() -> None:
    def runner(argv: Sequence[str], stdin: str) -> Completed:
        return Completed(0, "welcome to this cluster\n", "")

    client = CliClient(runner)
    with pytest.raises(SlurmError, match="no job id"):
        client.submit([], SCRIPT)
    with pytest.raises(SlurmError, match="not a release"):
        client.version()
    with pytest.raises(SlurmError, match="ended before"):
        client.job(1)
    assert client.nodes() == ()


def test_a_job_that_a_cut_answer_does_not_show_is_not_gone() -> None:
    slurm = FakeSlurm()
    first, second = (CliClient(slurm).submit(["-G1"], SCRIPT) for _ in range(2))

    def cut(argv: Sequence[str], stdin: str) -> Completed:
        done = slurm(argv, stdin)
        return done._replace(stdout=done.stdout[: done.stdout.index(f"JobId={second} ")])

    with pytest.raises(SlurmError, match="ended before it had shown 2 jobs"):
        CliClient(cut).jobs_of([first, second])


def test_what_users_write_into_a_job_makes_no_other_record() -> None:
    name = "a\nNodeName=evil State=IDLE JobState=RUNNING NodeList=n0"
    job = Told(1, name=name, comment="no\nReservationName=evil Nodes=n0")
    overview = CliClient(Answers([job, Told(2, indexes="1")])).overview(reservations=True)
    assert [node.name for node in overview.nodes] == ["n0"] and not overview.reservations
    assert [(job.job_id, job.nodes) for job in overview.jobs] == [(1, ("n0",)), (2, ("n0",))]


def test_some_jobs_at_once() -> None:
    slurm = FakeSlurm()
    client = CliClient(slurm)
    first, second = client.submit(["-G1"], SCRIPT), client.submit(["-G1"], SCRIPT)
    calls = len(slurm.calls)
    assert client.jobs_of([]) == {} and len(slurm.calls) == calls
    found = client.jobs_of([second, 99])
    assert list(found) == [second] and found[second].state == "RUNNING" and len(slurm.calls) == calls + 1
    assert list(client.jobs_of([first, second])) == [first, second]
    slurm.down = True
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        client.jobs_of([first])


def test_states_are_found_by_name_whatever_others_wrote_into_theirs() -> None:
    answers = Answers([Told(1, name="mine"), Told(2, name=".\n3~RUNNING~None~mine\n"), Told(4, state="COMPLETED")])
    client = CliClient(answers)
    assert client.job_states(name_prefix="mi") == {1: ("RUNNING", "None")}
    assert client.job_states().keys() == {1, 2, 4}
    assert "--me" in answers.asked[0] and "--me" not in answers.asked[1]


def test_a_requeue_stops_only_what_runs() -> None:
    slurm = FakeSlurm([FakeNode("n0", gpus=1)], completing=2)
    client = CliClient(slurm)
    running, waiting = client.submit(["-G1"], SCRIPT), client.submit(["-G1"], SCRIPT)
    client.requeue(running)
    client.requeue(waiting)
    assert [slurm.jobs[k].restarts for k in (running, waiting)] == [1, 0]
    assert client.jobs_of([running])[running].state == "COMPLETING"
    job = client.jobs_of([running])[running]
    assert (job.state, job.reason, client.jobs_of([waiting])[waiting].state) == ("PENDING", "BeginTime", "RUNNING")
    slurm.finish(waiting)
    client.requeue(waiting)
    assert slurm.jobs[waiting].state == "COMPLETED"
    client.update_job(running, StartTime="now")
    assert client.jobs_of([running])[running].state == "RUNNING"


def test_a_signal_reaches_the_batch_shell() -> None:
    slurm = FakeSlurm()
    client = CliClient(slurm)
    number = client.submit(["-G1"], SCRIPT)
    client.signal_batch(number, "USR1")
    assert slurm.jobs[number].signals == ["USR1"] and slurm.calls[-1][1:4] == ["-b", "-s", "USR1"]
    with pytest.raises(SlurmError, match="Invalid job id"):
        client.signal_batch(99, "USR1")


def test_nodes_are_changed_together() -> None:
    slurm = FakeSlurm()
    client = CliClient(slurm)
    client.update_nodes(["n0", "n1", "n3"], Weight="7", AvailableFeatures="a,b", ActiveFeatures="b")
    assert slurm.calls[-1][2] == "NodeName=n[0-1,3]"
    assert [(node.weight, node.features) for node in client.nodes()][1:3] == [(7, {"b"}), (1, frozenset())]
    calls = len(slurm.calls)
    client.update_nodes([], Weight="7")
    assert len(slurm.calls) == calls
    with pytest.raises(UsageError, match="control character"):
        client.update_nodes(["n0"], Comment="a\nb")


def test_statistics() -> None:
    text = "Server thread count:  3\nAgent queue size:    0\n\nMain schedule statistics\n\tCycles:   7\n\tCycles: 9\n"
    found = CliClient(lambda argv, stdin: Completed(0, text, "")).statistics()
    assert found == {"Server thread count": "3", "Agent queue size": "0", "Cycles": "7"}
    assert CliClient(FakeSlurm()).statistics()["Agent queue size"] == "0"


def test_marked_jobs_are_asked_for() -> None:
    slurm = FakeSlurm([FakeNode("n0", gpus=1)])
    client = CliClient(slurm)
    running, pinned = client.submit(["-G1"], SCRIPT), client.submit(["-w", "n0", "-G1"], SCRIPT)
    kept_off, said = client.submit(["-x", "n0", "-G1"], SCRIPT), client.submit(["-G1", "--comment=pal:job=A"], SCRIPT)
    foreign = client.submit(["-G1", "--comment=nepal:x"], SCRIPT)
    assert {job.job_id for job in client.overview().jobs} == {running, pinned}
    assert {job.job_id for job in client.overview(marked=True).jobs} == {running, pinned, kept_off, said}
    assert client.overview().queued == frozenset() and client.overview(marked=True).queued == {("gpu", "Resources")}
    slurm(["scontrol", "hold", str(foreign)], "")
    assert client.overview(marked=True).queued == frozenset()


def test_gpus_that_slurm_counts_without_an_index_are_taken_from_the_low_end() -> None:
    node = CliClient(FakeSlurm([FakeNode("n0", gpus=4)])).nodes()[0]
    assert free_indexes(node._replace(gpus_used=2), used={3}, claimed=0) == [1, 2]
    assert free_indexes(node, used=set(), claimed=2) == [2, 3]
    typed = node._replace(gpu_types=("v0", "v0", "v1", "v1"))
    assert free_indexes(typed, used=set(), claimed=0, gpu_type="v1") == [2, 3]


def test_a_view_holds_only_what_the_job_may_use_now(tmp_path: Path) -> None:
    client = CliClient(FakeSlurm())
    client.submit(["--gres=gpu:1"], SCRIPT)
    score = snapshot.GpuScore("n0", 1, "GPU-1", "m", {"A": 1.3, "C": 1.0}, {"A": "v1", "C": "v0"}, 1.0, 1.0, ())
    snapshot.publish(
        str(tmp_path / "s"), [score], cluster="c", epoch=1, now_s=2.0, centroids={"A": [1.0, 1.25], "C": [1.0]}
    )
    view = build_view(client.overview(), snapshot.read(str(tmp_path / "s")), GpuShape(1), "A", ["n0", "n3"])
    assert view.names == ["n0", "n3"] and view.free == [[1, 2, 3], [0, 1, 2, 3]]
    assert view.slowdown[0] == pytest.approx([1.3, 1.0, 1.0]) and view.level[0] == [1.25, 1.0, 1.0]
    exclusive = GpuShape(1, whole_nodes=True)
    assert build_view(client.overview(), snapshot.read(str(tmp_path / "s")), exclusive, "A", ["n0", "n3"]).names == [
        "n3"
    ]


PYSLURM = """
class Node:
    name, state, configured_gres, allocated_gres = "n1", "MIXED+DRAIN", {"gpu:v100": 4}, {"gpu:v100": 2}
    total_cpus = effective_cpus = 8
    allocated_cpus, real_memory, allocated_memory = 3, 1000, 500
    active_features, partitions, weight = ["a", "b"], ["gpu"], 7
class Job:
    id, name, state, state_reason, user_name, partition = 3, "multi", "RUNNING", None, "u", "gpu"
    allocated_nodes, required_nodes, excluded_nodes = "n[1-2]", None, None
    submit_time, start_time, end_time, time_limit, requeue_count = 1, 2, None, 60, 0
    comment, array_id, gres_per_node = None, None, {"gpu:v100": 2}
    def get_resource_layout_per_node(self):
        return {"n1": {"gres": {"gpu:v100": {"count": 2, "indexes": "1-2"}}}, "n2": {"gres": {}}}
class Nodes:
    load = staticmethod(lambda: {"n1": Node()})
class Jobs:
    load = staticmethod(lambda: {3: Job()})
"""


def test_pyslurm_is_read_in_a_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyslurm.py").write_text(PYSLURM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    client = PyslurmClient()
    (node,), (job,) = client.nodes(), client.jobs()
    assert node.gpu_types == ("v100",) * 4 and node.gpus_used == 2 and node.states == {"MIXED", "DRAIN"}
    assert job.gpus == {"n1": (1, 2), "n2": ()} and job.nodes == ("n1", "n2") and job.time_limit_s == 3600
    assert "pyslurm" not in sys.modules


def test_pyslurm_takes_partitions_from_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyslurm.py").write_text(PYSLURM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    slurm, child = FakeSlurm(), subprocess_runner()
    client = PyslurmClient(lambda argv, stdin: (child if argv[0] == sys.executable else slurm)(argv, stdin))
    overview = client.overview()
    assert [node.name for node in overview.nodes] == ["n1"] and [job.job_id for job in overview.jobs] == [3]
    assert overview.partitions[0].name == "gpu"


def test_the_backend_is_a_setting(tmp_path: Path) -> None:
    base = {"SLURM_PAL_CONFIG": str(tmp_path / "pal.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "pal.toml").write_text("")
    assert type(connect(config.load(base))) is CliClient
    assert type(connect(config.load(base | {"SLURM_PAL_SLURM_BACKEND": "pyslurm"}))) is PyslurmClient


def test_missing_or_dying_pyslurm_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    with pytest.raises(MissingPackageError, match=r"pip install 'slurm-pal\[pyslurm\]'"):
        PyslurmClient().nodes()
    (tmp_path / "pyslurm.py").write_text("import os\nos._exit(1)\n")
    with pytest.raises(SlurmError, match="pyslurm gave no answer"):
        PyslurmClient().nodes()
