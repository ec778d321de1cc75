# SPDX-License-Identifier: MIT
"""pal gpus, pal nodes, pal doctor: what they say, and what they say when things are missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from slurm_pal.admin.shipped import lua_files
from slurm_pal.base import state
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.file_system import file_system
from slurm_pal.base.jobs import Asks
from slurm_pal.cli import explain as explain_command
from slurm_pal.cli.job_names import JobName
from slurm_pal.cli.pal import pal
from slurm_pal.journal import paths
from slurm_pal.report import actual, inventory, placing, table
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.doctor import examine
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, FakeSlurm, write_shims
from slurm_pal.store import heartbeat, snapshot
from slurm_pal.submit import decision, lease_file, watcher
from slurm_pal.tick.role import Role

from ...doubles.fake_commands import in_process

NOW_S = 1_800_000_000.0


def scores(*slots: tuple[str, int], flags: tuple[str, ...] = (), age_s: float = 60.0) -> list[snapshot.GpuScore]:
    return [
        snapshot.GpuScore(
            node=node,
            index=index,
            uuid=f"GPU-{node}-{index}",
            model="emu",
            slowdown={"A": 1.0 + index / 100, "B": 1.0, "C": 1.0},
            variability_class={"A": f"v{index}", "B": "v0", "C": "v0"},
            measured_s=NOW_S - age_s,
            confidence=1.0,
            flags=flags,
        )
        for node, index in slots
    ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake Slurm on PATH with nodes n0 and n1 of two GPUs, a pal.toml, and no snapshot yet."""
    commands = tmp_path / "bin"
    commands.mkdir()
    write_shims(str(commands), str(tmp_path / "fake.json"), [FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])
    in_process(monkeypatch)
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}"\n')
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("time.time", lambda: NOW_S)
    return tmp_path


def publish(site: Path, gpus: list[snapshot.GpuScore], now_s: float = NOW_S) -> None:
    snapshot.publish(str(site / "snapshot"), gpus, cluster="fake", epoch=3, now_s=now_s)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, list(words))


