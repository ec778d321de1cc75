# SPDX-License-Identifier: MIT
"""What a submission asks for: sources, shapes, and what is left to Slurm with which reason."""

from __future__ import annotations

import pytest

from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.constraint import compile_constraint
from slurm_pal.decide.request import NO_GPU_WORDS, Request, for_class
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import build
from slurm_pal.submit.script import Script, scan


def read(words: str, script: str = "", **environment: str) -> Request:
    return build(parse([*words.split(), "job.sh"]), environment, scan(f"#!/bin/sh\n{script}\n".encode()))


@pytest.mark.parametrize(
    ("words", "shape", "nodes"),
    [
        ("--gres=gpu:2", GpuShape(2, 1, 2), (1, 1)),
        ("--gres=gpu", GpuShape(1, 1, 1), (1, 1)),
        ("--gres=gpu:v100:2", GpuShape(2, 1, 2, "v100"), (1, 1)),
        ("--gres=gres/gpu:v100:2", GpuShape(2, 1, 2, "v100"), (1, 1)),
        ("--gres=gpu:2 -N3", GpuShape(6, 3, 2), (3, 3)),
        ("--gpus-per-node=4 -N2-4", GpuShape(8, 2, 4), (2, 4)),
        ("--gpus=8", GpuShape(8), (1, None)),
        ("-G a100:8", GpuShape(8, None, None, "a100"), (1, None)),
        ("--gpus=8 -N2", GpuShape(8, 2), (2, 2)),
        ("--gpus=8 --gpus-per-node=4", GpuShape(8, 2, 4), (2, 2)),
        ("-n4 --gpus-per-task=1", GpuShape(4), (1, None)),
        ("-n4 --ntasks-per-node=2 --gpus-per-task=2", GpuShape(8, 2, 4), (2, 2)),
        ("-n8 --gres=gpu:2", GpuShape(2, 1, 2), (1, None)),
        ("-N4 -n2 --gres=gpu:1", GpuShape(2, 2, 1), (2, 2)),  # sbatch: can't run 2 processes on 4 nodes
        ("-N2-4 -n3 --gres=gpu:1", GpuShape(2, 2, 1), (2, 3)),
        ("-N2 -n1 --gpus-per-task=2", GpuShape(2, 1), (1, 1)),
        ("-n1 --gpus=8", GpuShape(8, 1), (1, 1)),
        ("--exclusive -N2", GpuShape(2, 2, 1, "", True), (2, 2)),
        ("--exclusive --gres=gpu:2", GpuShape(2, 1, 2, "", True), (1, 1)),
        ("-N2", None, (2, 2)),
        ("--gres=none", None, (1, None)),
        ("--gpus=0", None, (1, None)),
    ],
)
def test_shapes(words: str, shape: GpuShape | None, nodes: tuple[int, int | None]) -> None:
    request = read(words)
    assert not request.leave
    assert request.shape == shape
    assert (request.nodes_min, request.nodes_max) == nodes


@pytest.mark.parametrize(
    ("words", "sensitivity", "origin", "left"),
    [
        ("--exclusive", "?", "", True),
        ("--exclusive -N2 --gres=none", "?", "default", True),
        ("--exclusive --gres=gpu:0", "?", "", True),
        ("--exclusive --gpus=0", "A", "script", True),
        ("--exclusive", "A", "script", True),
        ("--exclusive", "A", "word", False),
        ("--exclusive", "C", "history", False),
        ("--exclusive", "B", "telemetry", False),
        ("--exclusive --gpus-per-node=1", "?", "", False),
        ("--exclusive -n2 --gpus-per-task=1", "A", "script", False),
        ("--gres=gpu:1", "?", "", False),
        ("-N2", "?", "", False),
    ],
)
def test_whole_nodes_without_a_word_of_gpus_need_a_class_that_is_known(
    words: str, sensitivity: str, origin: str, left: bool
) -> None:
    """A job for CPUs is given the GPUs of its nodes, too: it was pinned to the best ones."""
    request = for_class(read(words), sensitivity, origin)
    assert request.leave == (NO_GPU_WORDS if left else "")


