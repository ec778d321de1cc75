# SPDX-License-Identifier: MIT
"""Elastic jobs as they are submitted: what is asked for, what cannot be, and what companions are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.base.errors import UsageError
from slurm_pal.submit.argv import CommandLine, parse
from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.choice import choice
from slurm_pal.submit.elastic import Elastic, asked, checked, companions, part
from slurm_pal.submit.script import scan

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]


def read(*words: str, script: str = "#!/bin/sh\n", **environment: str) -> tuple[Elastic, CommandLine]:
    """What is asked for by these words, and the base job's command line."""
    line, body = parse([*words, "job.sh"]), scan(script.encode())
    wanted = asked(choice(line), environment, body)
    assert wanted is not None
    return checked(wanted, line, environment, body)


@pytest.mark.parametrize(
    ("words", "script", "environment", "size"),
    [
        (["--pal-elastic", "2:6"], "", {}, (2, 6)),
        (["--pal-elastic=1:1000"], "", {}, (1, 1000)),
        ([], "#PAL class=A elastic=3:3\n", {}, (3, 3)),
        ([], "#PAL elastic=3:4\n", {"SLURM_PAL_ELASTIC": "1:2"}, (1, 2)),
        (["--pal-elastic=5:6"], "#PAL elastic=3:4\n", {"SLURM_PAL_ELASTIC": "1:2"}, (5, 6)),
    ],
)
def test_the_size_comes_from_the_command_line_else_the_environment_else_the_script(
    words: list[str], script: str, environment: dict[str, str], size: tuple[int, int]
) -> None:
    wanted, line = read(*words, script=f"#!/bin/sh\n{script}", **environment)
    assert (wanted.least, wanted.most) == size
    assert line.before == (f"--nodes={size[0]}",)


@pytest.mark.parametrize(
    ("words", "script", "environment", "most"),
    [
        (["--pal-fork", "5"], "", {}, 5),
        (["--pal-fork=on"], "#PAL fork=3\n", {}, 8),
        ([], "#PAL fork=3 class=A\n", {}, 3),
        ([], "#PAL fork=3\n", {"SLURM_PAL_FORK": "1"}, 1),
    ],
)
def test_a_forked_job_is_an_elastic_one_whose_companions_wait_behind_all_others(
    words: list[str], script: str, environment: dict[str, str], most: int
) -> None:
    wanted, line = read(*words, script=f"#!/bin/sh\n{script}", **environment)
    assert (wanted.least, wanted.most, wanted.fork, wanted.spacing_s) == (1, most, True, 1.0)
    commands = companions(wanted, line, 77)
    assert len(commands) == most - 1 and all("--nice=1000000" in command for command in commands)
    plain, _ = read("--pal-elastic=1:3", script="#!/bin/sh\n")
    assert not any("--nice" in word for command in companions(plain, line, 77) for word in command)