def test_gpus_json_keeps_its_contract(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("gone", 0)))
    body = json.loads(invoke("gpus", "--json").stdout)
    assert body["schema"] == "pal.gpu-list/1"
    by_slot = {(g["node"], g["index"]): g for g in body["gpus"]}
    assert set(by_slot) == {("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1), ("gone", 0)}
    first = by_slot["n0", 1]
    assert first["uuid"] == "GPU-n0-1" and first["slowdown"]["A"] == pytest.approx(1.01)
    assert (
        first["class"] == {"A": "v1", "B": "v0", "C": "v0"}
        and first["age_s"] == 60.0
        and first["flags"] == []
        and first["state"] == "ok"
    )
    assert by_slot["n1", 0]["flags"] == ["never_measured"] and by_slot["n1", 0]["age_s"] is None
    assert by_slot["gone", 0]["flags"] == ["not_in_slurm"]


def test_gpus_table_filters_and_hides_its_header(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    lines = invoke("gpus", "-w", "n[0-1]").stdout.splitlines()
    assert lines[0].split() == ["NODE", "GPU", "MODEL", "A", "B", "C", "AGE", "USE", "FLAGS", "STATE"]
    assert lines[2].split() == ["n0", "1", "emu", "1.010", "v1", "1.000", "v0", "1.000", "v0", "1m", "free", "-", "ok"]
    assert invoke("gpus", "-f", "--noheader").stdout == ""
    said = invoke("gpus", "-P", "--noheader", "-w", "n1").stdout.splitlines()
    assert said[0] == "n1|0|emu|1.000 v0|1.000 v0|1.000 v0|1m|free|-|ok"


def test_an_unknown_node_is_named(site: Path) -> None:
    publish(site, scores(("n0", 0)))
    result = invoke("gpus", "-w", "n0,n77")
    assert result.exit_code != 0 and "no such node: n77" in str(result.exception)


def test_without_a_snapshot_every_gpu_is_unmeasured_and_one_line_says_why(site: Path) -> None:
    result = invoke("nodes", "--json")
    body = json.loads(result.stdout)
    assert [n["flags"] for n in body["nodes"]] == [["never_measured"]] * 2
    assert result.stderr.count("\n") == 1 and "run pal-profile run" in result.stderr


def test_without_slurm_the_snapshot_alone_is_shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, scores(("n0", 0)))
    monkeypatch.setenv("PATH", "/nonexistent")
    result = invoke("gpus")
    assert "n0" in result.stdout and "showing the snapshot only" in result.stderr


def test_nodes_show_the_worst_gpu_and_all_classes(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    assert invoke("nodes", "-w", "n0", "--noheader").stdout.split() == [
        "n0", "idle", "2", "0", "1.010", "1.000", "1.000", "v0", "v1", "1m", "-",
    ]  # fmt: skip


def test_a_measurement_from_the_future_has_age_zero(site: Path) -> None:
    publish(site, scores(("n0", 0), age_s=-3600.0))
    row = inventory.gpu_rows(snapshot.read(str(site / "snapshot")), None, NOW_S)[0]
    assert row.age_s == 0.0


def findings(site: Path, level: str, client: CliClient | None = None) -> list[CheckResult]:
    return [f for f in examine(client or CliClient(), NOW_S) if f.level == level]


def test_doctor_finds_nothing_on_a_healthy_site(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    assert findings(site, "fail") == [] and findings(site, "warn") == []


def test_doctor_names_unmeasured_and_unknown_gpus(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n9", 0)))
    texts = [f.text + " -> " + f.mend for f in findings(site, "warn")]
    assert any("3 of 4 GPUs were never measured (n[0-1]) -> pal-profile run --nodelist n[0-1]" in t for t in texts)
    assert any("unknown to Slurm (n9)" in t for t in texts)


def test_doctor_finds_a_clock_that_went_back(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)), now_s=NOW_S + 900)
    (finding,) = findings(site, "fail")
    assert finding.topic == "clock" and "900 s in the future" in finding.text


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.unlink(), "no snapshot"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is truncated"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"snapshot/1", b"snapshot/9")), "update slurm-pal"),
        (lambda path: path.chmod(0o666), "chmod o-w"),
    ],
)
def test_doctor_says_what_is_wrong_with_a_snapshot(site: Path, spoil, complaint: str) -> None:  # noqa: ANN001
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    spoil(site / "snapshot")
    (finding,) = findings(site, "fail")
    assert complaint in f"{finding.text}: {finding.mend}"


def test_doctor_says_whether_a_job_can_wait_behind_a_fence(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, scores(("n0", 0)))
    slurm = FakeSlurm([FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])

    def said(level: str) -> str:
        return "; ".join(
            f.text for f in findings(site, level, CliClient(slurm)) if "fence" in f.text or "wait" in f.text
        )

    assert not said("ok")
    monkeypatch.setenv("SLURM_PAL_REBALANCE_WAIT", "true")
    assert "may wait 3600 s behind a fence" in said("ok")
    CliClient(slurm).submit(["--gres=gpu:1"], "#!/bin/sh\n")  # without a limit of its own
    assert "most time limits there are the partition's own" in said("note")
    monkeypatch.setenv("SLURM_PAL_REBALANCE_RETARGET", "false")
    assert "rebalance.wait does nothing" in said("warn")


def test_doctor_on_a_dead_controller_and_without_slurm(site: Path) -> None:
    publish(site, scores(("n0", 0)))
    slurm = FakeSlurm()
    slurm.down = True
    (finding,) = findings(site, "fail", CliClient(slurm))
    assert "Unable to contact slurm controller" in finding.text and "scontrol ping" in finding.mend
    missing = examine(CliClient(slurm), NOW_S, which=lambda name: None)[0]
    assert missing.level == "fail" and missing.mend == "apt-get install slurm-client"


def test_a_backend_that_is_not_installed_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, scores(("n0", 0)))
    monkeypatch.setenv("SLURM_PAL_SLURM_BACKEND", "pyslurm")
    assert "pip install 'slurm-pal[pyslurm]'" in str(invoke("gpus").exception)
    result = invoke("doctor")
    assert result.exit_code == 1 and 'pal.toml: [slurm] backend = "cli"' in result.stdout


