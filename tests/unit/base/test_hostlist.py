# SPDX-License-Identifier: MIT
"""The fast path and ClusterShell agree; what we fold, Slurm can read."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand, fold

names = st.from_regex(r"[a-z]{1,4}(-[a-z]{1,3})?[0-9]{1,3}(-[0-9]{1,2})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("a1,n[2,4-5],b", ("a1", "n2", "n4", "n5", "b")),
        ("gpu[1-2]-ib", ("gpu1-ib", "gpu2-ib")),
        ("n1,n1", ("n1",)),
    ],
)
def test_expand(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", "n[a-b]", "n]1["])
def test_a_broken_list_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the host list"):
        expand(text)


@given(st.lists(names, min_size=1, max_size=30, unique=True))
def test_expand_undoes_fold(nodes: list[str]) -> None:
    assert set(expand(fold(nodes))) == set(nodes)


@given(st.lists(names, min_size=1, max_size=30, unique=True))
def test_the_fast_path_agrees_with_clustershell(nodes: list[str]) -> None:
    folded = fold(nodes)
    assert set(expand(folded)) == set(NodeSet(folded))


@pytest.fixture(scope="module")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The least that scontrol wants before it folds a host list; no controller is asked."""
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n")
    return str(path)


@pytest.mark.skipif(not shutil.which("scontrol"), reason="scontrol is not installed")
@settings(max_examples=20, deadline=None)
@given(nodes=st.lists(names, min_size=1, max_size=12, unique=True))
def test_slurm_reads_what_we_fold(slurm_conf: str, nodes: list[str]) -> None:
    argv = ["scontrol", "show", "hostnames", fold(nodes)]
    env = {"SLURM_CONF": slurm_conf, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    assert set(done.stdout.split()) == set(nodes)
