# SPDX-License-Identifier: MIT
"""pal-profile as a user meets it: output, exit codes, JSON; on a fake Slurm that runs its jobs."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.base.files import locked
from slurm_pal.cli import pal_profile
from slurm_pal.cli import sweep as sweep_commands
from slurm_pal.emulation.gpus import draw_registry, set_fault, write_registry
from slurm_pal.profiling.sweep import progress, sweep
from slurm_pal.profiling.sweep.lock import only_sweep
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.store import snapshot


class Site:
    """A state directory, a lab's registry and a fake Slurm; `run` is one command line."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.slurm = FakeSlurm([FakeNode(f"n{i}") for i in range(3)], execute=True)
        self.path = tmp_path
        self.registry = str(tmp_path / "emu_gpus.json")
        write_registry(self.registry, draw_registry(["n0", "n1", "n2"], 4, 5))
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("SLURM_PAL_PATHS_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setattr(sweep_commands, "connect", lambda config, **_: CliClient(self.slurm))
        monkeypatch.setattr(sweep, "SUBMIT_INTERVAL_S", 0.0)
        monkeypatch.setattr(sweep, "POLL_MIN_S", 0.01)
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, *argv: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        self._monkeypatch.setattr(sys, "argv", ["pal-profile", *argv])
        with pytest.raises(SystemExit) as ended:
            pal_profile.main()
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err

    def well(self, *argv: str) -> None:
        """A command line that ends well; what it printed is shown if it does not."""
        assert (ran := self.run(*argv))[0] == 0, ran

    def json(self, *argv: str) -> dict[str, Any]:
        code, out, err = self.run(*argv, "--json")
        assert code == 0, err
        table: dict[str, Any] = json.loads(out)
        return table


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, monkeypatch, capsys)


def test_plan_says_what_would_be_done_and_does_nothing(site: Site) -> None:
    site.slurm.nodes["n1"].state = "IDLE+DRAIN"
    code, out, err = site.run("plan", "--max-parallel", "2")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.startswith("2 nodes, 8 GPUs, about ") and "2 at once: about" in first and first.endswith("(emulated)")
    assert (second, third) == ("  n[0,2]", "skipped 1: n1 not idle (DRAIN+IDLE)")
    assert not site.slurm.jobs and not (site.path / "state").exists()
    table = site.json("plan", "--budget", "0.0")
    assert table["schema"] == "pal.plan/1" and table["nodes"] == [] and table["backend"] == "emu"
    assert table["skipped"]["n0"] == "over the budget of 0 GPU-hours"


