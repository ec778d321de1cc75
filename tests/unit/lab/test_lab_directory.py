# SPDX-License-Identifier: MIT
"""A lab's directory, its configuration files, its ports and its programs: all without a Slurm."""

from __future__ import annotations

import os
import shutil
import socket
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.errors import BusyError, DataError, MissingPackageError, SlurmError, UsageError
from slurm_pal.lab import accounting, conf, daemons, directory, ports, programs
from slurm_pal.lab.directory import MARKER, LabDirectory
from slurm_pal.lab.lab import Lab

# -- the directory --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "a,b", "a#b", "a%n", "a[0-3]", "a=b", "a'b", 'a"b', "a\nb", "a\\b", "a$b"])
def test_names_that_slurms_files_cannot_hold(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="only letters, digits and") as caught:
        Lab.up(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@settings(deadline=None)
@given(st.integers(1, 140), st.sampled_from(["x", "é"]))
def test_a_name_fits_exactly_when_its_longest_socket_does(length: int, letter: str) -> None:
    lab = LabDirectory("/" + letter * length)
    longest = len(os.fsencode(lab.path)) + len("/spool/n0000/n0000_67043328.4294967291.1")
    if longest <= 107:
        lab.check_name()
    else:
        with pytest.raises(UsageError, match="choose a shorter --dir"):
            lab.check_name()


def test_a_directory_with_foreign_content_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty and not a lab \(it holds 'thesis.tex'\)"):
        LabDirectory(str(tmp_path)).make()
    with pytest.raises(UsageError, match="is not a lab"):
        Lab(str(tmp_path)).down()
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory; choose another"):
        LabDirectory(str(tmp_path / "file" / "lab")).make()
    with pytest.raises(UsageError, match=r"(File exists|Not a directory); choose another"):
        LabDirectory(str(tmp_path / "file")).make()


def test_what_is_ours_goes_and_the_rest_stays(tmp_path: Path) -> None:
    lab = LabDirectory(str(tmp_path / "lab"))
    assert lab.make()
    lab.write_facts({"nodes": 3})
    lab.make_rooms(2)
    assert lab.facts()["nodes"] == 3
    assert os.path.exists(lab("dev", "nvidia1"))
    (tmp_path / "lab" / "mine").mkdir()
    assert not lab.make()
    assert lab.remove() == ["mine"]
    assert os.listdir(lab.path) == ["mine"]
    os.rmdir(lab("mine"))
    assert lab.remove() == []
    assert not lab.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "pal.lab/2", "nodes": 3}'])
def test_facts_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKER).write_text(text)
    lab = LabDirectory(str(tmp_path))
    assert lab.is_lab()
    assert lab.facts() == {}
    assert Lab(str(tmp_path)).status().state == "down"


def test_one_at_a_time(tmp_path: Path) -> None:
    lab = LabDirectory(str(tmp_path))
    (tmp_path / MARKER).write_text("{}")
    with lab.claimed(), pytest.raises(BusyError, match="another pal lab up or down"):
        Lab(str(tmp_path)).down()
    assert Lab(str(tmp_path)).down().removed
    assert not tmp_path.exists()


def test_something_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = LabDirectory(str(tmp_path / "lab"))
    lab.make()
    lab.make_rooms(1)

    def refuse(path: str) -> None:
        raise OSError(16, "Device or resource busy", path)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(DataError, match=r"cannot remove .*etc: Device or resource busy"):
        lab.remove()


def test_the_default_directory() -> None:
    assert directory.default_directory({"XDG_STATE_HOME": "/s"}) == "/s/slurm-pal/lab"
    assert directory.default_directory({}).endswith("/.local/state/slurm-pal/lab")
    with pytest.raises(UsageError, match="not absolute"):
        directory.default_directory({"XDG_STATE_HOME": "s"})