def test_a_job_is_elastic_only_if_somebody_asks_for_it() -> None:
    line = parse(["job.sh"])
    assert asked(choice(line), {}, scan(b"#!/bin/sh\n#PAL class=A elastic-hook=x\n")) is None
    inside_a_job = {"SLURM_PAL_ELASTIC": "1:2", "SLURM_PAL_JOB_ELASTIC": "1:2"}
    assert asked(choice(line), inside_a_job, None) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pal-fork=0"], "--pal-fork '0' is neither on nor a number of copies from 1 to 1000, such as 5"),
        (["--pal-fork=yes"], "--pal-fork 'yes' is neither on"),
        (["--pal-fork=2", "--pal-elastic=1:2"], "--pal-fork and --pal-elastic: a job is forked or elastic, not both"),
        (["--pal-elastic=4:2"], "--pal-elastic '4:2': allowed is 1 <= MIN <= MAX <= 1000, such as 2:6"),
        (["--pal-elastic=0:2"], "'0:2': allowed is"),
        (["--pal-elastic=1:1001"], "'1:1001': allowed is"),
        (["--pal-elastic=4"], "--pal-elastic '4' is not MIN:MAX, two numbers of nodes, such as 2:6"),
        (["--pal-elastic=1:2:3"], "is not MIN:MAX"),
        (["--pal-elastic=1:²"], "is not MIN:MAX"),
        (["--pal-elastic=-1:2"], "is not MIN:MAX"),
        (["--pal-elastic="], "is not MIN:MAX"),
        (["--pal-elastic-partition=guest"], "--pal-elastic-partition is for elastic jobs: add --pal-elastic MIN:MAX"),
        (["--pal-elastic-hook=x"], "--pal-elastic-hook is for elastic jobs"),
        (["--pal-elastic=1:2", "--pal-elastic-partition=a b"], "'a b' is not a partition"),
        (["--pal-elastic=1:2", "--pal-elastic-hook="], "--pal-elastic-hook lacks its value"),
        (["--pal-elastic=2:4", "-N3"], "--nodes=3, but the base job of an elastic job has MIN=2 nodes"),
        (["--pal-elastic=2:4", "-N2-4"], "--nodes=2-4, but"),
        (["--pal-elastic=2:4", "-n3"], "--ntasks=3 is not a multiple of MIN=2"),
        (["--pal-elastic=2:4", "--array=1-3"], "a job with --array cannot be elastic"),
        (["--pal-elastic=2:4", "-G4"], "a job with --gpus cannot be elastic: it is a total"),
        (["--pal-elastic=2:4", "-w", "n1"], "a job with --nodelist cannot be elastic"),
        (["--pal-elastic=2:4", "-W"], "a job with --wait cannot be elastic"),
        (["--pal-elastic=2:4", "-M", "other"], "a job with --clusters cannot be elastic"),
        (["--pal-elastic=2:4", "-L", "matlab"], "a job with --licenses cannot be elastic"),
        (["--pal-elastic=2:4", "-C", "[a*1&b*1]"], "a companion has one node only"),
        (["--pal-elastic=2:4", "--export-file=3"], "a descriptor can be read only once"),
        (["--pal-elastic=2:4", "-N2", ":", "-N1"], "a heterogeneous job cannot be elastic"),
    ],
)
def test_what_cannot_be_elastic_gets_one_clear_line(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as found:
        read(*words)
    assert said in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("script", "environment", "said"),
    [
        ("#PAL elastic=x\n", {}, "#PAL elastic 'x' is not MIN:MAX"),
        ("#PAL elastic=1:2\n#SBATCH -a 3\n", {}, "a job with --array"),
        ("#PAL elastic=1:2\n#SBATCH -H\n", {}, "#SBATCH --hold would hold each companion, too"),
        ("#PAL elastic=1:2\n", {"SBATCH_WAIT": ""}, "a job with --wait"),
        ("#PAL elastic=1:2\n", {"SBATCH_GPUS": "4"}, "a job with --gpus"),
        ("#PAL elastic=1:2\n", {"SLURM_PAL_ELASTIC_BEAT_S": "0"}, "is not a number of seconds above 0"),
        ("#PAL elastic=1:2\n", {"SLURM_PAL_ELASTIC_DIR": "x"}, "'x' is not an absolute path"),
        ("#SBATCH hetjob\n#PAL elastic=1:2\n", {}, "a heterogeneous job"),
        ("#SBATCH 'x\n#PAL elastic=1:2\n", {}, "unmatched quote"),
    ],
)
def test_so_do_script_and_environment(script: str, environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as found:
        read(script=f"#!/bin/sh\n{script}", **environment)
    assert said in str(found.value)


def of_companions(*words: str, script: str = "#!/bin/sh\n", **environment: str) -> list[list[str]]:
    wanted, line = read("--pal-elastic=2:4", *words, script=script, **environment)
    return companions(wanted, line, 77)


def test_companions_are_the_same_job_on_one_node_each() -> None:
    first, second = of_companions("--mem=4G", "-Jmine", "-n", "8", "-H", "--comment=own text", "-p", "a")
    assert first == [
        "sbatch", "--mem=4G", "-Jmine", "-n", "8", "--comment=own text", "-p", "a", "--parsable", "--nodes=1",
        "--ntasks=4", "--requeue", "--open-mode=append", "--job-name=pal-elastic-77",
        "--comment=own text pal:companion=77", "--dependency=after:77", "--output=slurm-77-companion-%j.out",
        "--begin=now+600seconds", "job.sh",
    ]  # fmt: skip
    assert second == [word.replace("now+600s", "now+1200s") for word in first]
    assert marks.read(first[14], marks.COMPANION) == {marks.COMPANION: "77"}


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (["-o", "logs/%j.out"], ["--output=logs/slurm-77-companion-%j.out"]),
        (["-o", "/data/logs/out"], ["--output=/data/logs/slurm-77-companion-%j.out"]),
        (["-o", "%x/out"], ["--output=slurm-77-companion-%j.out"]),
        (["-o", "a\\b/out"], ["--output=slurm-77-companion-%j.out"]),
        (["-o", "/dev/null"], []),
        (["-o", "out", "-e", "err"], ["--output=slurm-77-companion-%j.out", "--error=slurm-77-companion-%j.out"]),
        (["--pal-elastic-partition=x,y"], ["--output=slurm-77-companion-%j.out", "--partition=x,y"]),
        (["--mail-type=ALL"], ["--output=slurm-77-companion-%j.out", "--mail-type=NONE"]),
    ],
)
def test_companions_write_and_wait_elsewhere(words: list[str], added: list[str]) -> None:
    found = of_companions(*words)[0]
    assert found[found.index("--dependency=after:77") + 1 : -2] == added


