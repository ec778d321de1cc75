# SPDX-License-Identifier: MIT
"""Recipes on a real Slurm: programs save as they do, are moved several times, and come to the same result.

The real programs are those of Debian (apt-get install gromacs lammps quantum-espresso quantum-espresso-data); without
them stand-ins with the same manners show the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .test_checkpoint import PALSUB, User

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 150.0
LIBRARY = Path("/usr/share/gromacs/top")
PSEUDO = Path("/usr/share/espresso/pseudo/Si.pz-vbc.UPF")


def needs(*found: str | Path) -> pytest.MarkDecorator:
    """Skips where a program or a file of its package is missing."""
    lacks = [str(one) for one in found if not (one.exists() if isinstance(one, Path) else shutil.which(one))]
    return pytest.mark.skipif(bool(lacks), reason=f"not installed: {', '.join(lacks)}")


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    somebody = User(lab, tmp_path)
    somebody.env["OMP_NUM_THREADS"] = "1"
    yield somebody
    queue_of.emptied(CliClient())


def wait(user: User, what: str, done: object) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    assert callable(done)
    while not done():
        assert time.monotonic() < deadline_s, f"{what}: {user.read('out')}"
        time.sleep(0.2)


def moved(user: User, job: int) -> str:
    """Ask for a checkpoint and move the job as the mover does; the acknowledgement."""
    before = marks.read(user.comment(job), marks.ACK)
    user.run("scancel", "-b", "-s", "USR1", str(job))
    wait(user, "no acknowledgement", lambda: marks.read(user.comment(job), marks.ACK) != before)
    said = marks.read(user.comment(job), marks.ACK)
    assert "failed" not in said, user.read("out")
    user.move(job)
    wait(user, "not started again", lambda: user.state(job) != "PENDING")
    return said[marks.ACK]


def finished(user: User, job: int) -> None:
    wait(user, "not ended", lambda: user.state(job) in ("COMPLETED", "FAILED"))
    assert user.state(job) == "COMPLETED", user.read("out")


def alone(user: User, folder: str, *argv: str) -> str:
    """The run without a move, beside the job's directory; what it printed."""
    place = user.home / folder
    done = subprocess.run(
        argv,
        cwd=place,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


MDRUN = """#!/usr/bin/env python3
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    open("state.cpt", "w").write(str(i))
    sys.exit(1)
signal.signal(signal.SIGTERM, save)
i = int(open("state.cpt").read()) if os.path.exists("state.cpt") else 0
print("begins", i > 0, flush=True)
while not os.path.exists("stop"):
    i, _ = i + 1, time.sleep(0.1)
    if os.path.exists("halt.now"):
        save()
"""
"""As mdrun on a signal, and as others on a file: it saves, and ends with a status of its own."""


def stand_in(user: User, text: str = MDRUN) -> None:
    """A program mdrun on the job's PATH; a process is known by the name that it is called by."""
    (user.home / "program.py").write_text(text)
    python = os.path.realpath(sys.executable)
    (user.home / "mdrun").write_text(f'#!/bin/bash\nexec -a mdrun {python} "{user.home}/program.py" "$@"\n')
    (user.home / "mdrun").chmod(0o755)
    user.env["PATH"] = f"{user.home}:{user.env['PATH']}"


def begun(user: User, times: int) -> None:
    wait(user, "not begun", lambda: user.read("out").count("begins") == times)


@pytest.mark.parametrize(
    ("shell", "line", "checkpoint"),
    [
        ("bash -e", "mdrun -cpi", "auto"),
        ("sh", "(cd . && mdrun -cpi; echo inside)", "auto"),
        ("bash", "env A=1 mdrun -cpi | cat", "auto"),
        ("bash", "srun -n1 mdrun -cpi && echo inside", "auto"),
        ("bash", "mdrun &\nwait", "recipe:saves-on-term"),
        ("dash", "mdrun", "recipe:stop-file halt.now"),
    ],
)
def test_a_program_that_ends_when_it_has_saved_does_not_end_the_job(
    shell: str, line: str, checkpoint: str, user: User
) -> None:
    """What stands after it in the script is not run, also not in a subshell."""
    stand_in(user)
    job = user.palsub(user.script("job.sh", f"#!/bin/{shell}\n#PAL checkpoint={checkpoint}\n{line}\necho after\n"))
    for restart in range(2):
        begun(user, restart + 1)
        time.sleep(0.5)
        assert moved(user, job) == f"{restart}.1"
    begun(user, 3)
    assert "after" not in user.read("out") and "inside" not in user.read("out")
    assert not (user.home / "halt.now").exists()
    (user.home / "stop").touch()
    finished(user, job)
    lines = [one for one in user.read("out").splitlines() if one.startswith(("begins", "after"))]
    assert lines == ["begins False", "begins True", "begins True", "after"]


@pytest.mark.parametrize(
    ("line", "said"),
    [("sleep 3", "does not run on this node"), ("s=URG; trap '' $s; mdrun -cpi; :", "cannot be told to exit")],
)
def test_what_cannot_be_asked_stays_as_it_is(line: str, said: str, user: User) -> None:
    stand_in(user)
    job = user.palsub("--pal-checkpoint", "recipe:gromacs", "--wrap", f"echo begins; {line}; echo after")
    wait(user, "not begun", lambda: "begins" in user.read("out"))
    time.sleep(1.5)
    user.run("scancel", "-b", "-s", "USR1", str(job))
    wait(user, "no answer", lambda: "failed=1" in user.comment(job))
    (user.home / "stop").touch()
    finished(user, job)
    assert said in user.read("out") and user.read("out").endswith("after\n")


@pytest.mark.parametrize(
    ("line", "said", "movable"),
    [
        ("mdrun -cpi", "checkpoint: recipe gromacs: line 2 runs mdrun", True),
        ("mdrun", "checkpoint: none, so it stays: recipe gromacs: line 2: mdrun has no -cpi", False),
        ("true", "checkpoint: none, so it stays: no program of a recipe is seen", False),
    ],
)
def test_explain_says_by_which_means_a_job_would_be_moved(line: str, said: str, movable: bool, user: User) -> None:
    stand_in(user)
    (user.home / "stop").touch()
    script = user.script("job.sh", f"#!/bin/bash\n{line}\n")
    shown = user.run(*PALSUB, "--pal-dry-run", "--pal-checkpoint", "auto", script)
    assert said in shown
    job = user.palsub("--pal-checkpoint", "auto", script)
    assert ("mov=1;ck=1" in user.comment(job)) is movable
    explained = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "explain", str(job)]
    assert said in user.run(*explained)
    finished(user, job)


