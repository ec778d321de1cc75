# SPDX-License-Identifier: MIT
"""Fuzzes what reads users' words: comments, command lines, scripts, host lists, settings, result files.

Whatever they hold, only errors of ours are raised, and palsub hands on exactly what it was given.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import sys
import tempfile
from typing import Any

from common import Part, mutate, run, text, word

from slurm_pal.base import config, hostlist, marks
from slurm_pal.base.errors import PalError, UsageError, one_line
from slurm_pal.decide import constraint
from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.online import collectives, culprit
from slurm_pal.online import word as slow_word
from slurm_pal.sensitivity import features
from slurm_pal.slurm import parse
from slurm_pal.store import ingest
from slurm_pal.store.database import Database, open_database
from slurm_pal.submit import argv, choice, elastic, known, movable, options, script
from slurm_pal.variability.records import SCHEMA as RECORD_SCHEMA

MOST_NAMES = 65_536

COMMENTS = (
    "", "my own words", "pal:job=A;from=--pal-class;mov=1;ck=1;lost=600",
    "mine pal:it=1200;of=5000;at=1763712345 more",
    "pal:lease=187;req=;exc=;class=?;from=default;act=nodelist;set=n1;why=best;slow=0.960;epoch=17", "pal:ack=4711",
    "pal:job=A;from=x pal:job=B;from=y", "  two  blanks  ",
)  # fmt: skip
KEYS = (marks.JOB, marks.PROGRESS, marks.SLOW, marks.ACK, marks.EVENT, "lease")
SCRIPTS = (
    "#!/bin/sh\n#SBATCH --gres=gpu:2 -N1\n#SBATCH --time=1:00:00 # an hour\n#PAL class=A movable\nsrun python t.py\n",
    "#!/bin/bash\n#SBATCH -J 'two words' --comment=\"it's mine\"\n#PAL checkpoint=kill -USR1 $PID\nmpirun ./xhpl\n",
    "#!/usr/bin/env python3\n#SBATCH hetjob\n#PBS -l x\nimport torch\nfrom transformers import x\n",
    "#!/bin/sh\ncat <<EOF\nresnet50\nEOF\ncd /tmp && /opt/stream.exe | tee out; exec env A=1 nohup gmx mdrun\n",
    "#!/bin/sh\n#SBATCH --gpus-per-node=4 -o logs/%j -n 8\n#PAL elastic=2:4 elastic-hook=kill $PAL_PAYLOAD_PID\nx\n",
    "#!/bin/sh\n#SBATCH --gres=gpu:1 -p a\n#PAL alt=g:partition=a,est=1 goal=deadline=18:00 input=/data,/x\n"
    "#PAL alt=c:partition=b,cpus=2,est=2h\ntar xf /data/a --data-dir=/b\n",
    "#!/bin/sh\n",
    "",
)
ARGUMENTS = (
    "--gres=gpu:2", "--gres", "gpu:v100:1", "-N2", "-n", "4", "--nodes=1-4", "--exclude=n[1-3]", "-w", "n[0,7]", "-x",
    "--constraint=(a|b)&c", "-C", "ib", "--time=1-02:03:04", "-t", "90", "--mem=4G", "--mem-per-gpu=1T", "-J", "name",
    "-Hn4", "--comment=pal:job=A", "--array=0-9%2", "--wrap", "true", "--wrap=srun x", "--parsable", "--no-requeue",
    "--gpus=2", "-G2", "--exclusive", "--partition=gpu,cpu", "--pal-class", "--pal-class=A", "--pal-movable=600",
    "--pal-off", "--pal-checkpoint", "--pal-app=stream", "--pal-policy=pal", "--pal-observe", "--", ":", "-", "job.sh",
    "args", "--begin=now+1hour", "--cpus-per-task=4", "--ntasks-per-node=8", "--cpus-per-gpu=2", "--reservation=r",
    "--extra=x", "--pal-elastic=2:4", "--pal-goal=cost", "--pal-goal", "deadline=now+8hours", "--pal-alt",
    "gpu:partition=a,est=1", "--pal-alt=cpu:partition=b,cpus=4,est=2h", "--pal-input=/data/set1,/tmp", "--pal-elastic",
    "1:3", "--pal-elastic-hook=x", "--pal-elastic-partition",
    "--pal-fork=3", "--pal-save-before=300", "--pal-save-before", "--pal-save-times=3",
)  # fmt: skip
VARIABLES = (
    "SBATCH_GRES", "SBATCH_COMMENT", "SBATCH_EXCLUDE", "SBATCH_CONSTRAINT", "SBATCH_TIMELIMIT", "SLURM_PAL_CLASS",
    "SLURM_PAL_MOVABLE", "SLURM_PAL_CHECKPOINT", "SLURM_HOSTFILE", "SBATCH_REQUEUE", "SLURM_PAL_ELASTIC",
    "SLURM_PAL_ELASTIC_DIR", "SLURM_PAL_ELASTIC_BEAT_S", "SBATCH_OUTPUT",
)  # fmt: skip
HOSTS = (
    "n1", "n[1-3,07]", "n[001-100]-ib", "a1,b[2-4],c", "n[1-4]-[5-8]", "(null)", "", "n[0-65535]", "node-1.site.org",
)  # fmt: skip
CONSTRAINTS = ("ib", "a&b", "(a|b)&c", "[a|b]", "a*2&b", "((a))", "")
TOML = (
    '[paths]\nstate_dir = "/var/lib/x"\n[submit]\nenabled = true\nlease_max_s = 600.0\n[apps]\nmine = "A"\n',
    '[placement]\npolicy = "pal"\nlocality_penalty = 1.7\n[rebalance]\nact = true\n[sensitivity]\ntrust = "user"\n',
    "",
)
VALUES = ("1", "true", "600", "1.5", "pal", "/var/lib/x", "")
RECORD: dict[str, Any] = {
    "schema": RECORD_SCHEMA, "run_id": "r1", "sweep_id": "s1", "ts_start": 1.0, "ts_end": 2.0, "cluster": "c",
    "node_name": "n0", "host": "h", "slurm_job_id": 7,
    "gpu": {"uuid": "GPU-1", "vendor": "nvidia", "model": "V100", "slurm_index": 0},
    "env": {"driver": "5", "backend": "emu", "tool_version": "1", "libs": {"torch": "2"}, "power_limit_w": 250.0},
    "bench": {
        "id": "gemm_fp16", "sensitivity_class": "A", "version": 1, "method_hash": "ab", "dtype": "fp16", "shape": "4",
    },
    "result": {
        "value": 1.5, "unit": "TFLOP/s", "n_blocks": 3, "block_s": 0.1, "mad": 0.0, "cv_pct": 0.1, "ci95_pct": 0.1,
        "warmup_s": 1.0, "steady": True, "stop_reason": "ci", "samples": [1.5, 1.4],
    },
    "telemetry": {"power_w": {"p50": 250}}, "flags": ["ecc"], "valid": True, "reason": "",
}  # fmt: skip
RECORDS = (json.dumps(RECORD), '{"schema":"pal.record/2"}', '{"schema":"pal.record/\u00b2"}', "[]", "{}", '"text"', "")
STRANGE: tuple[object, ...] = (
    None, True, -1, 1e-300, 10**400, -(2**63), 2**63, math.nan, math.inf, "", "\u00b2", "\ud800", "\u2028", "x" * 3000,
    "n0", [], {}, [[]], {"": {}}, [10**400], ["a"], {"x": math.nan}, {"\ud800": 10**400},
)  # fmt: skip


# -- words on jobs ------------------------------------------------------------------------


def make_marks(rng: random.Random) -> tuple[str, str, dict[str, str]]:
    pairs = {rng.choice(KEYS): word(rng, ("A", "600", "n[1,2]", "now"))}
    return text(rng, COMMENTS), rng.choice(KEYS), pairs | {"from": word(rng, ("x", "--pal-class"))}


def check_marks(made: tuple[str, str, dict[str, str]]) -> None:
    """What is read holds only our characters; what others wrote stays, in order."""
    comment, key, pairs = made
    for found in marks.words(comment, key):
        assert next(iter(found)) == key
        assert all(marks._VALUE.fullmatch(value) for value in found.values()), found
    ours = next(iter(pairs))
    try:
        put = marks.put(comment, pairs)
    except UnicodeEncodeError:
        put = None  # a surrogate: bytes that are not UTF-8 never come from Slurm so
    if put is None:
        return
    assert len(put.encode()) <= marks.MOST
    foreign = [part for part in comment.split(" ") if part and not part.startswith(f"pal:{ours}=")]
    assert [part for part in put.split(" ") if part][: len(foreign)] == foreign


# -- scripts --------------------------------------------------------------------------------


def make_script(rng: random.Random) -> bytes:
    return mutate(rng, rng.choice(SCRIPTS).encode(), 8)


def check_script(body: bytes) -> None:
    found = script.scan(body)
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in found.pal)
    shown = body[: known.PROGRAM_BYTES].decode(errors="replace")
    evidence = features.evidence(shown, shown[:2000], {"mine": "B"})
    assert evidence is None or (evidence.sensitivity in "ABC?" and 0 <= evidence.confidence <= 1)
    features.python_file(shown)


# -- palsub's command line --------------------------------------------------------------------


def make_line(rng: random.Random) -> tuple[list[str], dict[str, str], bytes]:
    words = [word(rng, ARGUMENTS, rng.choice((0, 0, 3))) for _ in range(rng.randint(0, 9))]
    values = ("gpu:2", "A", "n[1-3]", "0", "1", "90")
    variables = {name: word(rng, values, 2) for name in VARIABLES if rng.random() < 0.15}
    return words, variables, make_script(rng)


def check_line(made: tuple[list[str], dict[str, str], bytes]) -> None:
    """sbatch gets its words, all of them and in order, or the user is shown what is wrong with one of ours."""
    words, variables, body = made
    try:
        line = argv.parse(words)
        chosen = choice.choice(line)
    except UsageError:
        assert any(word.startswith("--pal-") for word in words), "only words of ours may be refused"
        return
    taken = iter(words)
    assert all(any(word == other for other in taken) for word in (*line.before, *line.after)), (line.before, line.after)
    dropped = len(words) - len(line.before) - len(line.after)
    assert len(line.pal) <= dropped <= 2 * len(line.pal)
    scanned = script.scan(body)
    warnings: list[str] = []
    asked = options.build(line, variables, scanned)
    assert len(asked.req_nodes) <= MOST_NAMES and len(asked.exc_nodes) <= MOST_NAMES
    movable.terms(line, variables, scanned)
    known.verdict(("?", "default"), line, scanned._replace(body=body), config.Config(), variables)
    choice.moving(chosen, variables, scanned.pal, warnings)
    choice.observing(chosen, scanned.pal, 0.0, warnings)
    try:
        choice.sensitivity(chosen, variables, scanned.pal, {}, warnings)
    except UsageError:
        assert chosen.app, "only --pal-app may be refused"
    argv.without(words, "wrap")
    check_companions(line, chosen, variables, scanned)


def check_companions(
    line: argv.CommandLine, chosen: choice.Choice, variables: dict[str, str], scanned: script.Script
) -> None:
    """A job is elastic as it was asked for, or not at all; its companions differ in our words only."""
    try:
        wanted = elastic.asked(chosen, variables, scanned)
        if wanted is None:
            return
        wanted, sent = elastic.checked(wanted, line, variables, scanned)
        commands = elastic.companions(wanted, sent, 77)
    except UsageError as error:
        assert "\n" not in one_line(error)
        return
    except UnicodeEncodeError:  # as with other marks
        return
    assert 1 <= wanted.least <= wanted.most <= 1000 and len(commands) == wanted.most - wanted.least
    for command in commands:
        own = argv.read_options(command[1:])
        assert dict(own.found)["nodes"] == "1" and dict(own.found)["dependency"] == "after:77"
        assert command[1 + own.end :] == list(line.after) or own.unsure


# -- host lists and constraints ---------------------------------------------------------------


def make_hosts(rng: random.Random) -> tuple[str, str]:
    return text(rng, HOSTS), text(rng, CONSTRAINTS)


def check_hosts(made: tuple[str, str]) -> None:
    hosts, features_wanted = made
    try:
        names = hostlist.expand(hosts)
        assert len(names) <= MOST_NAMES, f"{len(names)} names"
        assert len(set(names)) == len(names)
    except PalError:
        pass
    test = constraint.compile_constraint(features_wanted)
    if test is not None:
        test(frozenset({"ib", "a"}))


# -- settings -------------------------------------------------------------------------------


def make_config(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    section = rng.choice(tuple(config.KEYS))
    key = rng.choice(tuple(config.KEYS[section]))
    return mutate(rng, rng.choice(TOML).encode()), {f"SLURM_PAL_{section}_{key}".upper(): word(rng, VALUES)}


def check_config(made: tuple[bytes, dict[str, str]]) -> None:
    body, variables = made
    with open(os.path.join(FOLDER, "pal.toml"), "wb") as stream:
        stream.write(body)
    os.chmod(stream.name, 0o644)
    for environment in (variables, {}):
        try:
            read = config.load({"SLURM_PAL_CONFIG": stream.name, "XDG_CONFIG_HOME": FOLDER, **environment})
        except PalError:
            continue
        for section, keys in config.KEYS.items():
            for key, setting in keys.items():
                assert type(read[section, key]) is type(setting.default)


# -- results in the spool ---------------------------------------------------------------------


def make_records(rng: random.Random) -> bytes:
    return b"\n".join(
        mutate(rng, rng.choice(RECORDS).encode()) if rng.random() < 0.5 else _with_strange_values(rng)
        for _ in range(rng.randint(1, 3))
    )


def _with_strange_values(rng: random.Random) -> bytes:
    """A record in which some values are of another kind or size, with its schema spoilt at times."""
    table = json.loads(json.dumps(RECORD))
    for _ in range(rng.randint(1, 3)):
        place = table
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
                break
            place = place[key]
        place[key] = copy.deepcopy(rng.choice(STRANGE))
    return mutate(rng, json.dumps(table).encode(), rng.choice((0, 0, 1)))


def check_records(raw: bytes) -> None:
    """Every line is a record or a complaint, and what is shown of it cannot steer a terminal."""
    records, wrong = ingest._parse("n0.jsonl", raw)
    DATABASE.insert(records, 1.0)
    assert len(records) + len(wrong) == sum(1 for line in raw.split(b"\n") if line.strip())
    assert all(str(complaint).isprintable() for complaint in wrong), [str(complaint) for complaint in wrong]


def make_collectives(rng: random.Random) -> bytes:
    """A file of the inspector plug-in in which lines are spoilt, cut or of another kind."""
    ranks = [Rank(f"n{h}", k) for h in range(2) for k in range(2)]
    texts = files(ranks, Behaving(steps=2), rng, rng.choice(("v4.0", "v4.3")))
    lines = b"".join(text.encode() for text in texts.values()).split(b"\n")
    return b"\n".join(mutate(rng, line, rng.choice((0, 0, 0, 1, 3))) for line in lines)


def check_collectives(raw: bytes) -> None:
    """Whatever a job's processes wrote, each record is sound, and the word that follows is one of ours or none."""
    folder = os.path.join(FOLDER, "inspector")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "a.log"), "wb") as stream:
        stream.write(raw)
    seen = collectives.read(folder).collectives
    assert all(0 <= one.rank < one.ranks and 0 <= one.exec_us < math.inf for one in seen)
    job = parse.nobodys(1, {"JobState": "RUNNING"})._replace(user="a", gpus={"n0": (0, 1), "n1": (0, 1)})
    said = slow_word.word(culprit.find(seen), job, 1.0)
    text = marks.put(raw.decode(errors="replace")[:200].replace("pal:slow", ""), said) if said else ""
    found = slow_word.read(job._replace(comment=text or ""))
    assert found is None or found.node in ("", *job.gpus)


PARTS = {
    "collectives": Part(make_collectives, check_collectives),
    "marks": Part(make_marks, check_marks),
    "script": Part(make_script, check_script),
    "line": Part(make_line, check_line),
    "hosts": Part(make_hosts, check_hosts),
    "config": Part(make_config, check_config),
    "records": Part(make_records, check_records),
}
FOLDER = ""
DATABASE: Database


def main(arguments: list[str] | None = None) -> int:
    global FOLDER, DATABASE
    with tempfile.TemporaryDirectory() as FOLDER:
        os.environ |= {"XDG_STATE_HOME": FOLDER, "SLURM_PAL_PATHS_STATE_DIR": FOLDER}
        with open_database(os.path.join(FOLDER, "state"), write=True) as DATABASE:
            return run("words", PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