def test_run_measures_publishes_and_sums_up(site: Site) -> None:
    code, out, err = site.run("run", "--max-parallel", "3", "--wall-scale", "0")
    assert code == 0, err
    assert "3 nodes, 12 GPUs" in err and "n0 done, 4 GPUs" in err
    assert "nodes 3 done; 12 GPUs measured" in out and "class A: v0=" in out
    assert "published 12 GPUs in " in out
    published = snapshot.read(str(site.path / "state" / "snapshot"))
    assert len(published) == 12 and published.cluster == "fake"
    assert os.listdir(site.path / "state" / "spool" / "incoming") == []
    assert not (site.path / "state" / "sweep.running").exists()

    status = site.json("status")
    assert status["schema"] == "pal.sweep_status/1" and status["counts"] == {"done": 3}
    assert [n["gpus"] for n in status["nodes"]] == [4, 4, 4]
    code, out, _ = site.run("status", status["sweep"])
    assert code == 0 and out.splitlines()[1].split() == ["n0", "done", "job", "1", "4", "GPUs"]

    node = site.json("show", "n1")
    assert node["schema"] == "pal.history/1" and [g["index"] for g in node["gpus"]] == [0, 1, 2, 3]
    uuid = node["gpus"][2]["uuid"]
    one = site.json("show", uuid, "-n", "2")["gpus"][0]
    for named in (uuid[:12], "n1:2"):
        assert [gpu["uuid"] for gpu in site.json("show", named)["gpus"]] == [uuid]
    for named, why in (("n1:9", "no GPU 'n1:9': that node has "), ("n9", "nothing was measured on a node or GPU 'n9'")):
        code, out, err = site.run("show", named)
        assert (code, out, err.count("\n")) == (Exit.USAGE, "", 1) and why in err
    assert set(one["slowdown"]) == {"A", "B", "C"} and len(one["runs"]) == 2 and one["runs"][0]["valid"]
    code, out, _ = site.run("show", "n1")
    assert code == 0 and "TFLOP/s" in out and uuid in out

    before = (site.path / "state" / "snapshot").read_bytes()
    again = site.json("publish-scores")
    assert again["new_records"] == 0 and again["published_gpus"] == 12
    assert (site.path / "state" / "snapshot").read_bytes() == before  # the same records, the same classes
    assert site.json("publish-scores", "--method", "pal")["classes"].keys() == again["classes"].keys()
    code, _, err = site.run("run", "--since", "1d")
    assert code == 0 and "skipped 3: n[0-2] measured less than 1 d ago" in err and "nothing to measure now" in err
    assert len(site.slurm.jobs) == 3


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_what_is_not_published_is_no_success(site: Site, how: list[str]) -> None:
    code, out, err = site.run("publish-scores", *how)
    assert code == Exit.DATA and err == "pal-profile: error: not published: there is no measurement yet\n", out
    site.well("run", "--wall-scale", "0")
    folder, path = site.path / "state", site.path / "state" / "snapshot"
    path.unlink()
    path.mkdir()  # where the snapshot is to be
    for words in (["publish-scores"], ["run", "--since", "1d"], ["run", "-w", "n0", "--wall-scale", "0"]):
        code, out, err = site.run(*words, *how)
        assert code == Exit.DATA and "error: not published: snapshot" in err.splitlines()[-1], (words, out, err)
    assert not json.loads(out)["published"] if how else "published" not in out
    path.rmdir()
    (folder / "spool" / "incoming" / "x.jsonl").write_text("no record\n")
    code, out, err = site.run("publish-scores", *how)
    assert code == Exit.FAILED and "x.jsonl:1" in out and err == ""
    site.well("publish-scores", *how)


def test_run_as_json_prints_one_object_and_nothing_else(site: Site) -> None:
    set_fault(site.registry, "n2", 0, "missing")
    code, out, _ = site.run("run", "--max-parallel", "3", "--wall-scale", "0", "--json")
    table = json.loads(out)
    assert code == Exit.FAILED and table["schema"] == "pal.sweep/1"
    assert table["counts"] == {"done": 2, "partial": 1} and table["gpus"] == 11


def test_a_gpu_that_fails_is_named_with_its_cure_until_it_is_measured_cleanly(site: Site) -> None:
    set_fault(site.registry, "n2", 0, "missing")
    set_fault(site.registry, "n1", 1, "ecc")
    code, out, _ = site.run("run", "--max-parallel", "3", "--wall-scale", "0")
    failed = ("n2:0 missing", "n1:1 ecc")
    cures = {state: line for line in out.splitlines() for state in failed if f" {state}: " in line}
    assert code == Exit.FAILED and set(cures) == set(failed)
    assert all("kept off" in line and "; then pal-profile run -w n" in line for line in cures.values())
    set_fault(site.registry, "n1", 1, "ecc", None)
    table = json.loads(site.run("run", "-w", "n0", "--wall-scale", "0", "--json")[1])
    assert [(g["node"], g["index"], g["state"]) for g in table["faulty"]] == [("n1", 1, "ecc"), ("n2", 0, "missing")]
    table = json.loads(site.run("run", "-w", "n[1-2]", "--max-parallel", "2", "--wall-scale", "0", "--json")[1])
    assert [(g["node"], g["index"], g["state"]) for g in table["faulty"]] == [("n2", 0, "missing")]


def test_a_node_in_use_is_tried_again_by_resume(site: Site) -> None:
    set_fault(site.registry, "n1", 0, "foreign_process")
    code, out, err = site.run("run", "--max-parallel", "3", "--wall-scale", "0")
    assert code == Exit.FAILED and "2 done, 1 failed" in out and "n1 failed: GPU 0: in use by pid" in err
    set_fault(site.registry, "n1", 0, "foreign_process", None)
    code, out, _ = site.run("run", "--resume")
    assert code == 0 and "nodes 3 done; 12 GPUs measured" in out
    assert [job.req for job in site.slurm.jobs.values()] == ["n0", "n1", "n2", "n1"]