@pytest.mark.parametrize(
    ("setting", "value", "words", "line", "movable"),
    [
        ("ACCOUNTS", "bio, chem", ("-A", "chem"), "mdrun -cpi", True),
        ("ACCOUNTS", "bio, chem", ("-A", "geo"), "mdrun -cpi", False),
        ("ACCOUNTS", "bio, chem", (), "mdrun -cpi", False),
        ("PROGRAMS", "lammps, gromacs", (), "mdrun -cpi", True),
        ("PROGRAMS", "lammps", (), "mdrun -cpi", False),
        ("PROGRAMS", "lammps, gromacs", (), "true", False),
    ],
)
def test_a_site_says_whose_jobs_save(
    setting: str, value: str, words: tuple[str, ...], line: str, movable: bool, user: User
) -> None:
    stand_in(user)
    user.env[f"SLURM_PAL_SUBMIT_CHECKPOINT_{setting}"] = value
    job = user.palsub("--gres=gpu:1", *words, user.script("job.sh", f"#!/bin/bash\n{line}\n"))
    assert ("mov=1;ck=1" in user.comment(job)) is movable
    if movable:
        begun(user, 1)
        assert moved(user, job) == "0.1"
        begun(user, 2)
    (user.home / "stop").touch()
    finished(user, job)


GROMACS_INPUT = """integrator = md
dt = 0.002
nsteps = 16000
nstlist = 10
nstenergy = 500
nstxout-compressed = 500
rlist = 0.9
rcoulomb = 0.9
rvdw = 0.9
coulombtype = PME
tcoupl = v-rescale
tc-grps = System
tau_t = 0.1
ref_t = 300
ld-seed = 7
gen_vel = yes
gen_seed = 11
constraints = none
"""


@pytest.mark.long
@needs("gmx", LIBRARY)
def test_gromacs_comes_to_the_same_bits(user: User) -> None:
    alone(user, ".", "gmx", "solvate", "-cs", "spc216", "-box", "1.9", "1.9", "1.9", "-o", "w.gro")
    waters = int((user.home / "w.gro").read_text().splitlines()[1]) // 3
    fields = "".join(f'#include "oplsaa.ff/{name}.itp"\n' for name in ("forcefield", "spc"))
    (user.home / "t.top").write_text(f"{fields}[ system ]\nwater\n[ molecules ]\nSOL {waters}\n")
    (user.home / "md.mdp").write_text(GROMACS_INPUT)
    alone(user, ".", "gmx", "grompp", "-f", "md.mdp", "-c", "w.gro", "-p", "t.top", "-o", "x.tpr")
    alone(user, ".", "gmx", "mdrun", "-s", "x.tpr", "-deffnm", "alone", "-nt", "1", "-reprod")
    text = "#!/bin/bash -e\n#PAL checkpoint=auto\nsrun -n1 gmx mdrun -s x.tpr -deffnm moved -nt 1 -reprod -cpi\n"
    job = user.palsub(user.script("job.sh", text))
    for restart in range(3):
        wait(user, "not begun", lambda: user.read("out").count("starting mdrun") > restart)  # noqa: B023
        time.sleep(2)
        assert moved(user, job) == f"{restart}.1"
    finished(user, job)
    assert (user.home / "moved.gro").read_bytes() == (user.home / "alone.gro").read_bytes()
    assert user.read("moved.log").count("Restarting from checkpoint") == 3


