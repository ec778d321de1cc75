# SPDX-License-Identifier: MIT
"""What a script shows of its work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.sensitivity import features
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
        ("mpirun --bind-to none -np 4 lmp_kokkos_cuda_mpi -in in.lj", "", "", "C"),
        ("nsys profile -o /tmp/report -t cuda ./xhpl", "", "", "A"),
        ("srun --mpi=pmix singularity exec --nv -B /a:/b /img/x.sif /workspace/hpl.sh --dat HPL.dat", "", "", "A"),
        ("cd run && OMP_NUM_THREADS=4 numactl -N 0 ./xhpl", "", "", "A"),
        ("MODEL=resnet50\npython3 train.py --model $MODEL", "", "", "A"),
        ("export MODEL=resnet50; srun python3 train.py", "", "", "A"),
        ("cat <<< word\nsrun ./xhpl", "", "", "A"),
        ("echo $((1<<3)); ./xhpl", "", "", "A"),
        ("python3 - <<E\nimport dgl\nimport cugraph\nE", "", "", "C"),
        ("srun python3 \\\n  train.py \\\n  --arch resnet50", "", "", "A"),
        ("#!/usr/bin/env python3\nimport dgl; import cugraph\n", "", "", "C"),
        ("time ./hpl/bin/xhpl > out 2>&1", "", "", "A"),
        ("python3 models/resnet50/train.py", "", "", "A"),
        ("if true; then srun ./xhpl; fi", "", "", "A"),
    ],
)
def test_known_work_is_recognised(script: str, program: str, name: str, sensitivity: str) -> None:
    found = evidence(HEAD + script, program, name)
    assert found is not None and found.sensitivity == sensitivity and found.confidence >= 0.8


@pytest.mark.parametrize(
    "script",
    [
        "srun ./a.out", "python3 train.py", "# resnet50\nsrun ./a.out", "./run  # like bert",
        "cd /home/albert/streaming && ./a.out", "module load cuda stream_tools", "echo", "./run\t# like bert",
        "module load gcc stream", "module load gcc \\\n  stream", "rm -f stream; ./x", "cat stream | ./a.out",
        "ffmpeg -i input -c copy -map stream out", "echo 'not resnet50 any more'\nsrun ./a.out", "echo import dgl",
        "cat > notes <<E\nresnet50\nE\n./a.out", "cat > t.py <<'END'\nimport dgl\nEND\n",
        "cd /home/bert/work && ./a.out", "pip install bert",
        "srun ./solver --out=/scratch/vgg19/x '/data/vgg/faces'", "cp ~bert/x . ; ./x", "cd hpl\n./x", "which lmp; ./x",
        "source ~/envs/bert/bin/activate && python3 a.py", "conda activate bert\npython a.py", "ldd ./xhpl", "ssh hpl",
        'if [ "$MODEL" != resnet50 ]; then exit; fi\n./x', "parted --script /dev/sdb mklabel gpt",
        "git clone https://example.org/resnet50", "mpirun -np 4 ./wrf.exe", "simpleFoam -parallel",
        "srun ./solver stream",
    ],
)  # fmt: skip
def test_work_that_shows_nothing_is_not_guessed(script: str) -> None:
    assert evidence(HEAD + script) is None


@pytest.mark.parametrize("program", ["vasp_std", "gmx_mpi mdrun", "namd2 x", "pmemd.cuda.MPI -O", "pw.x -in a"])
def test_programs_of_mixed_work_alone_are_not_sure(program: str) -> None:
    found = evidence(f"{HEAD}module load x\nmpirun -np 4 {program} > out\n")
    assert found is not None and found.sensitivity == "B" and found.confidence < 0.8


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
        ("cp template.py work/\nsrun python3 work/run.py", "work/run.py"),
        ("cat > gen.py <<E\npython3 other.py\nE\npython3 main.py", "main.py"),
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


def test_a_long_script_of_texts_without_end_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `<<` was once looked for in all lines: time by the square of the script's length, in the user's palsub."""
    looked = 0

    class Line(str):
        def strip(self, *given: str) -> str:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return super().strip(*given)

    real = features._uncommented
    monkeypatch.setattr(features, "_uncommented", lambda text: [Line(line) for line in real(text)])
    features.evidence("".join(f"cat <<E{i}\n" for i in range(300)))
    assert 0 < looked < 2000