@pytest.mark.parametrize(
    ("size", "complaint"),
    [
        ({"nodes": 0}, "--nodes 0 must be in 1..2000"),
        ({"gpus": 65}, "--gpus 65 must be in 1..64"),
        ({"cpus": -1}, "--cpus -1"),
        ({"memory_mib": 0}, "--memory-mib 0"),
        ({"wait_s": float("nan")}, "--wait-s nan"),
    ],
)
def test_sizes_that_make_no_sense(tmp_path: Path, size: dict[str, int], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Lab.up(str(tmp_path / "lab"), **size)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


# -- configuration files ----------------------------------------------------------------


def spec(nodes: int = 8, version: tuple[int, int] = (22, 5)) -> conf.LabSpec:
    return conf.LabSpec(LabDirectory("/l"), nodes, 4, 16, 64000, "me", 17000, version)


def test_slurm_conf_says_what_the_lab_is() -> None:
    lines = conf.slurm_conf_text(spec()).splitlines()
    assert "SlurmctldPort=17000" in lines
    assert "AuthInfo=socket=/l/run/munge.sock,cred_expire=5" in lines
    node = next(line for line in lines if line.startswith("NodeName="))
    assert node.startswith("NodeName=n[0-7] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-17008] CPUs=16 ")
    assert node.endswith(" RealMemory=64000 Gres=gpu:4 State=UNKNOWN")
    assert "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO" in lines
    assert "ignore_prefer_validation" in next(line for line in lines if line.startswith("SchedulerParameters="))


def test_a_lab_of_one_node_needs_no_ranges() -> None:
    small = spec(nodes=1)._replace(gpus=1)
    assert "NodeName=n0 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17001 " in conf.slurm_conf_text(small)
    assert conf.gres_conf_text(small) == "Name=gpu File=/l/dev/nvidia0\n"
    assert conf.gres_conf_text(spec()) == "Name=gpu File=/l/dev/nvidia[0-3]\n"


@pytest.mark.parametrize(("cpus", "memory_mib", "each"), [(16, 64000, 500), (16, 1600, 100), (16, 8, 1)])
def test_jobs_share_a_nodes_memory(cpus: int, memory_mib: int, each: int) -> None:
    text = conf.slurm_conf_text(spec()._replace(cpus=cpus, memory_mib=memory_mib))
    assert f"\nDefMemPerCPU={each}\n" in text


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 5), "disabled"), ((26, 5), "disabled")],
)
def test_each_release_is_kept_from_cgroups(version: tuple[int, int], plugin: str) -> None:
    assert conf.config_files(spec(version=version))["cgroup.conf"] == f"CgroupPlugin={plugin}\n"


@pytest.mark.parametrize("version", [(22, 5), (24, 11), (26, 5)])
def test_accounting_by_slurmdbd_with_a_port_of_the_labs_block(version: tuple[int, int]) -> None:
    lab = spec(version=version)._replace(accounting=True)
    lines = conf.slurm_conf_text(lab).splitlines()
    keys = [line.partition("=")[0] for line in lines if not line.startswith("#")]
    assert len(keys) == len(set(keys))
    assert {
        "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStoragePort=17009",
        "PriorityType=priority/multifactor",
        "AccountingStoragePass=/l/run/munge.sock", "AccountingStorageTRES=gres/gpu", "AccountingStoreFlags=job_comment",
    } <= set(lines)  # fmt: skip
    assert not any(line.startswith("AccountingStorageEnforce") for line in lines)
    dbd = accounting.slurmdbd_conf_text(lab).splitlines()
    assert {"DbdPort=17009", "AuthInfo=socket=/l/run/munge.sock", "StorageHost=localhost", "StorageUser=me"} <= set(dbd)
    assert not any(line.startswith(("StoragePort", "StoragePass")) for line in dbd)
    assert not any("Accounting" in line for line in conf.slurm_conf_text(spec()).splitlines())


def test_a_file_of_partitions_has_the_last_word_on_priorities() -> None:
    chosen = conf.ONE_PARTITION._replace(settings={"PriorityWeightAge": "5"})
    lines = conf.slurm_conf_text(spec()._replace(accounting=True, partitions=chosen)).splitlines()
    assert [line for line in lines if line.startswith("PriorityWeightAge=")] == ["PriorityWeightAge=5"]


def test_mariadb_is_told_to_have_no_network_and_to_read_no_other_settings() -> None:
    argv = accounting.mariadbd_argv("/usr/sbin/mariadbd", LabDirectory("/l"))
    assert argv[:2] == ["/usr/sbin/mariadbd", "--no-defaults"]
    assert {"--datadir=/l/sql/data", "--skip-networking", "--socket=/l/sql/sock", "--tmpdir=/l/sql"} <= set(argv)
    assert ("--user=root" in argv) == (os.geteuid() == 0)


def test_pal_toml() -> None:
    table = tomllib.loads(conf.pal_toml_text(LabDirectory("/l")))
    paths = {"state_dir": "/l/pal", "spool": "/l/pal/spool", "table": "/l/etc/pal_table.lua", "gpus": "/l/pal/gpus.txt"}
    assert table == {"paths": paths, "profile": {"backend": "emu"}}


# -- ports ------------------------------------------------------------------------------


def test_a_block_with_a_taken_port_is_passed_over() -> None:
    first = next(ports.free_blocks(3, "here"))
    with socket.socket() as holder:
        holder.bind(("", first + 2))
        holder.listen()
        assert not ports.block_is_free(first, 3)
        assert ports.is_listening(first + 2)
        assert next(ports.free_blocks(3, "here")) != first
    assert not ports.is_listening(first + 2)


