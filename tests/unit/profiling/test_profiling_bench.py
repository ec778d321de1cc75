# SPDX-License-Identifier: MIT
"""bench on a node: workers, barrier, watchdog, exit codes and the result file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import DataError, Exit, MissingPackageError, SlurmError, UsageError
from slurm_pal.emulation.gpus import draw_registry, load_registry, set_fault, write_registry
from slurm_pal.profiling.node import backends, bench, measurement, repeat
from slurm_pal.profiling.node.backends import BACKENDS, BackendChoice, Setting, open_backend, resolve
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import DeviceInfo
from slurm_pal.profiling.node.emu import EmuBackend, EmuKernel
from slurm_pal.profiling.node.measurement import RecordOrigin
from slurm_pal.profiling.node.workers import Channel, Team, Worker
from slurm_pal.profiling.sweep import results
from slurm_pal.store.ingest import ingest
from slurm_pal.variability.records import Record, from_json

from ...doubles.watchdog import HOUR_S, hasten

DEVICES = tuple(DeviceInfo(f"GPU-{i}", "test", "model", i) for i in range(4))
LONG_S = 120.0  # a limit that no test reaches
TOO_LONG_S = HOUR_S  # what a hung worker would sleep


def _children() -> set[str]:
    """Children of this process: a lab of the same session may have some, so only new ones are a test's."""
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
            found.update(Path(f"/proc/self/task/{task}/children").read_text().split())
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No test may leave a process or an open file."""
    before, children = sorted(os.listdir("/proc/self/fd")), _children()
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert _children() <= children
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def run_team(
    work: Callable[[DeviceInfo, Channel], None], timeout_s: float = LONG_S, devices: Sequence[DeviceInfo] = DEVICES
) -> tuple[Team, list[tuple[int, dict[str, Any]]]]:
    heard: list[tuple[int, dict[str, Any]]] = []

    def hear(worker: Worker, message: dict[str, Any]) -> str:
        heard.append((worker.device.slot, message))
        return str(message.get("end", ""))

    team = Team(tuple(devices), work, timeout_s)
    team.run(hear)
    return team, heard


def test_nobody_passes_the_barrier_before_all_have_come() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        time.sleep(0.02 * device.slot)
        channel.send({"before": time.monotonic()})
        peers = channel.barrier("run")
        channel.send({"after": time.monotonic(), "peers": peers})

    _, heard = run_team(work)
    before = [m["before"] for _, m in heard if "before" in m]
    after = [m["after"] for _, m in heard if "after" in m]
    assert len(before) == len(after) == 4 and max(before) <= min(after)
    assert {m["peers"] for _, m in heard if "peers" in m} == {3}


def test_one_hung_worker_is_killed_and_the_others_go_on() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("first")
        if device.slot == 2:
            time.sleep(TOO_LONG_S)
        peers = channel.barrier("second")
        channel.send({"peers": peers})

    team, heard = run_team(work, timeout_s=2.5)
    assert [(slot, m["peers"]) for slot, m in sorted(heard)] == [(0, 2), (1, 2), (3, 2)]
    assert [w.error for w in team.workers] == ["", "", "no answer within 2.5 s in first", ""]


def test_a_worker_that_hangs_before_the_first_barrier_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)

    def work(device: DeviceInfo, channel: Channel) -> None:
        if device.slot == 0:
            time.sleep(TOO_LONG_S)
        channel.barrier("first")

    team, _ = run_team(work)
    assert [bool(w.error) for w in team.workers] == [True, False, False, False]


def test_crashes_are_told_by_their_cause() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("run")
        if device.slot == 0:
            raise RuntimeError("two\nlines")
        if device.slot == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if device.slot == 2:
            os._exit(7)

    team, _ = run_team(work)
    assert [w.error for w in team.workers] == [
        "two lines", "worker ended with SIGKILL in run", "worker ended with exit code 7 in run", "",
    ]  # fmt: skip


def test_a_message_may_end_the_whole_team() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        if device.slot == 1:
            channel.send({"end": "intruder"})
        channel.barrier("run")
        time.sleep(TOO_LONG_S)

    team, _ = run_team(work)
    assert {w.error for w in team.workers} == {"intruder"}


def test_sigterm_ends_the_team_and_keeps_what_is_complete() -> None:
    parent = os.getpid()

    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.send({"done": device.slot})
        channel.barrier("run")
        if device.slot == 0:
            os.kill(parent, signal.SIGTERM)
        time.sleep(TOO_LONG_S)

    team, heard = run_team(work)
    assert team.stopped == "SIGTERM" and sorted(m["done"] for _, m in heard) == [0, 1, 2, 3]
    assert {w.error for w in team.workers} == {"stopped by SIGTERM"}


def test_workers_end_when_their_parent_is_gone() -> None:
    inward, out = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(inward)

        def work(device: DeviceInfo, channel: Channel) -> None:
            if device.slot == 0:
                channel.barrier("ready")  # never opened: the others do not come
            time.sleep(0.3)  # until the parent is dead
            channel.barrier("never")

        def hear(worker: Worker, message: dict[str, Any]) -> str:
            return ""

        team = Team(DEVICES, work, LONG_S)
        os.kill(os.getpid(), signal.SIGKILL)
        team.run(hear)
    os.close(out)
    os.waitpid(parent, 0)
    with os.fdopen(inward, "rb") as stream:
        assert stream.read() == b""  # ends only when the last process with a copy has ended


def in_turns(channel: Channel, device: DeviceInfo, phase: str) -> None:
    turn = channel.turn(phase)
    channel.send({"begin": phase, "peers": turn.peers, "first": turn.first, "at": time.monotonic()})
    time.sleep(0.02)
    channel.send({"end_s": time.monotonic()})


def test_turns_do_not_overlap_and_only_one_is_first() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.barrier("together")
        for phase in ("one", "two"):
            in_turns(channel, device, phase)
        channel.send({"others": channel.barrier("again")})

    team, heard = run_team(work)
    begins = [(m["begin"], m["at"], slot, m["first"], m["peers"]) for slot, m in heard if "begin" in m]
    ends = [m["end_s"] for _, m in heard if "end_s" in m]
    assert [(phase, slot) for phase, _, slot, _, _ in begins] == [(p, i) for p in ("one", "two") for i in range(4)]
    assert [first for *_, first, _ in begins] == [True, False, False, False] * 2
    assert all(end <= at for end, (_, at, *_) in zip(ends, begins[1:], strict=False))
    assert begins[2][-1] == [0, 1, 3]
    assert [m["others"] for _, m in heard if "others" in m] == [3] * 4 and not any(w.error for w in team.workers)


def test_one_that_hangs_in_its_turn_is_given_up_and_the_next_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)

    def work(device: DeviceInfo, channel: Channel) -> None:
        turn = channel.turn("solo")
        if device.slot == 1:
            time.sleep(TOO_LONG_S)
        channel.send({"peers": turn.peers})

    team, heard = run_team(work)
    assert [(slot, m["peers"]) for slot, m in heard] == [(0, [1, 2, 3]), (2, [3]), (3, [])]
    assert [w.error for w in team.workers] == ["", "no answer within 120 s in solo", "", ""]


def test_a_gpu_that_hangs_its_partner_is_no_partner_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 hangs in a copy to GPU 2: nobody knows whose fault it is, so nobody else tries either."""
    hasten(tmp_path, monkeypatch)

    def work(device: DeviceInfo, channel: Channel) -> None:
        turn = channel.turn("p2p")
        for peer in turn.peers:
            channel.enter("p2p", peer)
            if 2 in (peer, device.slot):
                time.sleep(TOO_LONG_S)
        channel.send({"peers": turn.peers})
        channel.barrier("next")

    team, heard = run_team(work)
    assert [(slot, m["peers"]) for slot, m in heard] == [(1, [3]), (3, [1])]
    assert [w.error.removeprefix("no answer within 120 s in ") for w in team.workers] == [
        "p2p with GPU 2", "", "p2p with GPU 1", "",
    ]  # fmt: skip