def test_ctrl_c_ends_with_130_and_the_way_to_resume(site: Site) -> None:
    site.slurm.execute = False
    original = site.slurm.schedule

    def interrupt() -> None:
        original()
        if len(site.slurm.jobs) == 1 and not site.path.joinpath("sent").exists():
            site.path.joinpath("sent").touch()
            os.kill(os.getpid(), signal.SIGINT)

    site.slurm.schedule = interrupt  # type: ignore[method-assign]
    code, out, err = site.run("run", "--max-parallel", "3", "--wall-scale", "0")
    assert code == Exit.INTERRUPTED and "stopping: pending jobs are withdrawn" in err
    sweep_id = site.json("status")["sweep"]
    assert (
        f"continue with: pal-profile run --resume {sweep_id}" in err
        and "not published: there is no measurement yet" in err
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    site.slurm.execute = True
    site.slurm._execute(site.slurm.jobs[1])
    code, out, err = site.run("run", "--resume", sweep_id)
    assert code == 0 and "nodes 3 done" in out, err


def test_a_resume_heeds_no_new_terms_and_no_other_user(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.well("run", "-w", "n0", "--wall-scale", "0")
    code, out, err = site.run("run", "--resume", "--window", "20:00-06:00", "--quick", "-y")
    assert (code, out) == (Exit.USAGE, "") and "--window, --quick cannot be used with --resume" in err
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    monkeypatch.setattr("slurm_pal.base.files._check_trust", lambda path, info: None)
    code, out, err = site.run("run", "--resume")
    assert (code, out) == (Exit.USAGE, "") and f"belongs to uid {mine}" in err and err.count("\n") == 1


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_signals_end_a_sweep_in_order_with_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM)}
    monkeypatch.setattr("sys.stderr", Gone())
    for number in before:
        stop = threading.Event()
        with progress.stoppable(stop) as received:
            os.kill(os.getpid(), number)
        assert stop.is_set() and received == [number]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with progress.stoppable(threading.Event()) as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_sweep_is_refused(site: Site) -> None:
    (site.path / "state").mkdir()
    with locked(str(site.path / "state" / "sweep.lock"), "test"):
        code, out, err = site.run("run")
    assert (code, out) == (Exit.BUSY, "") and "a sweep is already at work (pid " in err and err.count("\n") == 1
    assert not site.slurm.jobs


def test_a_dead_controller_is_one_line(site: Site) -> None:
    site.slurm.down = True
    for command in ("plan", "run"):
        code, out, err = site.run(command)
        assert (code, out) == (Exit.SLURM, "") and err.count("\n") == 1 and "Unable to contact slurm controller" in err


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["plan", "-w", "n0,zz"], Exit.USAGE, "Slurm knows no node zz"),
        (["plan", "--sample", "0"], Exit.USAGE, "--sample '0'"),
        (["plan", "--since", "3"], Exit.USAGE, "duration '3'"),
        (["plan", "--bench", "nope"], Exit.USAGE, "unknown benchmark 'nope'"),
        (["plan", "-w", ""], Exit.USAGE, "--nodelist names no node"),
        (["plan", "--budget", "-1"], Exit.USAGE, "Invalid value"),
        (["plan", "--budget", "nan"], Exit.USAGE, "--budget nan must be a finite number"),
        (["run", "--budget-per-day", "inf"], Exit.USAGE, "--budget-per-day inf must be a finite number"),
        (["run", "--resume", "nope"], Exit.USAGE, "no sweep"),
        (["run", "--resume"], Exit.USAGE, "no sweep"),
        (["status"], Exit.USAGE, "no sweep"),
        (["show", "n0"], Exit.DATA, "no database"),
        (["publish-scores", "--method", "nope"], Exit.USAGE, "Invalid value"),
        (["bench"], Exit.USAGE, "this is not a Slurm job"),
    ],
)
def test_bad_requests_are_one_clear_line(site: Site, argv: list[str], code: Exit, text: str) -> None:
    found, out, err = site.run(*argv)
    assert (found, out) == (code, "") and text in err
    assert err.splitlines()[-1].count(text) == 1 and not site.slurm.jobs