def test_precedence_is_command_line_environment_script() -> None:
    script = "#SBATCH --gres=gpu:1 -p s -t 60 -N3"
    request = read("-p c", script, SBATCH_PARTITION="e", SBATCH_TIMELIMIT="30")
    assert request.partitions == ("c",) and request.time_limit_s == 1800
    assert request.shape == GpuShape(3, 3, 1)


def test_wrap_reads_no_directives_and_a_missing_script_gives_none() -> None:
    line = parse(["--wrap", "true", "--gres=gpu:1"])
    assert build(line, {}, None).shape == GpuShape(1, 1, 1)


@pytest.mark.parametrize(
    ("script", "variables", "words", "node", "cpu"),
    [
        ("", ("MEM_PER_NODE",), "--mem-per-cpu=3", None, 3),
        ("", ("MEM_PER_CPU",), "--mem=3", 3, 0),
        ("--mem=1", ("MEM_PER_NODE",), "--mem-per-cpu=3", None, 3),
        ("--mem=1", ("MEM_PER_CPU",), "", 1, 0),
        ("--mem=1", ("MEM_PER_NODE",), "", 2, 0),
        ("--mem=1", ("MEM_PER_CPU",), "--mem=3", 3, 0),
        ("--mem-per-cpu=1", ("MEM_PER_CPU",), "--mem=3", 3, 0),
        ("", ("MEM_PER_NODE", "MEM_PER_CPU"), "--mem=3", 3, 0),
    ],
)
def test_memory_that_was_typed_overrules_variables(
    script: str, variables: tuple[str, ...], words: str, node: int | None, cpu: int
) -> None:
    """As the sbatch of Slurm 22.05 did it."""
    told = {f"SBATCH_{name}": "2" for name in variables}
    request = read(f"--gres=gpu:1 {words}", f"#SBATCH {script}" if script else "", **told)
    assert (request.mem_per_node_mib, request.mem_per_cpu_mib, request.leave) == (node, cpu, "")


@pytest.mark.parametrize(
    ("script", "variables", "words"),
    [
        ("--mem=1", (), "--mem-per-cpu=3"),
        ("--mem=1", ("MEM_PER_CPU",), "--mem-per-cpu=3"),
        ("--mem-per-cpu=1", ("MEM_PER_NODE",), "--mem=3"),
        ("--mem=1", ("MEM_PER_NODE", "MEM_PER_CPU"), ""),
        ("", (), "--mem-per-gpu=1 --mem-per-cpu=3"),
    ],
)
def test_sbatch_refuses_memory_in_two_ways(script: str, variables: tuple[str, ...], words: str) -> None:
    told = {f"SBATCH_{name}": "2" for name in variables}
    assert "only one of --mem" in read(f"--gres=gpu:1 {words}", f"#SBATCH {script}", **told).leave