def test_doctor_exits_by_what_it_found(site: Path) -> None:
    result = invoke("doctor", "--json")
    body = json.loads(result.stdout)
    assert result.exit_code == 1 and body["schema"] == "pal.doctor/1" and body["ok"] is False
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    assert invoke("doctor").exit_code == 0


def palsub_check(site: Path) -> CheckResult:
    result = invoke("doctor", "--json")
    (finding,) = [f for f in json.loads(result.stdout)["findings"] if f["topic"] == "palsub"]
    assert result.exit_code == (1 if finding["level"] == "fail" else 0)
    return CheckResult(**finding)


def test_doctor_fails_where_every_palsub_is_plain_sbatch(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    assert palsub_check(site).text.endswith("its own watcher takes its node lists back")
    monkeypatch.setenv("SLURM_PAL_SUBMIT_WATCH", "never")
    nobody = palsub_check(site)
    assert nobody.level == "fail" and nobody.mend == 'pal.toml: [submit] watch = "auto"'
    CliClient().update_nodes(["n1"], ActiveFeatures="pal_A_v0")
    assert palsub_check(site).text.startswith("prefers nodes by their class features")
    CliClient().update_nodes(["n1"], ActiveFeatures="")
    heartbeat.beat(str(site / "snapshot"), NOW_S, 3.0)
    assert palsub_check(site).text.endswith("a daemon takes its node lists back")
    monkeypatch.setenv("SLURM_PAL_SUBMIT_ENABLED", "no")
    assert "submit.enabled is false ($SLURM_PAL_SUBMIT_ENABLED)" in palsub_check(site).text


def test_doctor_fails_where_no_gpu_of_this_slurm_was_measured(site: Path) -> None:
    publish(site, scores(("n8", 0), ("n9", 0)))
    assert "no GPU that Slurm has here was measured" in palsub_check(site).text


def test_a_user_who_can_write_nothing_is_sent_to_the_admins(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, scores(("n0", 0)))
    monkeypatch.setattr("slurm_pal.journal.paths.has_powers", lambda: False)
    monkeypatch.setattr("os.access", lambda path, mode, **how: mode != os.W_OK)
    found = examine(CliClient(FakeSlurm([FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])), NOW_S)
    (finding,) = [f for f in found if f.topic == "palsub"]
    (coverage,) = [f for f in found if "never measured" in f.text]
    assert finding.level == "fail" and str(site / ".local" / "state") in finding.text
    assert coverage.mend == "ask the admins: pal-profile run --nodelist n[0-1]"
    with pytest.raises(DataError, match="ask your site's admins for a sweep"):
        snapshot.read(str(site / "nothing"))


@pytest.mark.parametrize(
    ("kind", "measured", "level"),
    [
        ("ext4", ("n0", "n1"), "ok"),
        ("ext4", (), "warn"),
        ("ext4", ("here",), "warn"),
        ("nfs4", (), "ok"),
        ("", (), "ok"),
    ],
)
def test_a_spool_on_a_disk_of_this_host_is_doubted_until_results_come(
    site: Path, monkeypatch: pytest.MonkeyPatch, kind: str, measured: tuple[str, ...], level: str
) -> None:
    publish(site, scores(*((node, 0) for node in measured or ("here",))))
    monkeypatch.setattr("socket.gethostname", lambda: "here.example.org")
    monkeypatch.setattr("slurm_pal.report.doctor.file_system", lambda path: kind)
    (finding,) = [f for f in examine(CliClient(FakeSlurm()), NOW_S) if f.topic == "spool"]
    assert finding.level == level and str(site / "spool") in finding.text


def test_the_file_system_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert file_system("/proc/nosuch") == "proc"
    assert file_system(str(tmp_path / "a" / "b")) == file_system(str(tmp_path)) != ""


def test_doctor_checks_filter_and_plug_in(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))

    def filters() -> list[tuple[str, str]]:
        found = json.loads(invoke("doctor", "--json").stdout)["findings"]
        return [(f["level"], f["text"]) for f in found if f["topic"] in ("filter", "plug-in")]

    ((level, text),) = filters()
    assert level == "note" and "were not checked: there is no" in text
    (site / "slurm.conf").write_text("ClusterName=fake\nSlurmUser=root\n")
    assert filters() == [("note", "no submit filter is installed: jobs are placed by palsub only")]
    (site / "slurm.conf").write_text("ClusterName=fake\nSlurmUser=root\nJobSubmitPlugins=lua\n")
    for name, body in lua_files().items():
        (site / name).write_text(body)
    (site / "plugstack.conf").write_text("optional /nosuch/pal_spank.so gpus=/nosuch/gpus.txt\n")
    found = dict(filters())
    assert any("slurmctld does not run it yet" in text for text in [t for _, t in filters()])
    assert ("fail", "/nosuch/pal_spank.so is missing, though plugstack.conf loads it") in filters()
    assert "fail" in found and invoke("doctor").exit_code == 1