def test_the_watchdog_counts_each_phase_anew() -> None:
    def work(device: DeviceInfo, channel: Channel) -> None:
        channel.turn("solo")
        for i in range(4):
            channel.enter(f"part {i}")
            time.sleep(0.8)
        channel.send({"done": True})

    team, heard = run_team(work, timeout_s=2.5, devices=DEVICES[:1])
    assert heard == [(0, {"done": True})] and team.workers[0].error == ""


# -- the program ------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> str:
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0", "n1"], 4, 3))
    return path


def run_bench(
    tmp_path: Path, registry: str, *more: str, node: str = "n0", quick: bool = True
) -> tuple[int, list[Record]]:
    """Exit code and records of a node; with three benchmarks, of all eleven where not `quick`."""
    spool = tmp_path / "spool"
    more = ("--quick", *more) if quick else more
    argv = ["--node", node, "--expected=4", f"--spool={spool}", "--backend=emu", f"--registry={registry}"]
    code = bench.main([*argv, "--wall-scale=0", "--sweep=s1", "--cluster=c", "--seed=3", *more])
    path = spool / "incoming" / f"s1.{node}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return code, [from_json(line) for line in lines]


def test_a_healthy_node_gives_one_record_for_each_gpu_and_benchmark(tmp_path: Path, registry: str) -> None:
    code, records = run_bench(tmp_path, registry)
    assert code == Exit.OK and len(records) == 12
    assert {(r.gpu.slurm_index, r.bench.sensitivity_class) for r in records} == {
        (i, c) for i in range(4) for c in "ABC"
    }
    first = records[0]
    truth = load_registry(registry).gpu("n0", first.gpu.slurm_index)
    assert first.gpu.uuid == truth.uuid and first.gpu.vendor == "emu" and first.gpu.model == truth.model
    assert first.valid and first.bench.peers_busy == 3 and first.bench.mode == "concurrent" and first.bench.seed == 3
    assert first.cluster == "c" and first.sweep_id == "s1" and first.slurm_job_id == 0
    assert first.env.power_limit_w == 300.0 and len(first.bench.method_hash) == 16
    assert first.telemetry["duty"]["power_cap"] == 1.0
    assert len({r.run_id for r in records}) == 12 and {len(r.run_id) for r in records} == {26}
    mode = os.stat(tmp_path / "spool" / "incoming" / "s1.n0.jsonl").st_mode & 0o777
    assert mode == 0o644