def test_earlier_names_work_as_they_did(site: Site) -> None:
    assert site.json("plan", "--nodes", "n0") == site.json("plan", "--nodelist=n0") == site.json("plan", "-w", "n0")
    assert site.run("plan", "--nodes", "zz") == site.run("plan", "-w", "zz")
    assert site.run("publish", "--json") == site.run("publish-scores", "--json")
    site.well("run", "-w", "n0", "--wall-scale", "0")
    code, _, err = site.run("run", "--resume", "--nodes", "n0")
    assert code == Exit.USAGE and "--nodelist cannot be used with --resume" in err
    code, out, err = site.run("publish")
    assert (code, err) == (0, "") and "published 4 GPUs" in out


def test_without_a_lab_the_nodes_choose_the_backend(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(site.registry)
    assert site.json("plan")["backend"] == "auto"
    monkeypatch.setenv("SLURM_PAL_PROFILE_BACKEND", "emu")
    code, _, err = site.run("plan")
    assert code == Exit.SLURM and "pal lab up" in err and err.count("\n") == 1


def test_bench_is_the_same_program(site: Site) -> None:
    code, out, err = site.run("bench", "--node", "n0", "--expected", "4", "--quick", "--wall-scale", "0")
    assert code == 0 and "n0: 12 records in " in out, err
    assert site.json("publish-scores")["new_records"] == 12


@pytest.mark.parametrize("command", ["", "plan", "run", "status", "show", "bench", "publish-scores"])
def test_help_of_every_command(site: Site, command: str) -> None:
    code, out, err = site.run(*([command] if command else []), "--help")
    assert (code, err) == (0, "") and "pal-profile" in out and len(out) > 200


def test_a_terminal_is_asked_and_no_starts_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text, **how: asked.append(text))  # None: no
    code, _, err = site.run("run")
    assert code == 0 and asked == ["Start the sweep?"] and "GPU-hours" in err and not site.slurm.jobs
    code, _, _ = site.run("run", "--yes", "--wall-scale", "0")
    assert code == 0 and len(asked) == 1 and len(site.slurm.jobs) == 3


def test_the_bar_counts_nodes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    set_fault(site.registry, "n2", 0, "missing")
    monkeypatch.setattr(progress, "_on_terminal", lambda: True)
    _, _, err = site.run("run", "--max-parallel", "3", "--wall-scale", "0")
    assert "3/3 nodes" in " ".join(err.split()) and "n2 partial, 3 GPUs" in err