def test_blocks_lie_below_the_ports_of_clients_and_do_not_overlap() -> None:
    blocks = [block for block, _ in zip(ports.free_blocks(65, "x"), range(20), strict=False)]
    assert all(ports.LOWEST <= block <= ports.HIGHEST - 65 for block in blocks)
    assert all(abs(one - other) >= 65 for one in blocks for other in blocks if one != other)
    assert len(set(blocks)) == 20


# -- programs -----------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_missing_packages_are_named_with_the_apt_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_PATHS", ())
    monkeypatch.setattr(LabDirectory, "check_name", lambda self: None)  # tmp_path may be too long
    script(tmp_path / "sinfo", "")
    with pytest.raises(MissingPackageError) as caught:
        Lab.up(str(tmp_path / "lab"))
    assert str(caught.value) == (
        "a lab needs slurmctld, slurmd, munged, squeue, scancel, scontrol, which cannot be found: "
        "apt-get install slurmctld slurmd slurm-client munge"
    )
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("there", "packages"),
    [
        ((), "slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core mariadb-client-core"),
        ((*programs.NEEDED, "slurmdbd"), "slurmdbd mariadb-server-core mariadb-client-core"),
    ],
)
def test_accounting_needs_more_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], packages: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_PATHS", ())
    for name in there:
        script(tmp_path / name, "")
    with pytest.raises(MissingPackageError) as caught:
        programs.find_programs(accounting=True)
    said = str(caught.value)
    assert said.startswith("a lab with accounting needs ") and "mariadbd, mariadb-install-db" in said
    assert said.endswith(f", which cannot be found: apt-get install {packages}")


def test_slurmrestd_is_one_more_package_and_has_the_plug_in_of_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_PATHS", ())
    for name in programs.NEEDED:
        script(tmp_path / name, "")
    with pytest.raises(MissingPackageError, match=r"^a lab with slurmrestd needs slurmrestd, .*install slurmrestd$"):
        programs.find_programs(rest=True)
    plugins = [daemons.slurmrestd_argv("slurmrestd", spec(version=version))[-2] for version in ((22, 5), (24, 11))]
    assert plugins == ["openapi/v0.0.38", "openapi/slurmctld"]


def test_a_release_whose_slurmrestd_no_lab_can_run_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_pal.lab.lab.find_programs", lambda *_: {"slurmctld": "slurmctld"})
    monkeypatch.setattr("slurm_pal.lab.lab.slurm_version", lambda _: (26, 5))
    monkeypatch.setattr(LabDirectory, "check_name", lambda self: None)  # tmp_path may be too long
    with pytest.raises(UsageError, match=r"^--rest: slurmrestd of Slurm 26.05 runs neither as root nor as SlurmUser"):
        Lab.up(str(tmp_path / "lab"), rest=True)
    assert not (tmp_path / "lab").exists()


def test_daemons_are_found_outside_the_path_of_an_ordinary_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, system = tmp_path / "bin", tmp_path / "sbin"
    user.mkdir()
    system.mkdir()
    for name in programs.NEEDED:
        script((system if name.endswith("d") else user) / name, "")
    monkeypatch.setenv("PATH", str(user))
    monkeypatch.setattr(programs, "SYSTEM_PATHS", (str(system),))
    assert programs.find_programs()["slurmd"] == str(system / "slurmd")
    assert programs.find_programs()["sinfo"] == str(user / "sinfo")


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm-wlm 26.05.0-rc1", (26, 5))],
)
def test_the_release(tmp_path: Path, text: str, version: tuple[int, int]) -> None:
    assert programs.slurm_version(script(tmp_path / "slurmctld", f"echo {text}")) == version


def test_a_program_that_tells_no_release(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="-V failed: 'no such option'"):
        programs.slurm_version(script(tmp_path / "slurmctld", "echo no such option; exit 1"))
    with pytest.raises(SlurmError, match="cannot be run"):
        programs.slurm_version(str(tmp_path / "none"))


def test_a_uid_without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    with pytest.raises(UsageError, match="uid 4000000000 has no account"):
        programs.account_name()


def test_an_outer_jobs_variables_do_not_reach_the_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "SLURMD_NODENAME", "SBATCH_PARTITION", "SQUEUE_FORMAT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/slurm/lib")
    environment = programs.bare_environment()
    assert environment["LD_LIBRARY_PATH"] == "/opt/slurm/lib"
    assert not [name for name in environment if name.startswith(("SLURM", "SBATCH", "SQUEUE", "CUDA"))]