@pytest.mark.parametrize("mode", ["concurrent", "solo"])
@pytest.mark.parametrize(("lacking", "first"), [("", "gemm_bf16"), ("gemm_bf16", "gemm_fp16")])
def test_quick_has_a_product_at_the_power_cap_where_tensor_cores_stay_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, lacking: str, first: str
) -> None:
    """As a V100, which has no bf16 besides."""
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 4, 3, model="PAL Emulated Half"))
    monkeypatch.setattr(EmuBackend, "lacks", lambda self, device, spec: "no bf16" if spec.id == lacking else "")
    code, records = run_bench(tmp_path, path, "--mode", mode)
    assert code == Exit.OK
    ids = [[r.bench.id for r in records if r.gpu.slurm_index == i] for i in range(4)]
    assert ids == [[first, "gemm_fp32", "tblock", "hbm_triad"]] * 4
    capped = {r.bench.id: r.telemetry["duty"]["power_cap"] for r in records if r.bench.sensitivity_class == "A"}
    assert capped == {first: 0.0, "gemm_fp32": 1.0}
    assert {r.bench.peers_busy for r in records} == {3 if mode == "concurrent" else 0}


def test_where_one_gpu_stays_below_the_power_cap_all_of_its_node_run_the_other_product(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = measurement.met_cap
    monkeypatch.setattr(measurement, "met_cap", lambda r, *more: r.gpu.slurm_index != 2 and met(r, *more))
    _, records = run_bench(tmp_path, registry)
    found = [r for r in records if r.bench.id == "gemm_fp32"]
    assert [r.gpu.slurm_index for r in sorted(found, key=lambda r: r.gpu.slurm_index)] == [0, 1, 2, 3]
    assert {r.bench.peers_busy for r in found} == {3}


def test_repeated_quick_runs_are_the_three_short_ones(
    registry: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--node=n0", "--expected=1", "--backend=emu", f"--registry={registry}", "--wall-scale=0", "--seed=3"]
    assert bench.main([*words, "--quick", "--repeat=2", "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)["gpus"][0]["benchmarks"]
    assert [one["id"] for one in found] == ["gemm_bf16", "tblock", "hbm_triad"]


def test_repeated_runs_have_busy_neighbours(tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose run is over runs on until the slowest has ended, within a block."""
    set_fault(registry, "n0", 2, "noisy")  # never sure enough: it measures for as long as it may
    prepare, made = EmuBackend.prepare, list[int]()

    def noted(self: EmuBackend, device: DeviceInfo, *more: Any) -> EmuKernel:  # noqa: ANN401
        kernel = prepare(self, device, *more)
        run_block, made_before = kernel.run_block, len(made)
        made.append(device.slot)

        def block(n: int) -> float:
            seconds = run_block(n)
            with (tmp_path / f"{made_before}.{device.slot}").open("a") as stream:
                stream.write(f"{seconds!r}\n")
            return seconds

        kernel.run_block = block  # type: ignore[method-assign]
        return kernel

    monkeypatch.setattr(EmuBackend, "prepare", noted)
    words = ["--node=n0", "--expected=4", "--backend=emu", f"--registry={registry}", "--wall-scale=0", "--seed=3"]
    assert bench.main([*words, "--bench=gemm_bf16,tblock", "--repeat=2"]) == Exit.OK
    for number in range(1, 5):  # after the heat two runs of each
        blocks = [[float(s) for s in (tmp_path / f"{number}.{i}").read_text().split()] for i in range(4)]
        spent = [sum(own) for own in blocks]
        assert max(spent) - min(spent) <= max(max(own) for own in blocks), (number, spent)


def test_ingest_takes_every_record(tmp_path: Path, registry: str) -> None:
    from slurm_pal.store.database import open_database

    set_fault(registry, "n1", 0, "ecc")
    run_bench(tmp_path, registry)
    run_bench(tmp_path, registry, node="n1")
    with open_database(str(tmp_path / "state"), write=True) as database:
        report = ingest(str(tmp_path / "spool"), database)
    assert (report.new, report.bad, report.complaints) == (24, 0, ())


@pytest.mark.parametrize(
    ("fault", "code", "valid", "reason"),
    [
        ("ecc", Exit.HARDWARE, 11, "ecc"),
        ("error", Exit.HARDWARE, 9, "fallen off the bus"),
        ("missing", Exit.PARTIAL, 9, "the driver does not list it"),
        ("noisy", Exit.OK, 12, None),
    ],
)
def test_one_sick_gpu_leaves_the_others_usable(
    tmp_path: Path,
    registry: str,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    code: Exit,
    valid: int,
    reason: str | None,
) -> None:
    set_fault(registry, "n0", 2, fault)
    found, records = run_bench(tmp_path, registry)
    assert found == code and sum(r.valid for r in records) == valid
    bad = [r for r in records if not r.valid]
    assert {r.gpu.slurm_index for r in bad} <= {2} and bool(bad) == (reason is not None)
    assert all(reason is None or reason in r.reason for r in bad)
    said = capsys.readouterr().out
    assert ("GPU 2" in said) == (fault != "noisy")


def test_a_hung_gpu_is_given_up_and_says_so(tmp_path: Path, registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_fault(registry, "n0", 1, "hang")
    code, records = run_bench(tmp_path, registry, "--gpu-timeout-s=2.5")
    assert code == Exit.PARTIAL and sum(r.valid for r in records) == 9
    (bad,) = [r for r in records if not r.valid]
    assert bad.gpu.slurm_index == 1 and bad.result.stop_reason == "timeout" and bad.bench.id == "gemm_bf16"
    assert "no answer within 2.5 s in gemm_bf16" in bad.reason
    assert "GPU 1" in capsys.readouterr().out


def test_a_foreign_process_abandons_the_node(tmp_path: Path, registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_fault(registry, "n0", 3, "foreign_process")
    code, records = run_bench(tmp_path, registry)
    assert code == Exit.INVALID and len(records) == 4 and not any(r.valid for r in records)
    assert all(r.flags == ("foreign_process",) and r.result.value == 0 for r in records)
    assert records[0].gpu.slurm_index == 3 and "in use by pid" in records[0].reason
    assert "GPU 3" in capsys.readouterr().out


def test_a_transient_fault_is_gone_in_the_next_sweep(tmp_path: Path, registry: str) -> None:
    set_fault(registry, "n0", 0, "transient", 2.8)
    first = [r for r in run_bench(tmp_path, registry)[1] if r.gpu.slurm_index == 0 and r.bench.id == "tblock"]
    second = [r for r in run_bench(tmp_path, registry)[1] if r.gpu.slurm_index == 0 and r.bench.id == "tblock"]
    assert second[0].result.value / first[0].result.value == pytest.approx(2.8, rel=0.01)


def test_a_cancelled_bench_keeps_complete_records_and_blames_no_gpu(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, parent = EmuBackend.prepare, os.getpid()

    def stopped_in_the_second(
        self: EmuBackend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()
    ) -> EmuKernel:
        if spec.id == "tblock":
            os.kill(parent, signal.SIGTERM)
            time.sleep(TOO_LONG_S)
        return original(self, device, spec)

    monkeypatch.setattr(EmuBackend, "prepare", stopped_in_the_second)
    code, records = run_bench(tmp_path, registry)
    assert code == Exit.PARTIAL and len(records) == 4
    assert all(r.valid and r.bench.id == "gemm_bf16" for r in records)
    assert "n0: stopped by SIGTERM: 0 of 4 GPUs complete" in capsys.readouterr().out


def test_a_second_job_of_a_sweep_does_not_overwrite_what_the_first_left(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    _, first = run_bench(tmp_path, registry, "--gpu=0-3")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    run_bench(tmp_path, registry, "--gpu=0-3")
    incoming = tmp_path / "spool" / "incoming"
    assert sorted(os.listdir(incoming)) == ["s1.n0.42.jsonl", "s1.n0.jsonl"]
    assert {r.slurm_job_id for r in first} == {41} and len(first) == 12
    where = [str(incoming)]
    assert [results.read(where, "s1", "n0", job_id)[0] for job_id in (41, 42)] == [4, 4]  # type: ignore[index]


def test_a_full_disk_is_one_line_and_nothing_half_written(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("slurm_pal.base.files.os.fsync", full)
    code, records = run_bench(tmp_path, registry)
    assert code == Exit.DATA and records == []
    assert os.listdir(tmp_path / "spool" / "incoming") == []
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unusable_spool_is_found_before_measuring(
    tmp_path: Path, registry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spool").write_text("a file, no directory")
    code = bench.main(
        ["--node=n0", "--expected=4", f"--spool={tmp_path / 'spool'}", "--backend=emu", f"--registry={registry}"]
    )
    assert code == Exit.DATA and "spool" in capsys.readouterr().err


def test_inside_slurm_node_and_gpus_come_from_the_job(tmp_path: Path, registry: str) -> None:
    options = bench.parser().parse_args(
        [
            f"--spool={tmp_path}",
            "--backend=emu",
            f"--registry={registry}",
            "--wall-scale=0",
            "--sweep=s2",
            "--expected=4",
        ]
    )
    environ = {"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "1,3"}
    assert bench.run(options, environ) == Exit.PARTIAL  # two of the four
    records = [from_json(line) for line in (tmp_path / "incoming" / "s2.n1.jsonl").read_text().splitlines()]
    assert {r.gpu.slurm_index for r in records} == {1, 3} and {r.slurm_job_id for r in records} == {17}


def test_a_single_gpu_is_measured_solo(tmp_path: Path, registry: str) -> None:
    code, records = run_bench(tmp_path, registry, "--gpu=2", "--expected=1", "--bench=hbm_triad")
    assert code == Exit.OK and [(r.gpu.slurm_index, r.bench.mode) for r in records] == [(2, "solo")]


def test_mode_and_mig_are_options(tmp_path: Path, registry: str) -> None:
    set_fault(registry, "n0", 3, "mig")
    code, records = run_bench(tmp_path, registry, "--mode=solo", "--mig", "--bench=hbm_copy")
    assert code == Exit.OK and [r.bench.mode for r in records] == ["solo"] * 4
    assert [r.gpu.uuid.endswith("/3g.8gb") for r in records] == [False, False, False, True]


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        ([], {}),
        ([], {"SLURMD_NODENAME": "n0"}),  # left in an environment, but no job
        (["--node", "n0"], {}),
        (["--node", "../n0", "--expected=1"], {}),
        (["--node", "n0", "--gpu=a"], {}),
        (["--node", "n0", "--gpu=0", "--bench=nope"], {}),
        (["--node", "n0", "--gpu=0", "--sweep=a/b"], {}),
        (["--node", "n0", "--gpu=0", "--backend=nope"], {}),
    ],
)
def test_requests_that_mean_nothing_are_refused(
    argv: list[str], environ: dict[str, str], tmp_path: Path, registry: str
) -> None:
    more = [f"--spool={tmp_path}", f"--registry={registry}", "--wall-scale=0"]
    with pytest.raises(UsageError):
        bench.run(bench.parser().parse_args([*argv, *more]), environ)
    assert not list((tmp_path / "incoming").glob("*")) if (tmp_path / "incoming").exists() else True


@pytest.mark.parametrize(("text", "found"), [("0", (0,)), ("0,1,3", (0, 1, 3)), ("2-3,0", (0, 2, 3)), ("1,1", (1,))])
def test_index_lists(text: str, found: tuple[int, ...]) -> None:
    assert bench.parse_indexes(text) == found


def test_auto_takes_a_lab_and_else_leaves_it_to_the_node(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert resolve("emu", {}, registry).registry == registry
    assert resolve("auto", conf) == resolve("auto", {}) == Setting("auto")
    with pytest.raises(SlurmError, match="pal lab up"):
        resolve("emu", {})
    with pytest.raises(UsageError, match="--registry"):
        resolve("replay", {})
    with pytest.raises(UsageError, match="there are: auto, emu, torch, driver, cupy, replay"):
        resolve("nope", {})
    os.rename(registry, tmp_path / "emu_gpus.json")
    assert resolve("auto", conf) == resolve("emu", conf) == Setting("emu", str(tmp_path / "emu_gpus.json"))
    assert resolve("torch", conf) == Setting("torch")


def test_auto_on_a_node_tries_the_backends_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def row(name: str, reason: str) -> BackendChoice:
        def available(environ: object) -> str:
            tried.append(name)
            return reason

        return BackendChoice(
            name, available, lambda setting: EmuBackend(draw_registry(["n0"], 1, 1), setting.seed, 0.0)
        )

    monkeypatch.setitem(BACKENDS, "torch", row("torch", "PyTorch is not installed"))
    monkeypatch.setitem(BACKENDS, "driver", row("driver", ""))
    monkeypatch.setitem(BACKENDS, "cupy", row("cupy", ""))
    assert open_backend(Setting("auto", seed=3)).name == "emu" and tried == ["torch", "driver"]
    for name in ("driver", "cupy"):
        monkeypatch.setitem(BACKENDS, name, row(name, f"no {name}"))
    with pytest.raises(MissingPackageError, match="torch: PyTorch is not installed; driver: no driver; cupy: no cupy"):
        open_backend(Setting("auto"))


def test_a_package_that_is_not_there_is_a_reason_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    available, opened = backends._module("slurm_pal.profiling.no_such_backend")
    assert "no_such_backend" in available({})
    with pytest.raises(MissingPackageError, match="backend strange cannot be used here: cannot be imported"):
        opened(Setting("strange"))


def test_a_damaged_registry_is_told(tmp_path: Path, registry: str) -> None:
    Path(registry).write_text("{")
    with pytest.raises(DataError):
        resolve_and_open(registry)


def resolve_and_open(registry: str) -> None:
    open_backend(resolve("emu", {}, registry))


def test_run_ids_sort_by_time_and_name_one_run() -> None:
    place = RecordOrigin("s", "c", "n0", 1, 0, "emu")
    early, late = (measurement.run_id(t, place, "GPU-1", "gemm") for t in (1_700_000_000.0, 1_700_000_000.002))
    assert early < late and early[10:] == late[10:]
    assert measurement.run_id(1_700_000_000.0, place._replace(job_id=2), "GPU-1", "gemm") != early
    assert measurement.run_id(1_700_000_000.0, place, "GPU-1", "gemm") == early


def test_worker_modules_start_without_heavy_packages() -> None:
    import subprocess
    import sys

    code = "import json, sys, slurm_pal.profiling.node.bench; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pandas", "click", "rich", "sqlite3", "multiprocessing", "asyncio", "ClusterShell", "tomllib"}
    assert not heavy & set(json.loads(done.stdout))


def repeated(options: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = bench.main(["--repeat", "4", *options])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def two_gpus(tmp_path: Path) -> list[str]:
    """Words that name GPUs 0 and 1 of an emulated node."""
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 2, 5))
    return ["--node", "n0", "--gpu", "0-1", "--wall-scale", "0", "--backend", "emu", "--registry", path]


@pytest.mark.parametrize("mode", ["concurrent", "solo"])
def test_repeats_are_printed_with_their_spread(
    two_gpus: list[str], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*two_gpus, "--bench", "gemm_bf16,pcie_h2d,p2p", "--mode", mode]
    code, out, err = repeated([*words, "--json"], capsys)
    table = json.loads(out)
    assert (code, err, table["schema"], table["runs"], table["mode"]) == (Exit.OK, "", "pal.repeat/1", 4, mode)
    assert [gpu["gpu"] for gpu in table["gpus"]] == [0, 1] and table["notes"] == []
    for gpu in table["gpus"]:
        assert [b["id"] for b in gpu["benchmarks"]] == ["gemm_bf16", "pcie_h2d"]
        assert gpu["remarks"] == ["p2p: it needs another GPU"] and gpu["error"] == ""
        for row in gpu["benchmarks"]:
            values = row["values"]
            assert len(set(values)) == 4 == len(row["runs"]) and [r["value"] for r in row["runs"]] == values
            mean = sum(values) / 4
            assert row["range_pct"] == pytest.approx(100 * (max(values) - min(values)) / mean)
            assert 0 < row["cv_pct"] < row["range_pct"]
            assert sorted(values)[1] < row["median"] < sorted(values)[2]
    hot = table["gpus"][0]["benchmarks"][0]["runs"]
    assert all(r["power_cap"] == 1.0 and r["temp_c"] > 60 for r in hot)  # from the first on
    code, out, err = repeated(words, capsys)
    assert (code, err) == (Exit.OK, "") and out.count("n0: GPU 1 gemm_bf16: 4 runs, median ") == 1


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("foreign_process", Exit.INVALID, "in use by pid 4711"),
        ("error", Exit.HARDWARE, "has fallen off the bus (Xid 79)"),
        ("ecc", Exit.HARDWARE, "ecc"),
        ("mig", Exit.PARTIAL, "MIG is enabled"),
        ("missing", Exit.PARTIAL, "GPU 1: the driver does not list it"),
    ],
)
def test_repeats_say_why_a_gpu_gave_no_more(
    two_gpus: list[str], fault: str, code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_fault(two_gpus[-1], "n0", 1, fault)
    found, out, err = repeated([*two_gpus, "--bench", "gemm_bf16"], capsys)
    assert (found, err) == (code, "") and said in out
    assert ("GPU 0 gemm_bf16: 4 runs" in out) == (fault != "foreign_process")  # the others go on


def test_repeats_give_up_a_gpu_that_hangs(
    two_gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_fault(two_gpus[-1], "n0", 0, "hang")
    hasten(tmp_path, monkeypatch)
    code, out, _ = repeated([*two_gpus, "--bench", "gemm_bf16"], capsys)
    assert code == Exit.PARTIAL and "no answer within 30 s in heat" in out and "GPU 1 gemm_bf16: 4 runs" in out


@pytest.mark.parametrize("number", ["1", "0", "x", "-3", "1001", ""])
def test_a_wrong_number_of_repeats_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--repeat", number] if number[:1] != "-" else [f"--repeat={number}"]) == Exit.USAGE
    assert "must be a number of runs from 2 to 1000" in capsys.readouterr().err
    assert bench.main(["--json", "--node", "n0", "--gpu", "0"]) == Exit.USAGE


def test_a_step_knows_its_own_gpus(two_gpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """srun sets SLURM_STEP_GPUS; a batch script has SLURM_JOB_GPUS only."""
    options = bench.parser().parse_args(["--node", "n0"])
    assert bench._indexes(options, {"SLURM_STEP_GPUS": "1"}) == (1,)
    assert bench._indexes(options, {"SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0-3"}) == (1,)
    assert bench._indexes(options, {"SLURM_JOB_GPUS": "0-3"}) == (0, 1, 2, 3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.PARTIAL)])
def test_repeats_end_by_a_signal_with_what_they_have(
    two_gpus: list[str],
    number: signal.Signals,
    code: Exit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hear = repeat.RepeatCollector.hear

    def interrupted(self: repeat.RepeatCollector, worker: Worker, message: dict[str, Any]) -> str:
        if "run" in message:
            os.kill(os.getpid(), number)
        return hear(self, worker, message)

    monkeypatch.setattr(repeat.RepeatCollector, "hear", interrupted)
    found, out, _ = repeated([*two_gpus, "--bench", "gemm_bf16", "--json"], capsys)
    table = json.loads(out)
    assert (found, table["notes"]) == (code, [f"stopped by {number.name}"])
    assert any(gpu["benchmarks"] for gpu in table["gpus"])