def test_explain_of_an_unknown_job_and_of_two_questions_at_once(site: Path) -> None:
    assert "job 99 is unknown" in str(invoke("explain", "99").exception)
    assert "job id or --last" in str(invoke("explain", "--last", "4").exception)
    assert "palsub has recorded no decision" in str(invoke("explain", "--last").exception)


def test_explain_a_job_that_never_saw_palsub(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1)))
    number = CliClient().submit(["--gres=gpu:2"], "#!/bin/sh\nsleep 1\n")
    body = json.loads(invoke("explain", str(number), "--json").stdout)
    assert body["decision"] is None and body["actual"]["slowdown"]["A"] == pytest.approx(1.01)
    text = invoke("explain", str(number)).stdout
    assert "n0 GPU 1: A 1.010 (v1)" in text and "Neither your palsub nor the submit filter decided" in text


@pytest.mark.parametrize("text", ["1_5x", "1__5", "_5", "5_", "0", "-1", "1+0", "n0", "1 5", "\u0661"])
def test_what_is_no_job_is_refused_in_one_line(site: Path, text: str) -> None:
    CliClient().submit(["--gres=gpu:2"], "#!/bin/sh\nsleep 1\n")
    result = invoke("explain", "--", text)
    assert isinstance(result.exception, UsageError) and f"JOBID {text!r} is not a job" in str(result.exception)


def test_a_task_is_never_taken_for_another_job(site: Path) -> None:
    """Python reads 1_5 as 15."""
    for _ in range(15):
        CliClient().submit(["--gres=gpu:2"], "#!/bin/sh\nsleep 1\n")
    assert "job 1 is no array: leave out _5" in str(invoke("explain", "1_5").exception)
    assert "job 17_2 is unknown" in str(invoke("explain", "17_2").exception)


def decided(number: int, cluster: str = "") -> dict[str, Any]:
    """The record of a job that palsub has sent to n1:0, with plain Slurm's choice."""
    sensitivity = {"class": "A", "from": "--pal-class", "stage": "word", "confidence": 1.0}
    offers = {"chosen": offer("n1", 0.9), "plain_slurm": offer("n0", 1.0)}
    for each in offers.values():
        each |= {"locality": 1.0, "slowdown": each["product"]}
        each["gpus"][0] |= {"slowdown": each["product"], "class": "v0", "age_s": 1, "flags": []}
    made = {"schema": decision.SCHEMA, "job_id": number, "cluster": cluster or state.cluster_key(), "made_s": NOW_S}
    made |= {"action": "nodelist", "reason": "sent to n1:0", "policy": "packed", "sensitivity": sensitivity}
    return made | offers | {key: [] for key in ("alternatives", "added", "unknown", "warnings")} | {
        "lease": None, "snapshot": None, "movable": None, "argv": ["sbatch"],
    }  # fmt: skip


