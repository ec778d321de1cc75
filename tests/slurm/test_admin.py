# SPDX-License-Identifier: MIT
"""pal admin on a real Slurm: install, use, status, uninstall; and what Slurm refuses is not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import load
from slurm_pal.lab.lab import Lab
from slurm_pal.store.snapshot import GpuScore, publish

from .test_lab import wait_until

pytestmark = pytest.mark.real_slurm
PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
TIMEOUT_S = 60.0
SITE_LUA = """function slurm_job_submit(job, partitions, uid) slurm.log_user("the site's own") return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


class Site:
    """A lab of the test's own, and its folder of configuration."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = Path(lab.directory.conf).parent
        self.conf = Path(lab.directory.conf)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = self.lab.environ()
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def admin(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(*PAL, "admin", *words)

    def reconfigure(self, plugins: str) -> None:
        """Let slurmctld read its files again, and wait until it runs these JobSubmitPlugins."""
        assert self.run("scontrol", "reconfigure").returncode == 0
        want = ["JobSubmitPlugins", plugins]
        wait_until(
            lambda: want in [line.split(" = ") for line in self.squeezed("scontrol", "show", "config").splitlines()]
        )

    def squeezed(self, *argv: str) -> str:
        return "\n".join(" ".join(line.split()) for line in self.run(*argv).stdout.splitlines())

    def submit(self) -> str:
        done = self.run("sbatch", "--parsable", "-o", "/dev/null", "--gres=gpu:1", "--wrap", "true")
        assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr
        return done.stderr

    def files(self) -> dict[str, bytes | str]:
        return {
            p.name: os.readlink(p) if p.is_symlink() else p.read_bytes()
            for p in self.folder.iterdir()
            if "pal-backup" not in p.name
        }


@pytest.fixture
def site(lab_dir: str) -> Iterator[Site]:
    with Lab.up(lab_dir, nodes=1, gpus=1, seed=1) as running:
        yield Site(running)


def test_install_use_status_uninstall(site: Site) -> None:
    with site.conf.open("a") as stream:
        stream.write("job\\\nSubmitPlugins = throttle # ours\nMaxArraySize=99")
    site.reconfigure("throttle")
    was = site.files()
    shown = site.admin("install")
    assert shown.returncode == 0 and "+JobSubmitPlugins=throttle,lua" in shown.stdout, shown.stderr
    assert site.files() == was
    done = site.admin("install", "--server", "--client", "--act")
    assert done.returncode == 0 and "scontrol reconfigure" in done.stdout, done.stderr
    assert site.admin("status").returncode == 1  # slurmctld does not run it yet
    site.reconfigure("throttle,lua")
    site.submit()
    assert site.admin("status").returncode == 8  # no table yet
    report = json.loads(site.admin("status", "--json").stdout)
    assert {item["part"] for item in report["items"] if item["state"] == "wrong"} == {"table"}
    assert site.admin("install", "--act").stdout.rstrip().endswith("nothing to change")
    gone = site.admin("uninstall", "--act")
    assert gone.returncode == 0, gone.stderr
    assert site.files() == was
    site.reconfigure("throttle")
    site.submit()


def test_the_last_line_of_install_keeps_the_filter_in_force(site: Site) -> None:
    """Where systemd does not serve this Slurm: the command that is shown, typed as it stands."""
    settings = load(site.lab.environ())
    score = GpuScore("n0", 0, "GPU-n0-0", "m", {"A": 1.0, "B": 1.0, "C": 1.0}, {"A": "v0"}, time.time(), 1.0, ())
    publish(settings.snapshot_path, [score], cluster="lab", epoch=1, now_s=time.time())
    done = site.admin("install", "--server", "--act", "-y")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "publish-table" in line and line.startswith("  ")]
    site.reconfigure("lua")
    served = subprocess.Popen(["bash", "-c", f"exec {line.strip()}"], env=site.lab.environ())
    try:
        wait_until(lambda: site.admin("status").returncode == 0)
        assert "a daemon takes leases back" in site.admin("status").stdout
        first = json.loads(site.admin("status", "--json").stdout)["table"]["epoch"]
        wait_until(lambda: json.loads(site.admin("status", "--json").stdout)["table"]["epoch"] > first)
    finally:
        served.terminate()
        served.wait(TIMEOUT_S)


def test_the_table_in_force_and_a_slurmctld_that_is_gone(site: Site) -> None:
    assert site.admin("install", "--server", "--act").returncode == 0
    site.reconfigure("lua")
    table = Path(load(site.lab.environ()).table_path)
    head = '["epoch"] = "7", ["written_s"] = "99999999999", ["max_age_s"] = "30", ["clears"] = "",'
    table.write_text(f'return {{ ["schema"] = "pal.table/1", {head}\n["end"] = "7" }}\n')
    done = site.admin("status")
    assert done.returncode == 0, done.stdout
    site.submit()
    site.lab.down(keep=True)
    assert site.admin("status").returncode == 6


def test_the_sites_own_filter_goes_on(site: Site) -> None:
    (site.folder / "job_submit.lua").write_text(SITE_LUA)
    with site.conf.open("a") as stream:
        stream.write("JobSubmitPlugins=lua\n")
    site.reconfigure("lua")
    was = site.files()
    done = site.admin("install", "--server", "--act")
    assert done.returncode == 0, done.stderr
    ours = site.folder / "slurm-pal" / "job_submit.lua"
    text = ours.read_text()
    ours.write_text(text.replace("\nreturn slurm.SUCCESS\n", '\nslurm.log_info("pal was called")\n'))
    assert ours.read_text() != text
    assert "the site's own" in site.submit()
    assert "pal was called" in Path(site.lab.directory.log("slurmctld")).read_text()
    assert site.admin("status").returncode == 1  # the file with the trace is not that of this version
    assert site.admin("uninstall", "--apply").returncode == 0  # its earlier name
    assert site.files() == was


def test_what_slurms_parser_refuses_is_not_installed(site: Site) -> None:
    """A list with a blank is in quotes; our line has none, and the parser says so of the candidate."""
    with site.conf.open("a") as stream:
        stream.write('JobSubmitPlugins="throttle ,x"\n')
    was = site.files()
    refused = site.admin("install", "--server", "--act")
    assert refused.returncode == 1 and "Parse error in file" in refused.stderr, refused.stderr
    assert str(site.conf) in refused.stderr
    assert site.files() == was


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_a_plug_in_that_cannot_be_loaded_is_refused(site: Site, tmp_path: Path) -> None:
    plugin = tmp_path / "pal_spank.so"
    plugin.write_text("no ELF file")
    was = site.files()
    refused = site.admin("install", "--spank", "--plugin", str(plugin), "--act")
    assert refused.returncode == 1 and "Dlopen of plugin file failed" in refused.stderr
    assert site.files() == was
    source = tmp_path / "p.c"
    source.write_text(
        "#include <slurm/spank.h>\nSPANK_PLUGIN(pal, 1);\n"
        'static struct spank_option o = {"pal-trace", 0, "x", 0, 0, 0};\n'
        "int slurm_spank_init(spank_t s, int c, char **v) { return spank_option_register(s, &o); }\n"
    )
    if subprocess.run(["gcc", "-shared", "-fPIC", "-o", plugin, source], capture_output=True, check=False).returncode:
        pytest.skip("no headers of Slurm")
    done = site.admin("install", "--spank", "--plugin", str(plugin), "--act")
    assert done.returncode == 0, done.stderr
    assert "--pal-trace" in site.run("sbatch", "--help").stdout
    assert site.admin("uninstall", "--act").returncode == 0
    assert site.files() == was
