# SPDX-License-Identifier: MIT
"""The cascade on the submit path: names, labels, scripts; and an observed job on its way to sbatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_pal.base.config import Config, load
from slurm_pal.sensitivity.history import Label, Seen
from slurm_pal.sensitivity.keys import name_key, script_digest, script_key
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import labels, localities, user_files
from slurm_pal.store.localities import Locality
from slurm_pal.store.snapshot import GpuScore, publish
from slurm_pal.submit import known
from slurm_pal.submit.argv import parse
from slurm_pal.submit.decision import render
from slurm_pal.submit.script import Script, scan

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
BODY = b"#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python3 train.py\n"


def script(body: bytes = BODY) -> Script:
    return scan(body)._replace(body=body)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.chdir(tmp_path)
    return load({"SLURM_PAL_PATHS_SNAPSHOT": str(tmp_path / "snapshot")})


def label(*classes: str, at_s: float | None = None) -> Label:
    now_s = time.time() if at_s is None else at_s
    return Label(classes[0], len(classes), tuple(Seen(i, c, 1.0, now_s) for i, c in enumerate(classes)))


def site(config: Config, **found: Label) -> None:
    labels.write(labels.path_of(user_files.site_folder(config.snapshot_path), os.geteuid()), found)


@pytest.mark.parametrize(
    ("words", "env", "name"),
    [
        (["job.sh"], {}, "job.sh"), (["/a/b/job.sh"], {}, "job.sh"), (["--wrap", "x"], {}, "wrap"), ([], {}, "sbatch"),
        (["-J", "x", "job.sh"], {"SBATCH_JOB_NAME": "y"}, "x"), (["job.sh"], {"SBATCH_JOB_NAME": "y"}, "y"),
    ],
)  # fmt: skip
def test_the_name_is_the_one_that_sbatch_gives(words: list[str], env: dict[str, str], name: str) -> None:
    assert known.job_name(parse(words), script(), env) == name


def test_the_script_may_name_the_job() -> None:
    named = script(b"#!/bin/sh\n#SBATCH -J mine\ntrue\n")
    assert known.job_name(parse(["job.sh"]), named, {}) == "mine"
    assert known.job_name(parse(["--wrap", "true"]), named, {}) == "wrap"


def test_the_site_and_the_user_himself_remember_and_the_newer_counts(config: Config) -> None:
    assert known.verdict(("?", ""), parse(["-J", "train", "x"]), script(), config, {}).sensitivity == "?"
    site(config, **{name_key("train"): label("B", at_s=time.time() - 1000)})
    found = known.verdict(("?", ""), parse(["-J", "train", "x"]), script(), config, {})
    assert (found.sensitivity, found.stage) == ("B", "history") and "jobs named train" in found.why
    labels.write(known.own_labels(), {name_key("train"): label("C")})
    assert known.verdict(("?", ""), parse(["-J", "train", "x"]), script(), config, {}).sensitivity == "C"


def test_of_script_and_name_the_less_mixed_is_believed(config: Config) -> None:
    key = script_key(script_digest(BODY))
    site(config, **{key: label("B", "A", "B", "C"), name_key("a"): label("A", "A"), name_key("b"): label("C", "A")})
    line = {name: parse(["-J", name, "x"]) for name in "ab"}
    assert known.verdict(("?", ""), line["a"], script(), config, {}).sensitivity == "A"
    assert known.verdict(("?", ""), line["b"], script(), config, {}).sensitivity == "?"


def test_what_was_measured_stands_beside_what_is_said(config: Config) -> None:
    site(config, **{name_key("train"): label("C", "C")})
    found = known.verdict(("A", "--pal-class"), parse(["-J", "train", "x"]), script(), config, {})
    assert (found.sensitivity, found.why) == ("A", "--pal-class")
    assert found.measured is not None and found.measured.sensitivity == "C"
    config.set("sensitivity", "trust", "measured", "test")
    found = known.verdict(("A", "--pal-class"), parse(["-J", "train", "x"]), script(), config, {})
    assert found.sensitivity == "C" and "the user said A" in found.why


def test_the_program_is_looked_into(config: Config, tmp_path: Path) -> None:
    line = parse(["x"])
    (tmp_path / "train.py").write_text("import torch\nmodel = torchvision.models.resnet50()\n")
    found = known.verdict(("?", ""), line, script(), config, {})
    assert (found.sensitivity, found.stage) == ("A", "script")
    config.set("sensitivity", "script_sure", 1.1, "test")
    assert known.verdict(("?", ""), line, script(), config, {}).sensitivity == "?"


@pytest.mark.parametrize("what", ["fifo", "directory", "long", "missing", "denied"])
def test_a_program_that_cannot_be_read_says_nothing(what: str, config: Config, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    if what == "fifo":
        os.mkfifo(path)  # to open it for reading would wait for ever
    elif what == "directory":
        path.mkdir()
    elif what == "long":
        path.write_text("x = 1\n" * 100_000 + "resnet50()\n")
    elif what == "denied":
        path.symlink_to(path)
    assert known.verdict(("?", ""), parse(["x"]), script(), config, {}).sensitivity == "?"


@pytest.mark.parametrize("text", ["", "{}", "\0" * 50])
def test_damaged_labels_cost_a_guess_and_no_submission(text: str, config: Config) -> None:
    site(config, **{name_key("x"): label("C")})
    Path(labels.path_of(user_files.site_folder(config.snapshot_path), os.geteuid())).write_text(text)
    assert known.verdict(("?", ""), parse(["x"]), script(), config, {}).sensitivity == "?"


# -- palsub as a program ----------------------------------------------------------------------


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A fake Slurm of two nodes; its sbatch keeps the script that it was given."""
    (tmp_path / "bin").mkdir()
    write_shims(str(tmp_path / "bin"), str(tmp_path / "fake.json"), [FakeNode("n0"), FakeNode("n1")])
    sbatch = '#!/bin/sh\nfor word; do last=$word; printf "<%s>" "$word"; done > given\n'
    sbatch += '[ -f "$last" ] && cat "$last" > sent\necho "Submitted batch job 7"\n'
    (tmp_path / "bin" / "sbatch").write_text(sbatch)
    scores = [GpuScore(f"n{i}", k, f"g{i}{k}", "m", dict.fromkeys("ABC", 1.0), {"A": "v0"}, time.time(), 1.0, ())
              for i in range(2) for k in range(4)]  # fmt: skip
    publish(str(tmp_path / "snapshot"), scores, cluster="c", epoch=1, now_s=time.time())
    (tmp_path / "job.sh").write_bytes(BODY)
    (tmp_path / "tmp").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_"))}
    return kept | {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"),
        "SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_PAL_PATHS_SNAPSHOT": str(tmp_path / "snapshot"),
        "TMPDIR": str(tmp_path / "tmp"),
    }  # fmt: skip