def test_the_gpus_at_the_start_outlive_the_job(site: Path) -> None:
    publish(site, scores(("n1", 0), ("n1", 1)))
    slurm = FakeSlurm([FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])
    number = CliClient(slurm).submit(["-w", "n1", "--gres=gpu:1"], "#!/bin/sh\n")
    decision.save(decided(number))
    folder = state.folder("leases", state.cluster_key())
    made = lease_file.Lease(number, NOW_S - 5, NOW_S + 60, 3.0, NOW_S + 600, pinned="n1")
    Path(folder, f"{number}.json").write_text(json.dumps({"schema": lease_file.SCHEMA, **made._asdict()}))
    watcher.Watcher(folder, CliClient(slurm), lambda: NOW_S, lambda s: None).run()
    text = invoke("explain", "--last").stdout  # this Slurm knows no job at all
    assert f"Job {number}: Slurm no longer knows it" in text and "n1 GPU 0: A 1.000 (v0)" in text
    assert "You got GPUs predicted 11.1 % faster than those plain Slurm would have picked" in text
    body = json.loads(invoke("explain", "--last", "--json").stdout)["actual"]
    assert [(gpu["node"], gpu["index"]) for gpu in body["gpus"]] == [("n1", 0)] and body["state"] is None


def test_explaining_a_running_job_keeps_its_gpus_and_not_the_order_of_submissions(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1)))
    first = CliClient().submit(["--gres=gpu:1"], "#!/bin/sh\nsleep 1\n")
    decision.save(decided(first))
    os.utime(next((site / ".local").rglob(f"decisions/*/{first}.json")), (1_000_000.0,) * 2)
    decision.save(decided(first + 1))
    assert invoke("explain", str(first)).exit_code == 0
    made = decision.load("", first)
    assert made is not None and made["started"]["gpus"] == [["n0", 0]]
    last = decision.last("")
    assert last is not None and last["job_id"] == first + 1


def test_what_was_noted_of_another_run_or_task_is_not_shown() -> None:
    noted = {"at_s": 1000.0, "gpus": [["n1", 0]]}
    slurm = CliClient(FakeSlurm())
    ended = slurm.job(slurm.submit(["--gres=gpu:1"], "#!/bin/sh\n"))
    assert ended is not None
    ended = ended._replace(state="COMPLETED", start_s=1000.0)
    config, whole = Config(), JobName(17)
    assert explain_command._started(config, whole, {"started": noted}, None) == noted
    assert explain_command._started(config, whole, {"started": noted}, ended) == noted
    assert (
        explain_command._started(config, whole, {"started": noted}, ended._replace(start_s=5000.0)) is None
    )  # requeued
    assert explain_command._started(config, whole, {"started": noted}, ended._replace(state="PENDING")) is None
    assert explain_command._started(config, JobName(17, 2), {"started": noted}, None) is None


def test_of_another_users_job_palsubs_marks_are_shown(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1)))
    mark = "pal:lease=360;req=;exc=;act=nodelist;set=n1 pal:job=A;from=--pal-class"
    number = CliClient().submit(["--gres=gpu:1", "-w", "n1", f"--comment={mark}"], "#!/bin/sh\nsleep 1\n")
    text = invoke("explain", str(number)).stdout
    assert "What the palsub of its user decided" in text and "decision: sent to n1\n" in text
    assert "sensitivity class A (--pal-class)" in text and "user named" not in text


@pytest.mark.parametrize(
    ("user", "role", "sees"), [("ada", "user", True), ("eve", "operator", True), ("eve", "user", False)]
)
def test_what_ticks_wrote_on_a_job_is_for_its_user_and_for_operators(
    site: Path, monkeypatch: pytest.MonkeyPatch, user: str, role: str, sees: bool
) -> None:
    def role_of(client: object, pairs: object, mine: bool) -> Role:
        if role == "user":
            raise UsageError("may steer only their own jobs")
        return Role(role, user, frozenset(), ())

    slurm = CliClient(FakeSlurm())
    found = slurm.job(slurm.submit(["--gres=gpu:1"], "#!/bin/sh\n"))
    assert found is not None
    mine = found._replace(user="ada", admin_comment="pal:ev=1763712345;what=moved;gain=812;from=n3:0;to=n5:0")
    monkeypatch.setattr(paths, "has_powers", lambda: False)
    monkeypatch.setattr(paths, "user_name", lambda: user)
    monkeypatch.setattr(explain_command, "role_of", role_of)
    told = explain_command._ticks(Config(), slurm, mine.job_id, mine)
    assert bool(told) == sees


