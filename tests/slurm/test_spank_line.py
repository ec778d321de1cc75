# SPDX-License-Identifier: MIT
"""--pal-note of sbatch, srun and salloc on a real Slurm: the line at the end of a job's output, by the plug-in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_spank import Site, module_site, plugin, site, wait_until  # noqa: F401  # its lab

pytestmark = pytest.mark.real_slurm

MAKER = """#!/bin/sh
echo "line of $SLURM_JOB_ID by $*"
"""


def maker(site: Site, text: str = MAKER) -> None:  # noqa: F811
    """What stands for the nodes' Python."""
    path = Path(site.lab.directory("pal", "maker"))
    path.write_text(text)
    path.chmod(0o755)
    site.arguments(f"python={path}")


def ended(site: Site, *options: str, body: str) -> tuple[str, str, str]:  # noqa: F811
    """The id of a batch job with --pal-note that has ended, its exit code as Slurm shows it, and its output."""
    site.output.unlink(missing_ok=True)
    done = site.run("sbatch", "--parsable", "-o", str(site.output), "--pal-note", *options, "--wrap", body)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    job = done.stdout.strip()
    wait_until(lambda: site.run("squeue", "-h", "-j", job).stdout == "")
    shown = site.run("scontrol", "show", "job", "-o", job).stdout
    return job, re.findall(r" ExitCode=(\S+)", shown)[0], site.output.read_text()


@pytest.mark.parametrize(("body", "code"), [("exit 7", "7:0"), ("kill -9 $$", "0:9"), ("exec sh -c true", "0:0")])
def test_the_output_of_a_batch_job_ends_with_a_line(site: Site, body: str, code: str) -> None:  # noqa: F811
    maker(site)
    # Whatever was started beside the script, it is none of its children.
    job, found, said = ended(
        site, body=f"srun -n1 true; read -r pid < /proc/$$/task/$$/children; echo ran$pid; sleep 0.5; {body}"
    )
    assert (found, said) == (code, f"ran\nline of {job} by -I -m slurm_pal.cli.note\n")
    assert site.sbatch(body="echo plain") and site.output.read_text() == "plain\n"


def test_a_cancelled_job_and_a_step_have_the_line(site: Site) -> None:  # noqa: F811
    maker(site)
    job = site.run("sbatch", "--parsable", "-o", str(site.output), "--pal-note", "--wrap", "sleep 60").stdout.strip()
    wait_until(lambda: "JobState=RUNNING" in site.run("scontrol", "show", "job", "-o", job).stdout)
    site.run("scancel", "--signal=TERM", "--batch", job)
    wait_until(lambda: site.run("squeue", "-h", "-j", job).stdout == "")
    assert site.output.read_text().splitlines()[-1:] == [f"line of {job} by -I -m slurm_pal.cli.note"]
    done = site.run("srun", "--pal-note", "-N2", "-n4", "sh", "-c", "echo ran; sleep 0.$SLURM_PROCID; exit 3")
    lines = done.stdout.splitlines()
    assert done.returncode == 3 and lines.count("ran") == 4 and len(lines) == 5
    assert [line for line in lines if re.fullmatch(r"line of \d+ by -I -m slurm_pal.cli.note", line)]


@pytest.mark.parametrize(
    "text",
    ["", "#!/nowhere/sh\n", "#!/bin/sh\nprintf half\n", "#!/bin/sh\nhead -c 99999 /dev/zero | tr '\\0' x\necho\n"],
)
def test_without_a_line_the_job_is_as_ever(site: Site, text: str) -> None:  # noqa: F811
    maker(site, text)
    assert ended(site, body="echo ran; exit 4")[1:] == ("4:0", "ran\n")
    assert ended(site, "--pal-off", body="echo ran")[1:] == ("0:0", "ran\n")


def test_where_there_can_be_no_line_the_user_is_told(site: Site) -> None:  # noqa: F811
    done = site.run("sbatch", "--pal-note", "-o", "/dev/null", "--wrap", "true")
    assert done.returncode == 0
    assert done.stderr == "pal: warning: --pal-note is ignored: plugstack.conf has no python=\n"
    done = site.run("salloc", "--pal-note", "true")
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        "salloc: error: pal: --pal-note is not for salloc, whose job has no output of its own: give it to srun, or run "
        '"pal note" before you leave'
    )