LAMMPS_INPUT = """units lj
atom_style atomic
if "$(is_file(go.on))" then "jump SELF resume"
lattice fcc 0.8442
region box block 0 10 0 10 0 10
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
jump SELF forces
label resume
read_restart melt.restart.*
label forces
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
fix 1 all nve
thermo 100
thermo_style custom step temp pe etotal
thermo_modify flush yes
restart 200 melt.restart.*
run 6000 upto
"""


@pytest.mark.long
@needs("lmp")
def test_lammps_comes_to_the_same_mean_energies(user: User) -> None:
    (user.home / "alone").mkdir()
    for place in (".", "alone"):
        (user.home / place / "in.melt").write_text(LAMMPS_INPUT)
    energies = steps(alone(user, "alone", "lmp", "-in", "in.melt"))
    text = "#!/bin/bash\n#PAL checkpoint=auto\nfor one in melt.restart.*; do [ ! -e $one ] || touch go.on; done\n"
    job = user.palsub(user.script("job.sh", f"{text}lmp -in in.melt\n"))
    for restart in range(3):
        wait(user, "not begun", lambda: user.read("out").count("Step Temp") > restart)  # noqa: B023
        assert moved(user, job) == f"{restart}.1"
    finished(user, job)
    found = steps(user.read("out"))
    assert found.keys() == energies.keys()
    # A restart builds the neighbour lists anew: the motion is chaotic, so only what it conserves, and means, are alike.
    assert all(found[step][0] == pytest.approx(total, abs=5e-3) for step, (total, _) in energies.items())
    late = [step for step in energies if step >= 500]
    means = [sum(run[step][1] for step in late) / len(late) for run in (energies, found)]
    assert means[0] == pytest.approx(means[1], abs=0.01)


def steps(text: str) -> dict[int, tuple[float, float]]:
    """Step -> total and potential energy."""
    rows = re.findall(r"^ +(\d+) +[\d.]+ +(-[\d.]+) +(-[\d.]+) *$", text, re.MULTILINE)
    return {int(step): (float(total), float(potential)) for step, potential, total in rows}


ESPRESSO_INPUT = f"""&control
  calculation='relax', restart_mode='restart', prefix='si', outdir='./save/', pseudo_dir='{PSEUDO.parent}/'
  nstep=50, forc_conv_thr=1.0d-5, etot_conv_thr=1.0d-7
/
&system
  ibrav=2, celldm(1)=10.2, nat=2, ntyp=1, ecutwfc=40, nosym=.true.
/
&electrons
  conv_thr=1.0d-9
/
&ions
/
ATOMIC_SPECIES
 Si 28.086 {PSEUDO.name}
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.29 0.24 0.26
K_POINTS automatic
 4 4 4 1 1 1
"""


@pytest.mark.long
@needs("pw.x", PSEUDO)
def test_quantum_espresso_comes_to_the_same_energy(user: User) -> None:
    (user.home / "alone").mkdir()
    for place in (".", "alone"):
        (user.home / place / "si.in").write_text(ESPRESSO_INPUT)
    energy = final(alone(user, "alone", "pw.x", "-in", "si.in"))
    job = user.palsub(user.script("job.sh", "#!/bin/bash -e\n#PAL checkpoint=auto\npw.x -in si.in\n"))
    for restart in range(3):
        wait(user, "not begun", lambda: user.read("out").count("Self-consistent Calculation") > restart)  # noqa: B023
        time.sleep(2)
        assert moved(user, job) == f"{restart}.1"
    finished(user, job)
    assert final(user.read("out")) == pytest.approx(energy, abs=1e-7)
    assert not (user.home / "si.EXIT").exists()


def final(text: str) -> float:
    """The energy at the end of a relaxation, Ry."""
    return float(re.findall(r"Final energy += +(-[\d.]+) Ry", text)[-1])
