# SPDX-License-Identifier: MIT
"""Recipes: which holds for a script and why not, what users and sites say, and the command that comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Set
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.submit import auto_checkpoint, recipes
from slurm_pal.submit.argv import no_site_options, parse
from slurm_pal.submit.auto_checkpoint import ANY, Means
from slurm_pal.submit.choice import Moving, choice, moving
from slurm_pal.submit.command_lines import programs, split
from slurm_pal.submit.script import scan

from .test_checkpoint import Start, start  # noqa: F401

GMX = ("gmx mdrun", "mdrun")
AUTO = Moving(auto=True)
TPR = "gmx mdrun -deffnm x -cpi"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (TPR, ["-deffnm", "x", "-cpi"]),
        ("srun -n 4 --mpi=pmix gmx mdrun -cpi 'a b'", ["-cpi", "a b"]),
        ("if A=1 B=2 mpirun -np 4 /opt/bin/gmx mdrun -cpi > log 2>&1; then echo", ["-cpi"]),
        ("cd x && singularity exec --nv i.sif gmx mdrun \\\n  -cpi | tee log", ["-cpi"]),
        ("GMX=gmx\n$GMX mdrun -v", ["-v"]),
        ('RUN="srun gmx mdrun -v"\n${RUN} -cpi < in', ["-v", "-cpi", "<", "in"]),
        ("mdrun # gmx mdrun -cpi", []),
        ("echo gmx mdrun", None),
        ("# gmx mdrun", None),
        ("gmx grompp", None),
        ("cat <<EOF\ngmx mdrun\nEOF", None),
        ("mymdrun -cpi", None),
    ],
)
def test_a_program_is_seen_as_a_shell_would_run_it(line: str, words: list[str] | None) -> None:
    found = programs(f"#!/bin/bash\n{line}\n", GMX)
    assert [list(one.words) for one in found] == ([] if words is None else [words])


@pytest.mark.parametrize(
    "line", ["a 'b", "a \\", "<", ">", "2>&1", "a <<", "<<", "$( (", "''", "a;;b", "|", "\\", "a << ", "x=<<", "if"]
)
def test_no_line_is_too_odd(line: str) -> None:
    assert all(words for words in split(line))
    programs(f"{line}\n{line} mdrun\nmdrun {line}\n{line}", GMX)


def test_variables_make_no_script_long() -> None:
    """A script may double its length with each variable: 65 KiB became 300 MiB, and a submission took minutes."""
    grown = f"A=mdrun{'x' * 20000}\nmdrun {'$A' * 15000}\n"
    doubled = "A=mdrun" + "".join(f"\nB{k}=${'A' if not k else f'B{k - 1}'}mdrun" for k in range(300))
    for text in (grown, f"{doubled}\nmdrun {' '.join(f'$B{k}' for k in range(300))}\n"):
        (one,) = programs(text, GMX)
        assert one.name == "mdrun" and len(one.text) <= max(1 << 14, len(text))
    assert len(programs("".join(f"A{k}=mdrun\n" for k in range(5000)) + "$A0\n$A4999\n", GMX)) == 1


def test_where_a_program_runs() -> None:
    text = "mdrun\ncd a\nmdrun\ncd $X\nmdrun\ncd $SLURM_SUBMIT_DIR && cd b && mdrun\nexec mdrun\n"
    found = programs(text, GMX)
    assert [(one.folder, one.number, one.takes_over) for one in found] == [
        ("", 1, False), ("a", 3, False), (None, 5, False), ("b", 6, False), ("b", 7, True),
    ]  # fmt: skip


def shipped(script: str) -> list[recipes.Recipe]:
    troubles: list[str] = []
    found = recipes.table("", recipes.of_text(script), troubles)
    assert troubles == []
    return found


def verdict(script: str, **files: str) -> tuple[str, str]:
    def read(name: str) -> str:
        if name not in files:
            raise FileNotFoundError(2, "No such file or directory", name)
        return files[name]

    recipe, why = recipes.choose(recipes.findings(script, shipped(script), read))
    return recipe.name if recipe else "", why


MELT = "restart 100 a.restart.*\n if 1 then 'read_restart a.restart.*'\n"
CASES = [
    (f"{TPR}\n", {}, "gromacs", "line 1 runs gmx mdrun"),
    ("gmx mdrun -deffnm x", {}, "", "gmx mdrun has no -cpi, so it would not go on"),
    (f"{TPR}\nmdrun -s y", {}, "", "line 2: mdrun has no -cpi"),
    (f"exec {TPR}", {}, "", "with exec the job would end"),
    ("lmp -in in.x", {"in.x": MELT}, "lammps", "line 1 runs lmp"),
    ("cd d; lmp < in.x", {"d/in.x": MELT}, "lammps", "line 1 runs lmp"),
    ("lmp -in in.x", {"in.x": "#restart 100 a b\nread_restart a"}, "", "neither script nor input has restart"),
    ("lmp -in in.x", {}, "", "(in.x cannot be read here: No such file or directory)"),
    ("cd $X; lmp -in in.x", {}, "", "it is not known in which folder"),
    ("mpirun pw.x -in i", {"i": "restart_mode = 'restart',"}, "quantum-espresso", "line 1 runs pw.x"),
    ("pw.x -in i", {"i": "! restart_mode='restart'"}, "", "has restart_mode=restart"),
    ("cat > i <<E\nrestart_mode = 'restart'\nE\npw.x -in i", {}, "quantum-espresso", "line 4 runs pw.x"),
    ("cp CONTCAR POSCAR\nsrun vasp_std", {}, "", "recipe vasp was never shown"),
    ("srun vasp_std", {}, "", "has contcar"),
    ("cp2k.psmp -i ${SLURM_RESTART_COUNT:+x-1.restart}", {}, "", "recipe cp2k was never shown"),
    ("cp x.restart.coor y\nnamd3 +p4 c", {}, "", "recipe namd was never shown"),
    ("[ $SLURM_RESTART_COUNT ]\npmemd.cuda -i m", {}, "", "recipe amber was never shown"),
    ("simpleFoam", {"system/controlDict": "startFrom latestTime;\nstopAtWriteNowSignal 12;"}, "", "openfoam was never"),
    ("simpleFoam", {"system/controlDict": "startFrom latestTime;"}, "", "stopatwritenowsignal12"),
    ("nwchem ${SLURM_RESTART_COUNT:+again}.nw", {}, "", "recipe nwchem was never shown"),
    (f"{TPR}; lmp -in i", {"i": MELT}, "", "several recipes: gromacs, lammps"),
    ("python3 train.py", {}, "", "no program of a recipe is seen"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "files", "name", "why"), CASES)
def test_which_recipe_holds(script: str, files: dict[str, str], name: str, why: str) -> None:
    found, said = verdict(script, **files)
    assert found == name and why in said


def test_every_shipped_recipe_is_shown_by_a_case() -> None:
    named = [one for one in recipes.table("", lambda *_: True, []) if one.commands]
    taken = {name for _, _, name, _ in CASES} - {""}
    assert {one.name for one in named if one.shown} == taken and len(named) == 9
    assert all(any(f"{one.name} was never" in why for *_, why in CASES) for one in named if not one.shown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[recipe]\nsignal = 9", "recipe.signal = 9"),
        ('[recipe]\nsignal = "KILL"', "not one of TERM"),
        ('[recipe]\ncommands = "x"', "a signal, or a file"),
        ('[recipe]\nsignal = "TERM"\nfile = "x"', "a signal, or a file"),
        ('[recipe]\nx.y = 1\nsignal = "TERM"', "recipe.x"),
        ("[recipe", "as TOML"),
        ('[recipe]\nsignals = "TERM"', "recipe.signals"),
    ],
)
def test_a_wrong_recipe_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        recipes.load("x.toml", "recipe", text)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "a.toml").write_text(text.replace("[recipe", "[gromacs"))
    troubles: list[str] = []
    assert "gromacs" not in [one.name for one in recipes.table(str(tmp_path), lambda *_: True, troubles)]
    assert len(troubles) == 1


def test_a_site_has_recipes_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('[ours]\ncommands = "ours run"\nfile = "HALT"\nsaved = ["a"]\n')
    troubles: list[str] = []
    assert recipes.table(str(tmp_path), lambda name, _: name == "ours", troubles) == []
    assert len(troubles) == 1 and "ours.saved" in troubles[0]
    (tmp_path / "ours.toml").write_text('[ours]\ncommands = "ours run"\nfile = "HALT"\nsaved = "a"\n')
    (found,) = recipes.table(str(tmp_path), recipes.of_text("ours run"), [])
    assert (found.name, found.file, found.saved, found.ends) == ("ours", "HALT", ("a",), True)
    (tmp_path / "ours.toml").chmod(0o666)
    assert recipes.table(str(tmp_path), recipes.of_text("ours run"), troubles) == []
    assert "written by everyone" in troubles[-1]
    assert recipes.table(str(tmp_path / "none"), recipes.of_text("x"), troubles) == [] and "none" in troubles[-1]


@pytest.mark.parametrize(
    ("option", "variable", "directive", "wanted"),
    [
        ("auto", "", "", (False, "", True)),
        ("auto", "", "touch x", (True, "touch x", True)),
        ("auto", "none", "touch x", (True, "touch x", True)),
        ("none", "USR1", "auto", (False, "", False)),
        ("", "none", "touch x", (False, "", False)),
        ("", "", "auto", (False, "", True)),
        ("USR1", "auto", "", (True, "USR1", False)),
        ("recipe:gromacs", "", "", (True, "recipe:gromacs", False)),
        ("", "", "", (False, "", None)),
    ],
)
def test_what_users_say(option: str, variable: str, directive: str, wanted: tuple[bool, str, bool | None]) -> None:
    chosen = choice(parse(["--pal-checkpoint", option] if option else [], no_site_options))
    environment = {"SLURM_PAL_CHECKPOINT": variable} if variable else {}
    found = moving(chosen, environment, (("checkpoint", directive),) if directive else (), [])
    assert (found.movable, found.checkpoint, found.auto) == wanted


def means(
    body: str, asked: Moving = AUTO, *words: str, elastic: bool = False, among: Set[str] = ANY
) -> Means | None:  # fmt: skip
    script = scan(body.encode())._replace(body=body.encode())
    line = parse([*words, "job.sh"], no_site_options)
    return auto_checkpoint.found(asked, line, {}, script, Config(), elastic, among, [])


def test_the_first_means_that_holds() -> None:
    shell = f"#!/bin/bash\n{TPR}\n"
    found = means(shell)
    assert (found.name, found.moving.movable, found.moving.checkpoint) == ("recipe gromacs", True, "recipe:gromacs")
    assert means(shell, Moving(True, "touch x", auto=True)).name == "command"
    assert means("#!/bin/bash\ntrue\n", Moving(True, restarts=True, auto=True)).name == "requeue"
    stays = means("#!/bin/bash\ngmx mdrun\n")
    assert (stays.name, stays.moving.movable) == ("none", False) and "-cpi" in stays.why
    assert "not for a shell" in means(f"#!/usr/bin/python3\n{TPR}\n").why
    assert "elastic" in means(shell, elastic=True).why
    for own in ("trap : URG", "set -e; trap 'date >> log' TERM SIGURG"):
        assert "SIGURG of its own" in means(f"#!/bin/bash\n{own}\n{TPR}\n").why
    assert means(f"#!/bin/bash\n# trap : URG\ntrap : USR1\n{TPR}\n").name == "recipe gromacs"
    with pytest.raises(UsageError, match="no recipe 'gromax'"):
        means(shell, Moving(True, "recipe:gromax"))
    with pytest.raises(UsageError, match='write "recipe:stop-file FILE"'):
        means(shell, Moving(True, "recipe:stop-file"))
    assert means(shell, Moving(True, "recipe:stop-file a b")).file == "a b"


@pytest.mark.parametrize(
    ("words", "settings", "among"),
    [
        (("--gpus=1",), {}, None),
        (("--gpus=1",), {"checkpoint": "auto"}, ""),
        ((), {"checkpoint": "auto"}, None),
        (("--gpus=1", "-p", "a"), {"checkpoint_partitions": "a, b"}, ""),
        (("--gpus=1", "-p", "a,c"), {"checkpoint_partitions": "a, b"}, None),
        (("--gpus=1",), {"checkpoint_partitions": "a"}, None),
        (("--gpus=1", "-q", "long"), {"checkpoint_qos": "long"}, ""),
        (("--gpus=1", "-q", "short"), {"checkpoint_qos": "long"}, None),
        (("--gpus=1", "-A", "chem"), {"checkpoint_accounts": "bio, chem"}, ""),
        (("--gpus=1", "-A", "long"), {"checkpoint_accounts": "chem", "checkpoint_qos": "long"}, None),
        (("--gpus=1",), {"checkpoint_accounts": "chem"}, None),
        (("--gpus=1",), {"checkpoint_programs": "gromacs, lammps"}, "gromacs lammps"),
        (("--gpus=1", "-A", "chem"), {"checkpoint_programs": "gromacs", "checkpoint_accounts": "chem"}, ""),
        (("--gpus=1",), {"checkpoint_programs": "gromacs", "checkpoint": "auto"}, ""),
        ((), {"checkpoint_programs": "gromacs"}, None),
    ],
)
def test_what_sites_say(words: tuple[str, ...], settings: dict[str, str], among: str | None) -> None:
    config = Config()
    for name, value in settings.items():
        config.set("submit", name, value, "test")
    script = scan(b"#!/bin/bash\ntrue\n")
    line = parse([*words, "job.sh"], no_site_options)
    wanted = None if among is None else {*among.split()}
    assert auto_checkpoint.wanted(Moving(), line, {}, script, config) == wanted
    assert auto_checkpoint.wanted(Moving(auto=False), line, {}, script, config) is None


@pytest.mark.parametrize(
    ("words", "variable", "wanted"),
    [((), "chem", True), (("-A", "bio"), "chem", False), ((), "", True), (("--account=chem",), "bio", True)],
)
def test_the_account_is_the_one_that_sbatch_takes(words: tuple[str, ...], variable: str, wanted: bool) -> None:
    config = Config()
    config.set("submit", "checkpoint_accounts", "chem", "test")
    script = scan(b"#!/bin/bash\n#SBATCH --account=chem\ntrue\n").understood(no_site_options)
    line = parse(["--gpus=1", *words, "job.sh"], no_site_options)
    found = auto_checkpoint.wanted(Moving(), line, {"SBATCH_ACCOUNT": variable}, script, config)
    assert (found is not None) is wanted


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (TPR, "recipe gromacs"),
        ("gmx mdrun", "none"),
        (f"{TPR}\npw.x -in si.in", "none"),
        ("pw.x -in si.in", None),
        ("python train.py", None),
    ],
)
def test_of_some_recipes_only_these_count(body: str, name: str | None) -> None:
    """A job of another program stays as if the site said nothing; why a program of theirs stays is shown."""
    found = means(f"#!/bin/bash\n{body}\n", Moving(), among={"gromacs"})
    assert (found and found.name) == name
    assert (found is not None and found.moving.movable) is (name == "recipe gromacs")


def test_the_command_says_what_the_recipe_says() -> None:
    recipe = recipes.load("x.toml", "recipe", '[recipe]\ncommands = "a b, *c"\nfile = "it\'s {name}"\ncontent = "x"\n')
    text = recipes.command(recipe, "o'k")
    shown = f'{text.rpartition("recipe_main")[0]}\nprintf \'%s|\' "$recipe_commands" "$recipe_file" "$recipe_file_name"'
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n*c|it's {name}|o'k|"


def pal(*words: str, folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "recipes", *words]
    return subprocess.run(argv, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True, check=False)


def test_pal_recipes(tmp_path: Path) -> None:
    assert "gromacs" in pal(folder=tmp_path).stdout
    table = json.loads(pal("--json", folder=tmp_path).stdout)
    assert table["schema"] == "pal.recipes/1"
    assert {one["name"]: one["ends"] for one in table["recipes"]}["lammps"] is False
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{TPR}\n")
    done = pal("--check", "job.sh", folder=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "recipe gromacs: line 2 runs gmx mdrun")
    (tmp_path / "job.sh").write_text("#!/bin/bash\ngmx mdrun\n")
    done = pal("--check", "job.sh", "--json", folder=tmp_path)
    body = json.loads(done.stdout)
    assert done.returncode == 1 and body["recipe"] is None and "-cpi" in body["findings"][0]["lacks"]
    done = pal("--check", "none.sh", folder=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


PROGRAM = """import os, signal, sys, time
def save(*_):
    time.sleep(float(os.environ["SAVES_S"]))
    open("state.cpt", "a").write("x")
    for i in range(2000 if "talks" in sys.argv else 0):
        print(i, "x" * 60)
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
open("begun", "a").write("x")
while not os.path.exists("stop"):
    time.sleep(0.1)
    if "often" in sys.argv:
        open(f"{time.time_ns()}.restart", "w").close()
        open("a.restart", "w").write(str(time.time()))
        time.sleep(0.4)