def test_amounts_of_memory() -> None:
    assert read("--gres=gpu:1 --mem-per-gpu=2G").mem_per_gpu_mib == 2048
    assert read("--gres=gpu:1 --mem=0").mem_per_node_mib == 0
    assert read("--gres=gpu:1 --mem=1000").mem_per_node_mib == 1000


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--begin=now+1hour", "start now"),
        ("-d afterok:1", "start now"),
        ("-H", "start now"),
        ("-M other", "another cluster"),
        ("-F nodes.txt", "--nodefile"),
        ("--switches=few", "--switches"),
        ("--contiguous", "order of nodes"),
        ("--gpus-per-socket=1", "sockets"),
        ("--prefer=x", "user's own"),
        ("-w n[1-2] -N2", "names all nodes"),
        ("-w n1", "names all nodes"),
        ("-w n1 --gpus=8", "number is not fixed"),
        ("-w ./hosts -N2", "file"),
        ("--gres=gpu:a:1,gpu:b:1", "several GPU types"),
        ("--gres=gpu:1,shard:5", "shard"),
        ("--gres=gpu:a:1 --gpus=b:2", "GPU types"),
        ("--gpus=7 --gpus-per-node=2", "each node"),
        ("-N1,3", "--nodes"),
        ("-N0", "--nodes"),
        ("-n x", "--ntasks"),
        ("-N1 -n16 --ntasks-per-node=2", "16 tasks do not fit on 1 nodes"),
        ("--mem=lots", "--mem"),
        ("--exclusive=user", "shares a node"),
        ("--bogus", "--bogus"),
        ("-m arbitrary", "arbitrary"),
        (": -N2", "heterogeneous"),
    ],
)
def test_what_cannot_be_mapped_is_left_to_slurm_with_a_reason(words: str, reason: str) -> None:
    own = "" if "gpu" in words or "-G" in words else "--gres=gpu:1 "
    assert reason in read(own + words).leave


def test_doubts_about_the_script_leave_the_choice_to_slurm() -> None:
    line = parse(["--gres=gpu:1", "job.sh"])
    assert build(line, {}, Script(doubt="not found")).leave == "not found"
    assert "PBS" in build(line, {}, scan(b"#!/bin/sh\n#PBS -l x\n")).leave
    assert not build(parse(["--gres=gpu:1", "--ignore-pbs", "x"]), {}, scan(b"#!/bin/sh\n#PBS -l x\n")).leave
    assert "word" in build(line, {}, scan(b"#!/bin/sh\n#SBATCH word\n")).leave
    assert "heterogeneous" in build(line, {}, scan(b"#!/bin/sh\n#SBATCH hetjob\n")).leave
    assert "--nodefile" in build(line, {"SLURM_HOSTFILE": "x"}, None).leave


def test_hard_lists_are_ruled_out_for_arrays_and_when_the_id_is_not_told() -> None:
    assert "array" in read("--gres=gpu:1 -a 1-3").soft_only
    assert "job id" in read("--gres=gpu:1 -Q").soft_only
    assert not read("--gres=gpu:1").soft_only


@pytest.mark.parametrize(
    ("text", "features", "holds"),
    [
        ("a", {"a"}, True),
        ("a&b", {"a"}, False),
        ("a&b", {"a", "b"}, True),
        ("a|b", {"b"}, True),
        ("(a|b)&c", {"b", "c"}, True),
        ("(a|b)&c", {"b"}, False),
        ("a-1.x_y", {"a-1.x_y"}, True),
    ],
)
def test_constraints_that_one_node_can_tell(text: str, features: set[str], holds: bool) -> None:
    predicate = compile_constraint(text)
    assert predicate is not None
    assert predicate(frozenset(features)) is holds


def test_a_type_of_gpus_may_look_like_a_number() -> None:
    asked = build(parse(["--gres=gpu:\u00b2"]), {}, None)
    assert asked.shape == GpuShape(1, 1, 1, "\u00b2")


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "1\u00b2"])
@pytest.mark.parametrize("option", ["--nodes=", "--cpus-per-gpu=", "--mem=", "--ntasks="])
def test_numbers_that_are_none_are_slurms_to_refuse(option: str, number: str) -> None:
    asked = build(parse(["--gres=gpu:1", option + number]), {}, None)
    assert f"{option[:-1]}={number}" in asked.leave


@pytest.mark.parametrize(
    "text",
    [
        "[a|b]",
        "a*2",
        "a&b|c",
        "(a",
        "a)",
        "a&",
        "&a",
        "a,b",
        "",
        "!a",
        "(" * 2000 + "a" + ")" * 2000,
        "a|" * 4000 + "a",
    ],
)
def test_other_constraints_are_slurms(text: str) -> None:
    assert compile_constraint(text) is None