def test_a_sweep_that_needs_a_fresh_look_does_not_nap(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few idle nodes the next submission waits for a look that is due in a moment, not for 15 s."""
    naps_s: list[float] = []
    nap_s = sweep.Sweep._nap_s

    def noted(self: sweep.Sweep) -> float:
        naps_s.append(nap_s(self))
        return min(naps_s[-1], 0.1)

    monkeypatch.setattr(sweep.Sweep, "_nap_s", noted)
    site.well("run", "--max-parallel", "1", "--wall-scale", "0")
    assert max(naps_s, default=0.0) <= 2.0  # on a slow machine no submission has to wait


def test_a_sweep_in_progress_says_whether_it_pauses(site: Site) -> None:
    site.well("run", "--max-parallel", "3", "--wall-scale", "0")
    table = site.json("status")
    assert (table["state"], table["pause"]) == ("ended", None)
    from slurm_pal.profiling.sweep import sweep_state

    state_dir = str(site.path / "state")
    directory = sweep_state.load(state_dir)
    directory.set("n1", sweep_state.NodeState())
    directory.set_pause(sweep_state.Pause("users wait: job 7 (Resources) in gpu", 1_800_000_000.0))
    assert site.json("status")["state"] == "stopped"  # no process carries it out
    with only_sweep(state_dir, directory.sweep_id):
        table = site.json("status")
        assert table["state"] == "paused" and table["pause"]["why"].startswith("users wait: job 7")
        code, out, _ = site.run("status")
        assert code == 0 and "paused (users wait: job 7 (Resources) in gpu): 1 todo, 2 done" in out
        directory.set_pause(None)
        assert site.json("status")["state"] == "running"


def test_a_node_left_for_a_users_job_is_shown_with_its_rest_and_first_in_the_next_plan(site: Site) -> None:
    from slurm_pal.profiling.sweep import sweep_state

    site.well("run", "--wall-scale", "0")
    why = "left for job 7, 5 times in all; the next sweep takes it first"
    left = sweep_state.NodeState(sweep_state.PARTIAL, 3, 0.0, why, 5, 4, leavings=5, leaves_for=7, rest="hbm_copy")
    sweep_state.load(str(site.path / "state")).set("n1", left)
    code, out, _ = site.run("status")
    assert code == 0 and f"4 GPUs  {why}" in out
    row = next(node for node in site.json("status")["nodes"] if node["node"] == "n1")
    assert (row["leavings"], row["leaves_for"], row["rest"]) == (5, 7, "hbm_copy")
    code, out, _ = site.run("plan", "--since", "14d")  # all were measured a moment ago
    assert code == 0 and f"first: n1 ({why})" in out
    assert [node["node"] for node in site.json("plan", "--since", "14d")["nodes"]] == ["n1"]
    site.well("run", "--resume")
    assert site.json("plan", "--since", "14d")["nodes"] == []


def test_limits_of_the_day_are_shown_and_checked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = site.run("plan", "--window", "20:00-06:00", "--budget-per-day", "1.5")
    assert code == 0 and "within window 20:00-06:00, 1.5 GPU-hours in 24 h" in out
    code, _, err = site.run("plan", "--window", "20-6")
    assert code == Exit.USAGE and "window '20-6' must be two local times" in err
    monkeypatch.setenv("SLURM_PAL_PROFILE_WINDOW", "later")
    code, _, err = site.run("plan")
    assert code == Exit.CONFIG and "$SLURM_PAL_PROFILE_WINDOW: profile.window 'later'" in err


def test_a_changed_gpu_is_told_after_the_sweep_and_measured_first_in_the_next(site: Site) -> None:
    argv = ("run", "-w", "n2", "--quick", "--wall-scale", "0")
    for _ in range(2):
        site.well(*argv)
    set_fault(site.registry, "n2", 1, "drift", 1.2)
    code, out, _ = site.run(*argv)
    assert code == 0 and "1 GPU may have changed: n2:1 gemm_" in out and "(unconfirmed)" in out
    assert "confirm n2: pal-profile run -w n2\n" in out
    code, out, _ = site.run("plan")
    assert "first: n2 (GPU 1 unconfirmed)" in out
    assert site.json("plan")["nodes"][0]["node"] == "n2"
    code, out, _ = site.run(*argv)
    assert code == 0 and "1 GPU changed: n2:1 gemm_" in out
    shown = site.json("show", "n2")["gpus"][1]
    assert "step" in shown["flags"] and {f["kind"] for f in shown["findings"]} == {"step"}
    code, out, _ = site.run("show", "n2")
    assert "step" in out and "SIGMAS" in out


def test_solo_reaches_the_nodes_and_the_time_limit_grows_with_it(site: Site) -> None:
    code, out, err = site.run("run", "-w", "n0", "--mode", "solo", "--wall-scale", "0")
    assert code == 0 and "4 GPUs measured" in out, err
    (path,) = (site.path / "state" / "spool" / "ingested").iterdir()
    gemm = [r for r in map(json.loads, path.read_text().splitlines()) if r["bench"]["id"] == "gemm_bf16"]
    assert [r["bench"]["mode"] for r in gemm] == ["solo"] * 4
    found = site.json("plan", "--mode", "solo", "--wall-scale", "10")
    assert found["node_s"] > 2000  # which the job's limit of 600 s would cut short
    both = site.json("plan", "--wall-scale", "10")
    assert found["node_s"] > 2.5 * both["node_s"]