"""


def in_job(root: Path, recipe: str, limit_s: int = 100) -> str:
    """The command of a shipped recipe, and its program as `./NAME`."""
    (root / "program.py").write_text(PROGRAM)
    python = os.path.realpath(sys.executable)
    for name in ("mdrun", "lmp"):
        (root / name).write_text(f'#!/bin/bash\nexec -a {name} {python} program.py "$@"\n')
        (root / name).chmod(0o755)
    (found,) = recipes.table("", lambda name, _: name == recipe, [])
    text = recipes.command(found)
    assert text.count("recipe_limit_s=100 ") == 1
    return text.replace("recipe_limit_s=100 ", f"recipe_limit_s={limit_s} ")


def test_a_program_that_saves_too_late_has_its_script_run_again(start: Start, tmp_path: Path) -> None:  # noqa: F811
    """It has been told to end, and will: the job must not end with it."""
    body = f"#!/bin/bash -e\n{recipes.END_SCRIPT}; ./mdrun -cpi\necho after\n"
    job = start(body, in_job(tmp_path, "gromacs", 1), environment={"SAVES_S": "4"}, requeue_s=1)
    job.until("begun")
    assert job.checkpoint("0.1").endswith(";failed=1")
    assert not (tmp_path / "state.cpt").exists()
    job.until("begun", "xx")
    assert (tmp_path / "state.cpt").read_text() == "x"
    (tmp_path / "stop").touch()
    code, out, err = job.end()
    assert (code, out) == (0, b"after\n") and b"has not ended within 1 s" in err


@pytest.mark.parametrize(
    "line",
    [
        "(./mdrun -cpi; echo inside) | cat",
        "(echo; echo; exec sleep 9 2> /dev/null) | while read -r x; do ./mdrun -cpi; echo inside; done",
    ],
)
def test_a_program_that_has_saved_is_not_followed_by_the_next_command(
    line: str,
    start: Start,  # noqa: F811
    tmp_path: Path,
) -> None:
    body = f"#!/bin/sh\n{recipes.END_SCRIPT}; {line}\necho after\n"
    environment = {"SAVES_S": "0.5", **{f"BASH_FUNC_{name}%%": "() { exit 1; }" for name in ("grep", "sleep", "stat")}}
    job = start(body, in_job(tmp_path, "gromacs"), environment=environment, requeue_s=60)
    job.until("begun")
    assert job.checkpoint("0.1").endswith("pal:ack=0.1")
    assert (tmp_path / "state.cpt").read_text() == "x"
    job.process.terminate()  # as a requeue does
    code, out, err = job.end()
    assert code in (143, -15) and out == b"" and err in (b"", b"Killed\n")  # what dash says of the subshell


LOOP = 'while read -r i x; do echo "$i" > read; done'


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("sh", f"./mdrun talks | {LOOP}"),
        ("bash", f"./mdrun talks | {{ {LOOP}; touch later; }}"),
        ("bash", f"{LOOP} < <(./mdrun talks)"),
        ("bash", f"./mdrun talks | cat | {LOOP}"),
        ("sh", f"./mdrun talks | while read -r i x; do echo $i; done | {LOOP}"),
        ("bash", "./mdrun talks | tail -n 1 | cut -d' ' -f1 > read"),
    ],
)
def test_all_is_read_that_a_program_writes_before_it_ends(
    shell: str,
    line: str,
    start: Start,  # noqa: F811
    tmp_path: Path,
) -> None:
    """It is more than a pipe holds; and the reader comes to no command after that."""
    body = f"#!/bin/{shell}\n{recipes.END_SCRIPT}; {line}\ntouch later\n"
    job = start(body, in_job(tmp_path, "gromacs"), environment={"SAVES_S": "0"}, requeue_s=60)
    job.until("begun")
    assert job.checkpoint("0.1").endswith("pal:ack=0.1")
    assert (tmp_path / "read").read_text() == "1999\n" and not (tmp_path / "later").exists()
    job.process.terminate()
    assert job.end()[0] == 143


def test_the_next_save_of_a_program_is_waited_for(start: Start, tmp_path: Path) -> None:  # noqa: F811
    job = start("#!/bin/bash\n./lmp often\necho after\n", in_job(tmp_path, "lammps"), environment={"SAVES_S": "0"})
    saved = job.until("a.restart")
    assert job.checkpoint("0.1").endswith("pal:ack=0.1")
    assert (tmp_path / "a.restart").read_text() != saved
    time.sleep(0.2)
    (tmp_path / "stop").touch()
    assert job.end() == (0, b"after\n", b"")


def test_a_save_that_does_not_come_is_no_checkpoint(start: Start, tmp_path: Path) -> None:  # noqa: F811
    job = start("#!/bin/bash\n./lmp\n", in_job(tmp_path, "lammps", 2), environment={"SAVES_S": "0"})
    job.until("begun")
    assert job.checkpoint("0.1").endswith(";failed=1")
    (tmp_path / "stop").touch()
    code, _, err = job.end()
    assert code == 0 and b"no checkpoint within 2 s" in err
