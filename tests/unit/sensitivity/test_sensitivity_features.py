# SPDX-License-Identifier: MIT
"""What a script shows of its work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.sensitivity import features
from slurm_pal.sensitivity.catalogue import APPLICATIONS, BY_INPUT, LABELLED, MEASURED, MODELS, PROGRAMS
from slurm_pal.sensitivity.features import evidence, python_file

from ...bench.script_classes import NONE, judged

HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n"


@pytest.mark.parametrize(
    ("script", "program", "sensitivity"),
    [
        ("srun ./xhpl", "", "A"),
        ("mpirun -np 4 /opt/hpcg/xhpcg --nx=256", "", "C"),
        ("apptainer exec --nv tools.sif babelstream -n 9", "", "C"),
        ("srun python3 train.py --arch=resnet50 --epochs 90", "", "A"),
        ("torchrun --nproc-per-node=4 run_glue.py --model bert-base-uncased --do_train", "", "B"),
        ("python3 train.py", "import torch\nfrom torchvision import models\nm = models.resnet50()\n", "A"),
        ("python3 run.py", 'net = AutoModel.from_pretrained("bert-base")\nloss.backward()\n', "B"),
        ("./babelstream.exe", "", "C"),
        ("nsys profile -o /tmp/report -t cuda ./xhpl", "", "A"),
        ("srun --mpi=pmix singularity exec --nv -B /a:/b /img/x.sif /workspace/hpl.sh --dat HPL.dat", "", "A"),
        ("cd run && OMP_NUM_THREADS=4 numactl -N 0 ./xhpl", "", "A"),
        ("MODEL=resnet50\npython3 train.py --model $MODEL", "", "A"),
        ("export MODEL=resnet50; srun python3 train.py", "", "A"),
        ("cat <<< word\nsrun ./xhpl", "", "A"),
        ("echo $((1<<3)); ./xhpl", "", "A"),
        ("srun python3 \\\n  train.py \\\n  --arch resnet50", "", "A"),
        ("time ./hpl/bin/xhpl > out 2>&1", "", "A"),
        ("python3 models/resnet50/train.py", "", "A"),
        ("if true; then srun ./xhpl; fi", "", "A"),
        ("python -u -m mylab.train model=bert trainer.max_epochs=3", "", "B"),
        ("srun -m block:block ./xhpcg", "", "C"),
        ("python3 -m torch.distributed.run train.py --net resnet-50", "", "A"),
    ],
)
def test_known_work_is_recognised(script: str, program: str, sensitivity: str) -> None:
    found = evidence(HEAD + script, program)
    assert found is not None and found.sensitivity == sensitivity and found.confidence >= 0.8


def test_a_program_that_trains_may_do_something_else() -> None:
    code = "net = models.resnet50()\nloss.backward()\n"
    for option, found in (
        ("", "A"),
        ("--epochs 3", "A"),
        ("--test-only", None),
        ("--eval_only", None),
        ("--evaluate", None),
    ):
        shown = evidence(f"{HEAD}python3 train.py --model resnet50 {option}", code)
        assert (shown and shown.sensitivity) == found


def test_a_script_in_python_is_read_as_such() -> None:
    found = evidence("#!/usr/bin/env python3\nnet = resnet50()\nloss.backward()\n")
    assert found is not None and found.sensitivity == "A" and found.confidence >= 0.8


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
        "git clone https://example.org/resnet50", "mpirun -np 4 ./wrf.exe", "srun ./solver stream", "./stream",
        "python3 train.py --vocab-file bert-vocab.txt", "python3 tokenize.py --model bert --epochs 1",
        "python3 download.py --model bert --train", "python3 run.py --model bert", "python3 train.py --save_dir bert",
        "torchrun --nproc-per-node=4 train.py", "python3 graph.py --model gcn --epochs 3",
        "sbatch train.sh --model bert", "snakemake train --config model=bert",
        "python3 train.py --data /bert/x --teacher-model bert",
        "python3 /scratch/bert/train.py", "cd /home/bert && python3 train.py",
    ],
)  # fmt: skip
def test_work_that_shows_nothing_is_not_guessed(script: str) -> None:
    assert evidence(HEAD + script) is None


@pytest.mark.parametrize(
    "program",
    [
        "vasp_std", "gmx_mpi mdrun", "namd2 x", "pmemd.cuda.MPI -O", "pw.x -in a", "lmp -in in.lj", "cp2k.psmp -i x",
        "simpleFoam -parallel", "vllm serve x", "python3 -m sglang.launch_server", "text-generation-launcher",
    ],
)  # fmt: skip
def test_programs_whose_bound_depends_on_their_input_show_no_class(program: str) -> None:
    found = evidence(f"{HEAD}module load x\nmpirun -np 4 {program} > out\n")
    assert found is not None and found.sensitivity == "?" and found.confidence == 0.0
    assert "whose class depends on its input" in found.why


@pytest.mark.parametrize("model", ["vgg19", "gpt2", "dcgan", "pointnet"])
def test_a_label_without_measurements_is_not_sure(model: str) -> None:
    found = evidence(f"{HEAD}python3 train.py --model {model} --epochs 9")
    assert found is not None and found.sensitivity in "BC" and found.confidence < 0.8


@pytest.mark.parametrize(
    "line",
    [
        "python3 train_all.py --models resnet50,vgg19",
        "python3 train.py --model bert\npython3 train.py --arch resnet50",
        "./gpu_burn 60\n./babelstream", "./pagerank x\nlmp -in in.lj",
    ],
)  # fmt: skip
def test_signs_of_several_classes_leave_nothing_sure(line: str) -> None:
    found = evidence(HEAD + line)
    assert found is not None and found.confidence <= 0.5


def test_no_sign_decides_without_support() -> None:
    """Whatever stands in the catalogue: below 0.8, the default of script_sure, without a measurement or a purpose."""
    assert set(PROGRAMS.values()) <= set(APPLICATIONS) and set(MODELS) <= set(APPLICATIONS)
    assert all(known.support >= MEASURED or known.support == LABELLED for known in APPLICATIONS.values())
    for program in (*PROGRAMS, *(name for names in BY_INPUT.values() for name in names)):
        found = evidence(f"{HEAD}srun ./{program}")
        known = APPLICATIONS.get(PROGRAMS.get(program, ""))
        assert found is not None and (found.confidence >= 0.8) == (known is not None and known.support >= MEASURED)


def test_the_documented_table_of_evidence_has_every_program() -> None:
    text = (Path(__file__).parents[3] / "docs" / "sensitivity.md").read_text(encoding="utf-8")
    table = text.partition("### Evidence")[2].partition("The figures are")[0]
    known = {name: known.support >= MEASURED for name, known in APPLICATIONS.items()}
    spelt = {"resnet50": "ResNet-50", "pagerank": "PageRank", "pointnet": "PointNet", "gpt2": "GPT-2"}
    for name, decides in (known | dict.fromkeys(BY_INPUT, False)).items():
        words = {name, name.upper(), spelt.get(name, name)}
        rows = [row for row in table.splitlines() if any(re.search(rf"(?<!\w){word}(?!\w)", row) for word in words)]
        assert rows and all(row.endswith("| yes |") == decides for row in rows), name


def test_labelled_scripts_get_the_class_that_they_show_or_none() -> None:
    rows = [(one.name, one.wanted, found) for one, found in judged()]
    assert len(rows) >= 60 and len({wanted for _, wanted, _ in rows}) == 4
    assert [row for row in rows if row[1] != row[2]] == []
    assert NONE in {found for *_, found in rows}


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


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_can_be_read(script: str, program: str) -> None:
    found = evidence(script, program)
    assert found is None or (0.0 <= found.confidence <= 1.0 and found.why.isprintable())
    python_file(script)


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