def test_the_sites_partition_is_for_companions_whose_users_name_none() -> None:
    line = parse(["--pal-elastic=1:2", "job.sh"])
    assert asked(choice(line), {}, None, "guest") == Elastic(1, 2, "guest")
    line = parse(["--pal-elastic=1:2", "--pal-elastic-partition=own", "job.sh"])
    assert asked(choice(line), {}, None, "guest") == Elastic(1, 2, "own")


def test_a_comment_without_room_still_says_whose_companion_it_is() -> None:
    found = of_companions("--comment=" + "x" * 995)[0]
    assert "--comment=pal:companion=77" in found


HOSTILE = "it's @COMMAND@ $(touch pwned) `touch pwned` \\ #@PART@ \"x\n@FIRST@"


@pytest.mark.parametrize("base", [None, 77])
def test_no_text_of_a_user_acts_in_the_wrapper(base: int | None, tmp_path: Path) -> None:
    wanted = Elastic(1, 2, "", HOSTILE, f"/{HOSTILE}")
    text = render(b"#!/bin/sh\necho script\n", "", part=part(wanted, base))
    shown = text.replace(
        b'\npal_main "$@"\n', b'\nprintf "%s|" "$pal_folder" "$pal_hook" "$pal_role" "$pal_base"; exit\n'
    )
    assert shown != text
    done = subprocess.run(["/bin/bash", "-c", shown], cwd=tmp_path, capture_output=True, check=True)
    hook, role = (HOSTILE, "base|") if base is None else ("", "companion|77")
    assert done.stdout.decode() == f"/{HOSTILE}|{hook}|{role}|"
    assert list(tmp_path.iterdir()) == []
    first = int(
        next(line for line in text.split(b"\n") if line.startswith(b"pal_first=")).split()[0].partition(b"=")[2]
    )
    assert b"\n".join(text.split(b"\n")[first - 1 :]) == b"#!/bin/sh\necho script\n"


SBATCH = r"""#!/bin/sh
case "$*" in *pal:companion*) kind=companion;; *) kind=base;; esac
for word; do printf '<%s>' "$word"; done >> "$RECORD"; echo >> "$RECORD"
for word; do [ ! -f "$word" ] || cp "$word" "$RECORD.$kind"; done
echo x >> "$RECORD.$kind.tries"
[ "$kind.$(wc -l < "$RECORD.$kind.tries")" != "$REFUSE" ] || { echo "sbatch: error: over the limit" >&2; exit 1; }
if [ "$kind" = base ]; then echo 'Submitted batch job 77'; else echo $((77 + $(wc -l < "$RECORD.companion.tries"))); fi
"""


