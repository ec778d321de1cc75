"""What a script shows of its work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.sensitivity.features import STATED, evidence, python_file

HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n"


@pytest.mark.parametrize(
    ("script", "program", "name", "sensitivity"),
    [
        ("srun ./xhpl", "", "", "A"),
        ("mpirun -np 4 /opt/hpcg/xhpcg --nx=256", "", "", "C"),
        ("apptainer exec --nv lammps.sif lmp -in in.lj", "", "", "C"),
        ("srun python3 train.py --arch=resnet50 --epochs 90", "", "", "A"),
        ("torchrun --nproc-per-node=4 run_glue.py --model bert-base-uncased", "", "", "B"),
        ("python3 train.py", "import torch\nfrom torchvision import models\nm = models.resnet50()\n", "", "A"),
        ("python3 graph.py", "import dgl\nimport cugraph as cg\n", "", "C"),
        ("srun ./a.out", "", "resnet50-large", "A"),
        ("./babelstream.exe", "", "", "C"),
    ],
)
def test_known_work_is_recognised(script: str, program: str, name: str, sensitivity: str) -> None:
    found = evidence(HEAD + script, program, name)
    assert found is not None and found.sensitivity == sensitivity and found.confidence >= 0.8


@pytest.mark.parametrize(
    "script",
    [
        "srun ./a.out", "python3 train.py", "# resnet50\nsrun ./a.out", "./run  # like bert",
        "cd /home/albert/streaming && ./a.out", "module load cuda stream_tools", "echo",
    ],
)  # fmt: skip
def test_work_that_shows_nothing_is_not_guessed(script: str) -> None:
    assert evidence(HEAD + script) is None


def test_signs_that_contradict_each_other_leave_nothing_sure() -> None:
    found = evidence(HEAD + "python3 compare.py --models resnet50,vgg19")
    assert found is not None and found.confidence <= 0.5


def test_a_launcher_alone_is_not_sure() -> None:
    found = evidence(HEAD + "torchrun --nproc-per-node=4 train.py")
    assert found is not None and found.sensitivity == "B" and found.confidence < 0.8


def test_the_sites_own_table_comes_first() -> None:
    assert evidence(HEAD + "srun ./vasp_std", apps={"VASP_STD": "A"}).sensitivity == "A"  # type: ignore[union-attr]
    assert evidence(HEAD + "srun python3 t.py --arch resnet50", apps={"resnet50": "C"}).sensitivity == "C"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("srun python3 -u src/train.py --lr 1", "src/train.py"),
        ("python3 'train.py'", "train.py"),
        ("# python3 old.py\npython3 new.py; echo", "new.py"),
        ("python3 $HOME/train.py", ""),
        ("./a.out", ""),
    ],
)
def test_the_program_is_found(script: str, name: str) -> None:
    assert python_file(HEAD + script) == name


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=30))
def test_any_text_can_be_read(script: str, program: str, name: str) -> None:
    found = evidence(script, program, name)
    assert found is None or (0.33 < found.confidence <= 1.0 and found.why.isprintable())
    python_file(script)


def test_one_stated_sign_is_enough_by_default() -> None:
    from math import exp

    assert exp(STATED) / (exp(STATED) + 2) > 0.9