@pytest.mark.parametrize("why", ["own", "palsub"])
def test_palsub_and_the_filter_do_not_contradict_each_other(site: Path, why: str) -> None:
    """The filter left the job alone, without knowing the class."""
    publish(site, scores(("n0", 0), ("n0", 1)))
    number = CliClient().submit(["--gres=gpu:1", "-w", "n1", "--comment=mine"], "#!/bin/sh\nsleep 1\n")
    CliClient().update_job(number, AdminComment=f"pal:class=?;from=default;act=none;why={why};epoch=1")
    alone = invoke("explain", str(number)).stdout
    assert "class ?" in alone
    decision.save(decided(number))
    text = invoke("explain", str(number)).stdout
    assert "sensitivity class A" in text and "class ?" not in text
    assert "The submit filter left it to palsub." in text
    told = json.loads(invoke("explain", str(number), "--json").stdout)["story"]
    assert "the submit filter left it to palsub" in [event["text"] for event in told]


@pytest.mark.parametrize("words", [[], ["gpus"], ["nodes"], ["explain"], ["doctor"], ["lab"], ["lab", "up"]])
def test_help_of_every_command(words: list[str]) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0 and result.stdout.startswith("Usage: ")


def test_columns_and_ages() -> None:
    assert table.columns(["A", "LONG"], [["xxx", "1"]]) == ["A    LONG", "xxx  1"]
    assert table.columns(["A"], [], noheader=True) == []
    assert table.parsable(["A"], [["x|y"]]) == ["A", "x/y"]
    assert [table.age(x) for x in (None, -5, 59, 61, 7300, 2 * 86400)] == ["-", "0s", "59s", "1m", "2h", "2d"]


def offer(node: str, product: float) -> dict[str, Any]:
    return {"gpus": [{"node": node, "index": 0}], "product": product}


@pytest.mark.parametrize(
    ("got", "chosen", "plain", "said"),
    [
        ("n1", offer("n1", 0.97), offer("n2", 1.0), "predicted 3.1 % faster than"),
        ("n1", offer("n1", 1.0), offer("n2", 1.0003), "predicted as fast as those plain Slurm"),
        ("n1", offer("n1", 1.02), offer("n2", 1.0), "predicted 2.0 % slower than"),
        ("n1", offer("n1", 0.97), None, "plain Slurm had no place"),
        ("n1", offer("n1", 0.97), offer("n1", 0.97), "the GPUs that plain Slurm would have picked"),
        ("n2", offer("n1", 0.97), offer("n2", 1.0), "the GPUs that plain Slurm would have picked"),
        ("n3", offer("n1", 0.97), offer("n2", 1.0), "other GPUs than the best"),
    ],
)
def test_the_first_sentence_says_what_came_of_the_choice(
    got: str, chosen: dict[str, Any], plain: dict[str, Any] | None, said: str
) -> None:
    assert said in actual.verdict(offer(got, 1.0), {"chosen": chosen, "plain_slurm": plain})


def test_without_gpus_or_a_choice_nothing_came_of_it() -> None:
    assert actual.verdict({"gpus": []}, {"chosen": offer("n1", 1.0), "plain_slurm": None}) == ""
    assert actual.verdict(offer("n1", 1.0), {"chosen": None, "plain_slurm": None}) == ""
    assert actual.verdict(offer("n1", 1.0), None) == ""


MARKED = "pal:job=A;from=name pal:lease=60;req=;exc=;act=nodelist;set=n0"


def first_lines(*words: str) -> str:
    return invoke("doctor", *words).stdout.splitlines()[0]