def palsub(env: dict[str, str], *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PALSUB, *words], env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=60, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done  # type: ignore[no-any-return]


def decision(env: dict[str, str]) -> dict[str, object]:
    folder = next((Path(env["HOME"]) / "state" / "slurm-pal" / "decisions").iterdir())
    return dict(json.loads((folder / "7.json").read_text()))


@pytest.mark.parametrize("how", ["option", "directive", "setting", "stdin"])
def test_an_observed_job_is_sent_with_its_observer(how: str, env: dict[str, str], tmp_path: Path) -> None:
    words, body = ["job.sh"], BODY
    if how == "option":
        words = ["--pal-observe=120", "job.sh"]
    elif how == "directive":
        body = BODY.replace(b"#SBATCH", b"#PAL observe=120\n#SBATCH", 1)
        (tmp_path / "job.sh").write_bytes(body)
    elif how == "setting":
        env |= {"SLURM_PAL_SENSITIVITY_OBSERVE_S": "120"}
    else:
        words = ["--pal-observe=120"]
    palsub(env, *words, **({"input": body.decode()} if how == "stdin" else {"stdin": subprocess.DEVNULL}))
    sent = (tmp_path / "sent").read_text()
    line = sent.split("\n")[body.decode().split("\n").index("srun python3 train.py")]
    assert line.endswith("; srun python3 train.py") and "slurm_pal.profiling.node.observer --seconds 120" in line
    assert f"--digest {script_digest(BODY)}" in line
    assert decision(env)["observed_s"] == 120.0
    assert list((tmp_path / "tmp").iterdir()) == []
    name = "sbatch" if how == "stdin" else "job.sh"
    assert (tmp_path / "given").read_text().rpartition("/")[2].startswith(f"{name}>")


def test_with_a_checkpoint_the_wrapper_holds_the_observed_script(env: dict[str, str], tmp_path: Path) -> None:
    palsub(env, "--pal-observe=120", "--pal-checkpoint=USR1", "job.sh", stdin=subprocess.DEVNULL)
    sent = (tmp_path / "sent").read_text()
    assert "pal_main" in sent and sent.count("slurm_pal.profiling.node.observer") == 1
    assert sent.rstrip().endswith("; srun python3 train.py")