class Site:
    """A PATH with an sbatch that notes what it gets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        (root / "bin" / "sbatch").write_text(SBATCH)
        (root / "bin" / "sbatch").chmod(0o755)
        (root / "job.sh").write_text("#!/bin/sh\ntrue\n")
        (root / "tmp").mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SBATCH_", "SLURM_"))}
        self.env = kept | {
            "PATH": f"{root}/bin:/usr/bin:/bin", "HOME": str(root), "RECORD": str(root / "record"), "REFUSE": "",
            "XDG_STATE_HOME": str(root / "state"), "SLURM_CONF": str(root / "slurm.conf"), "TMPDIR": str(root / "tmp"),
        }  # fmt: skip

    def run(self, *words: str, **variables: str) -> tuple[int, str, str, list[str]]:
        done = subprocess.run(
            [*PALSUB, *words], env=self.env | variables, cwd=self.root, capture_output=True, timeout=60, text=True,
            check=False,
        )  # fmt: skip
        assert list((self.root / "tmp").iterdir()) == []
        record = self.root / "record"
        rows = record.read_text().split("\n")[:-1] if record.exists() else []
        return done.returncode, done.stdout, done.stderr, rows


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_palsub_prints_what_sbatch_prints_for_the_base_job(site: Site) -> None:
    code, out, err, rows = site.run("--pal-elastic=1:3", "--comment=own", "job.sh", "an argument")
    assert (code, out, err) == (0, "Submitted batch job 77\n", "")
    assert "<--nodes=1>" in rows[0] and "<--comment=own pal:elastic=1:3>" in rows[0]
    assert [row.count("<--comment=own pal:companion=77>") for row in rows] == [0, 1, 1]
    assert all(row.endswith("/job.sh><an argument>") for row in rows)
    assert b"\npal_role='base'" in (site.root / "record.base").read_bytes()
    companion = (site.root / "record.companion").read_bytes()
    assert b"\npal_role='companion'" in companion and b"\npal_base='77'" in companion


def test_a_refused_companion_costs_one_line(site: Site) -> None:
    code, out, err, rows = site.run("--pal-elastic=1:5", "job.sh", REFUSE="companion.3")
    assert (code, out, len(rows)) == (0, "Submitted batch job 77\n", 4)
    assert err == "palsub: job 77 has 2 of 4 companions and goes on with them: sbatch: error: over the limit\n"


def test_a_refused_base_job_has_no_companions(site: Site) -> None:
    code, out, err, rows = site.run("--pal-elastic=1:5", "job.sh", REFUSE="base.1")
    assert (code, out, err, len(rows)) == (1, "", "sbatch: error: over the limit\n", 1)


def test_a_base_job_without_a_number_has_no_companions(site: Site) -> None:
    text = SBATCH.replace("echo 'Submitted batch job 77'", "true")
    (site.root / "bin" / "sbatch").write_text(text)
    code, out, err, rows = site.run("--pal-elastic=1:5", "--quiet", "job.sh")
    assert (code, out, len(rows)) == (0, "", 1)
    assert err == "palsub: the job has no companions: sbatch did not print its number (--quiet hides it)\n"


def test_wrong_words_submit_nothing(site: Site) -> None:
    code, out, err, rows = site.run("--pal-elastic=1:5", "--array=1-2", "job.sh")
    assert (code, out, rows) == (2, "", [])
    assert err == "palsub: a job with --array cannot be elastic: each task would need companions of its own\n"


def test_switched_off_it_is_plain_sbatch(site: Site) -> None:
    code, _, err, rows = site.run("--pal-elastic=1:5", "--pal-off", "job.sh")
    assert (code, err, rows) == (0, "", ["<job.sh>"])


def test_a_dry_run_shows_how_companions_are_submitted(site: Site) -> None:
    code, out, _, rows = site.run("--pal-elastic=2:5", "--pal-dry-run", "job.sh")
    assert (code, rows) == (0, [])
    lines = out.split("\n")
    assert lines[0] == "sbatch --nodes=2 --comment=pal:elastic=2:5 job.sh"
    assert "# sbatch would get a copy of the script, with the count of its workers" in lines
    assert "# elastic on 2 to 5 nodes: 3 companions of one node each" in lines
    assert any(line.startswith("#   the first by: sbatch --parsable --nodes=1 --requeue") for line in lines)


def test_the_script_of_wrap_and_of_a_checkpoint_can_be_elastic(site: Site) -> None:
    code, _, err, rows = site.run("--pal-elastic=1:2", "--pal-checkpoint", "save me", "--wrap", "true")
    assert (code, err, len(rows)) == (0, "", 2)
    assert "mov=1;ck=1" in rows[0] and "pal:elastic=1:2" in rows[0] and "mov=1" not in rows[1]
    base, companion = ((site.root / f"record.{kind}").read_bytes() for kind in ("base", "companion"))
    assert b"\npal_command='save me'" in base and b"\npal_command='' " in companion
    assert base.endswith(b"\n\ntrue\n") and companion.endswith(b"\n\ntrue\n")


def test_a_hook_goes_on_to_the_end_of_its_line() -> None:
    assert scan(b"#!/bin/sh\n#PAL elastic=1:2 elastic-hook=echo a=b checkpoint=c\n").pal == (
        ("elastic", "1:2"), ("elastic-hook", "echo a=b checkpoint=c"),
    )  # fmt: skip