def test_doctor_shows_first_whether_jobs_are_placed(site: Path) -> None:
    body = json.loads(invoke("doctor", "--json").stdout)
    assert body["placing"] is False and body["placed"] == {"jobs": 0, "chosen": 0, "since_s": None}
    assert "placing      no: no snapshot" in first_lines()
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    assert "placing      yes: palsub chooses nodes for jobs here; Slurm shows no job with GPUs" in first_lines()
    client = CliClient()
    client.submit(["--gres=gpu:1"], "#!/bin/sh\n")
    assert "; so far for 0 of the 1 jobs with GPUs that Slurm shows" in first_lines()
    client.submit(["--gres=gpu:1", f"--comment=mine {MARKED}"], "#!/bin/sh\n")
    client.submit(["--gres=gpu:1", "--comment=pal:job=C;from=default"], "#!/bin/sh\n")
    assert "; so far for 1 of the 3 jobs with GPUs that Slurm shows, the first of 20" in first_lines()
    body = json.loads(invoke("doctor", "--json").stdout)
    assert body["placing"] is True
    assert (body["placed"]["jobs"], body["placed"]["chosen"]) == (3, 1)
    without = [job._replace(asks=Asks(), gpus={}, gpus_given=0) for job in client.jobs()]
    assert placing.count(without) == placing.Placed()


def test_what_the_filter_chose_counts(site: Path) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    one = placing.count([])
    assert one == placing.Placed() and one.since_s is None
    (known,) = [f for f in examine(CliClient(), NOW_S) if f.topic == "palsub"]
    ours = CheckResult("ok", "filter", "job_submit.lua runs")
    stale = CheckResult("fail", "filter", "the table is too old", "pal publish-table")
    assert placing.verdict([known, ours], None).text.startswith("yes: palsub and the submit filter choose nodes")
    failed = known._replace(level="fail", text="every palsub is plain sbatch", mend="do this")
    assert placing.verdict([failed, ours], None).text == "yes: the submit filter chooses nodes for jobs here"
    answer = placing.verdict([failed, ours, stale], None)
    assert (answer.level, answer.text, answer.mend) == ("fail", "no: every palsub is plain sbatch", "do this")


def test_doctor_for_monitors(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("doctor", "--nagios")
    assert result.exit_code == 2 and result.stdout.startswith("PAL CRITICAL: placing: no: no snapshot")
    publish(site, scores(("n0", 0), ("n0", 1)))
    result = invoke("doctor", "--nagios")
    assert result.exit_code == 1 and "PAL WARNING: data: 2 of 4 GPUs were never measured (n1)" in result.stdout
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    result = invoke("doctor", "--nagios")
    assert result.exit_code == 0 and result.stdout.count("\n") == 1
    assert result.stdout.startswith("PAL OK: placing: yes: palsub ")
    assert result.stdout.endswith(" | failures=0 warnings=0 jobs=0 chosen=0\n")
    assert result.stdout.count("|") == 1
    assert "leave out --csv and --json" in str(invoke("doctor", "--nagios", "--json").exception)
    monkeypatch.setenv("PATH", "/nonexistent")
    result = invoke("doctor", "--nagios")
    assert result.exit_code == 3 and result.stdout.startswith("PAL UNKNOWN: slurm: not in PATH: sbatch")


def test_the_watchers_of_palsub_take_its_lists_back_until_they_are_overdue(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(site, scores(("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)))
    slurm = FakeSlurm([FakeNode("n0", gpus=2), FakeNode("n1", gpus=2)])
    client = CliClient(slurm)
    client.submit(["--gres=gpu:2", "-w", "n0"], "#!/bin/sh\n")
    slurm.schedule()
    waits = client.submit(["--gres=gpu:1", "-w", "n0", f"--comment={MARKED}"], "#!/bin/sh\n")
    since_s = {job.job_id: job.submit_s for job in client.jobs()}[waits]

    def told(after_s: float) -> CheckResult:
        (found,) = [one for one in examine(client, since_s + after_s) if f"{waits} (" in one.text]
        return found

    assert told(100.0).level == "ok" and told(100.0).text.endswith("; the watchers of their palsub take them back")
    late = told(125.0)  # its lease of 60 s, and as long again
    assert (late.level, late.mend) == ("warn", "pal-rebalance --withdraw") and "no live process" in late.text
    monkeypatch.setenv("SLURM_PAL_SUBMIT_WATCH", "never")
    assert told(1.0).level == "warn"