def test_an_array_is_observed_in_one_of_its_tasks(env: dict[str, str], tmp_path: Path) -> None:
    palsub(env, "--pal-observe=120", "-a", "1-3", "job.sh", stdin=subprocess.DEVNULL)
    sent = (tmp_path / "sent").read_text()
    assert "SLURM_ARRAY_TASK_MIN" in sent and sent.endswith("fi 2>/dev/null; srun python3 train.py\n")


def test_a_job_that_is_not_to_be_observed_goes_as_it_is(env: dict[str, str], tmp_path: Path) -> None:
    env |= {"SLURM_PAL_SENSITIVITY_OBSERVE_S": "120"}
    done = palsub(env, "--pal-observe=0", "job.sh", stdin=subprocess.DEVNULL)
    assert (tmp_path / "sent").read_bytes() == BODY and done.stderr == ""


def test_a_user_is_told_why_his_job_is_not_observed(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/usr/bin/env python3\n#SBATCH --gres=gpu:1\nprint()\n")
    done = palsub(env, "--pal-observe", "job.sh", stdin=subprocess.DEVNULL)
    assert done.stderr == (
        "palsub: the job is not observed: the script is for python3, and only a shell can start an observer\n"
    )


def test_a_program_whose_class_depends_on_its_input_is_explained(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun gmx_mpi mdrun\n")
    done = palsub(env, "--pal-explain", "job.sh", stdin=subprocess.DEVNULL)
    assert "sensitivity class ? (not stated, treated as A)" in done.stderr
    why = "no class by script: the script shows GROMACS, whose class depends on its input; --pal-observe finds it"
    assert why in done.stderr


@pytest.mark.parametrize(
    ("work", "words", "left"),
    [
        ("srun ./wrf.exe", [], True),
        ("srun ./xhpl", [], True),
        ("srun ./xhpl", ["--pal-class=A"], False),
        ("srun ./xhpl", ["--gpus-per-node=4"], False),
    ],
)
def test_whole_nodes_for_cpus_are_left_to_slurm(
    work: str, words: list[str], left: bool, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --exclusive\n{work}\n")
    done = palsub(env, "--pal-explain", *words, "job.sh", stdin=subprocess.DEVNULL)
    assert ("left to Slurm: --exclusive, but the job asks for no GPU" in done.stderr) == left, done.stderr


def test_the_decision_tells_stage_and_confidence(env: dict[str, str], tmp_path: Path) -> None:
    folder = user_files.site_folder(str(tmp_path / "snapshot"))
    labels.write(labels.path_of(folder, os.geteuid()), {name_key("job.sh"): label("C", "C", "C")})
    done = palsub(env, "--pal-explain", "job.sh", stdin=subprocess.DEVNULL)
    assert "sensitivity class C (3 of the last 3 jobs named job.sh were measured C, newest 0 d ago)" in done.stderr
    assert "by stage history, confidence 1.00" in done.stderr
    palsub(env, "--pal-class=A", "job.sh", stdin=subprocess.DEVNULL)
    made = decision(env)
    assert any("also measured: C, confidence 1.00" in text for text in render(made))
    sensitivity = made["sensitivity"]
    assert (
        isinstance(sensitivity, dict)
        and sensitivity["stage"] == "word"
        and sensitivity["measured"]["sensitivity"] == "C"
    )


def test_penalties_that_steps_showed_are_found_the_newer_ones(config: Config) -> None:
    key, now_s = localities.key_of("train", 8), time.time()
    site_path, own_path = (
        localities.LOCALITIES.path_of(folder, os.geteuid())
        for folder in (user_files.site_folder(config.snapshot_path), user_files.own_folder())
    )
    assert known.locality("train", 8, config) is None
    localities.write(site_path, {key: Locality((1.3,), now_s - 9)})
    assert known.locality("train", 8, config) == Locality((1.3,), now_s - 9)
    localities.write(own_path, {key: Locality((1.5, 2.0), now_s)})
    assert known.locality("train", 8, config) == Locality((1.5, 2.0), now_s)
    assert known.locality("train", 4, config) is known.locality("wrap", 8, config) is None
    Path(site_path).write_text("?")
    assert known.locality("train", 8, config) == Locality((1.5, 2.0), now_s), "a damaged file costs nothing else"
