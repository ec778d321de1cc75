# SPDX-License-Identifier: MIT
"""Jobs through a real slurmrestd are sbatch's own jobs, or are refused by name; and so are changes of jobs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from slurm_pal.base.config import load
from slurm_pal.base.errors import MissingPackageError, NotByRestError
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs, slurm_version
from slurm_pal.slurm import releases
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.rest_client import REQUEUES, RestClient
from slurm_pal.slurm.rest_program import stand_in
from slurm_pal.slurm.rest_wire import Wire, address
from slurm_pal.submit import watcher
from slurm_pal.submit.lease_file import Lease

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .scored import publish_slowdowns

pytestmark = pytest.mark.real_slurm
NOBODY = (shutil.which("setpriv") or "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
FIRST = [("ClusterName=", "FirstJobId=70001\nClusterName=")]
"""So that no other number in what is compared looks like a job's."""
SHOWN = """#!/bin/sh
tr '\\0' '\\n' < /proc/self/environ > env.$SLURM_JOB_ID
{ umask; ulimit -a; echo "args $*"; } >> env.$SLURM_JOB_ID
mv env.$SLURM_JOB_ID done.$SLURM_JOB_ID
"""
_OF_ITS_RUN = {
    "JobId", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "Deadline", "LastSchedEval", "RunTime",
    "AllocNode:Sid", "Scheduler", "Priority", "ArrayJobId", "SLUID", "Reason",
}  # fmt: skip
"""Keys of scontrol whose values belong to one submission."""
_OF_ITS_PLACE = (
    "SLURM_TASK_PID", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_PAL",
    "SLURM_TOPOLOGY_ADDR", "SLURMD_NODENAME", "SLURM_JOB_GPUS", "HOSTNAME", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_SLUID",
    "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL", "SLURM_STEPMGR", "SLURM_JWT",
)  # fmt: skip
"""Variables that belong to one run."""
_LATER = ("--array", "--begin", "--dependency", "-D", "--gres-flags")  # the last one takes what the other leaves
SAME: list[tuple[str, ...]] = [
    (), ("-N1",), ("-N1-2",), ("-n2",), ("-N2", "--ntasks-per-node=2"), ("-c2", "-n2"), ("--gres=gpu:2",), ("-G2",),
    ("--gpus-per-node=2", "-N1"), ("--gpus-per-task=1", "-n2", "-c2"), ("--cpus-per-gpu=2", "-G2"),
    ("--gpus-per-socket=1", "--sockets-per-node=1"), ("--mem-per-gpu=100", "-G2"), ("--mem=1G",), ("--mem=0",),
    ("--mem-per-cpu=200M",), ("-t", "1-2:30"), ("-t", "10:30", "--time-min=5"), ("-t", "UNLIMITED"), ("-J", "na me"),
    ("-o", "a%j.o", "-e", "b.%j", "-i", "/dev/zero"), ("-w", "n1"), ("-x", "n[0-1]"), ("--exclusive",), ("-s",),
    ("--exclusive=user",), ("--open-mode=append",), ("--requeue", "--no-requeue"), ("--no-requeue", "--requeue"),
    ("--nice",), ("--nice=7",), ("--comment", "a 'b' =c \u00e9"), ("-p", "gpu"), ("--signal=USR1@60", "-t", "10"),
    ("--mail-type=END,FAIL", "--mail-user=x@y"), ("--mail-type=ALL",), ("--mincpus=2",), ("--use-min-nodes", "-N1-2"),
    ("-m", "block:cyclic"), ("-m", "plane=2", "-n2"), ("--threads-per-core=1",), ("--ntasks-per-core=1",),
    ("--ntasks-per-socket=1",), ("--ntasks-per-gpu=1", "-G1"), ("--wait-all-nodes=1",), ("--delay-boot=10",),
    ("--gres-flags=enforce-binding", "-G1"), ("--gpu-bind=closest", "-G1"), ("--cpu-freq=low",), ("--export=ALL",),
    ("--gpu-freq=low", "-G1"), ("--acctg-freq=30",), ("--prefer=x",), ("--kill-on-invalid-dep=yes",),
    ("--mail-type=END", "--mail-type=FAIL"), ("-D", "link/.."), ("-t", "0"), ("--ntasks-per-node=2",),
    ("--mail-type=END", "--mail-type=NONE"),
    ("--begin=2031-02-03T04:05:06",), ("--dependency=afterany:1", "--begin=now+1hour"), ("--array=0,2-4%2",),
]  # fmt: skip
"""Options with which both make the same job, in all releases."""
SAME_NEW: list[tuple[str, ...]] = [
    ("-N2",), ("-w", "n[1-2]"), ("-n4", "--ntasks-per-node=2"), ("-O", "-n4"), ("--contiguous",), ("--switches=1@10",),
    ("--signal=B:USR1@60", "-t", "10"), ("-k",), ("--extra=x",), ("--export=NIL",), ("--segment=1", "-N2"),
    ("--gpus-per-task=1", "-n2", "--gpu-bind=closest"), ("--switches=1@1:30",), ("--gpus-per-task=1", "-G2"),
]  # fmt: skip
"""The same, from v0.0.40 on. With v0.0.38 the first two ask for one CPU in all until they start."""
REFUSED: list[tuple[str, ...]] = [
    ("--hint=nomultithread",), ("-B", "1:2:1"), ("--cores-per-socket=2",), ("--profile=all",), ("--export=NONE",),
    ("--export=PATH,X=1",), ("--mem-bind=local",), ("--test-only",), ("--wait",), ("--clusters=x",), ("-w", "./n"),
    ("--get-user-env",), ("--propagate=ALL",), ("--uid=1",),
]  # fmt: skip
REFUSED_OLD: list[tuple[str, ...]] = [
    ("-O", "-n4"), ("--contiguous",), ("--switches=1",), ("--signal=B:USR1@60",), ("-k",), ("--core-spec=1",),
    ("--export=NIL",), ("--network=x",),
]  # fmt: skip
VARIABLES = {
    "SBATCH_PARTITION": "gpu", "SBATCH_GPUS": "1", "SBATCH_OPEN_MODE": "append", "SBATCH_TIMELIMIT": "7",
    "SBATCH_JOB_NAME": "zz", "SBATCH_NO_REQUEUE": "1", "SBATCH_SIGNAL": "USR1@5", "SBATCH_CLUSTER_CONSTRAINT": "x",
    "SBATCH_COMMENT": "no variable of sbatch's", "SBATCH_EXTRA": "neither",
}  # fmt: skip


class Site:
    """A lab, a slurmrestd of it, and whoever submits: root, or nobody where slurmrestd refuses to be root's."""

    def __init__(self, lab: Lab, socket: str, user: Sequence[str], folder: str) -> None:
        self.lab, self.socket, self.user, self.folder = lab, socket, user, folder
        here = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "PAL_"))}
        self.env = here | lab.variables()
        self.by_rest = {"SLURM_PAL_SLURM_BACKEND": "rest", "SLURM_PAL_SLURM_REST": f"unix:{socket}"}
        self.cli = CliClient(conf=lab.directory.conf)
        self.rest = RestClient(Wire(address(f"unix:{socket}")), lab.directory.conf)
        env = lab.environ()
        self.own = {name: env[name] for name in env if name.startswith("SLURM_PAL_")}
        self.own["XDG_STATE_HOME"] = os.path.join(folder, "state")
        publish_slowdowns(load(env), {"n0": 1.3, "n1": 0.97, "n2": 1.0, "n3": 1.4})
        os.chmod(load(env).snapshot_path, 0o644)
        self.script = os.path.join(folder, "job.sh")
        with open(self.script, "w", encoding="utf-8") as stream:
            stream.write(SHOWN)
        os.makedirs(os.path.join(folder, "a", "b"))
        os.symlink("a/b", os.path.join(folder, "link"))

    @property
    def new(self) -> bool:
        return self.rest._door.writes_new_form

    def run(self, argv: Sequence[str], stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.user, *argv], cwd=self.folder, env=self.env | more, input=stdin, capture_output=True, text=True
        )

    def sbatch(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(["sbatch", *words], **more)

    def stand_in(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The stand-in where sbatch is not to be found."""
        return self.run(stand_in().argv(["sbatch", *words]), **{"PATH": "/nonexistent", **self.by_rest, **more})

    def palsub(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        palsub = [sys.executable, "-P", "-m", "slurm_pal.cli.palsub", *words]
        return self.run(palsub, **{"PATH": "/nonexistent", **self.own, **self.by_rest, **more})

    def until(self, done: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 40
        while not done():
            assert time.monotonic() < deadline_s, self.cli.jobs()
            time.sleep(queue_of.LOOK_S)

    def change(self, method: str, *args: object, **fields: object) -> None:
        """A method of the REST client, as the user whom slurmrestd hears. Raises AssertionError for another user's."""
        if not self.user:
            getattr(self.rest, method)(*args, **fields)
            return
        code = (
            "import json, sys; from slurm_pal.slurm.rest_client import RestClient; "
            "from slurm_pal.slurm.rest_wire import Wire, address; where, name, args, fields = sys.argv[1:]; "
            "getattr(RestClient(Wire(address(where))), name)(*json.loads(args), **json.loads(fields))"
        )
        words = [f"unix:{self.socket}", method, json.dumps(args), json.dumps(fields)]
        done = self.run([sys.executable, "-P", "-c", code, *words])
        assert done.returncode == 0, done.stderr

    def shown(self, number: int) -> dict[str, str]:
        """What scontrol shows of a job, but for what belongs to this submission."""
        line = self.run(["scontrol", "show", "job", "-o", str(number)]).stdout.split(" SubmitLine=")[0]
        pairs = re.findall(r"(?:^|\s)([A-Z][\w:/.-]*)=((?:(?!\s[A-Z][\w:/.-]*=).)*)", line.strip())
        gone = _OF_ITS_RUN if self.new else {*_OF_ITS_RUN, "Command"}  # v0.0.38 cannot be told the script's path
        return {key: text.replace(str(number), "ID") for key, text in pairs if key not in gone}

    def told(self, number: int) -> dict[str, str]:
        """What a job saw: variables, limits, umask, arguments."""
        path = os.path.join(self.folder, f"done.{number}")
        self.until(lambda: os.path.exists(path))
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().replace(str(number), "ID").splitlines()
        pairs = (line.split("=", 1) if re.match(r"\w+=", line) else (line, line) for line in lines)
        return {name: text for name, text in pairs if not name.startswith(_OF_ITS_PLACE)}

    def end(self) -> None:
        self.cli.cancel([job.job_id for job in self.cli.jobs()])
        self.until(lambda: not {state for state, _ in self.cli.job_states().values()} & {"PENDING", "RUNNING"})


@contextlib.contextmanager
def slurmrestd_of_nobody(lab: Lab, folder: str) -> Iterator[str]:
    """A slurmrestd of the user nobody, whom it then hears, and nobody else."""
    socket, d = os.path.join(folder, "s"), lab.directory
    for place in (d.path, d("etc"), d("run"), d("state")):
        os.chmod(place, 0o755)
    program = find_programs(rest=True)["slurmrestd"]
    argv = [*NOBODY, program, "-f", d.conf, "-a", "rest_auth/local", "-s", "openapi/slurmctld", f"unix:{socket}"]
    with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + 20
        while not os.path.exists(socket):
            assert time.monotonic() < deadline_s and daemon.poll() is None
            time.sleep(0.02)
        yield socket
    finally:
        daemon.terminate()
        daemon.wait()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    skip_without_slurm()
    try:
        version = slurm_version(find_programs(rest=True)["slurmctld"])
    except MissingPackageError as error:
        pytest.skip(str(error))
    apart = releases.has(version, "slurmrestd refuses SlurmUser")
    if apart and os.geteuid():
        pytest.skip("only root can start slurmrestd of this release as another user")
    with (
        short_directory() as path,
        Lab.up(path, nodes=4, gpus=4, rest=not apart, conf_edits=FIRST) as lab,
        contextlib.ExitStack() as stack,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in lab.variables().items():
            patch.setenv(name, value)
        folder = os.path.join(os.path.dirname(path), "w")
        os.mkdir(folder)
        for place in (os.path.dirname(path), folder):
            os.chmod(place, 0o755 if place != folder else 0o777)
        socket = stack.enter_context(slurmrestd_of_nobody(lab, folder)) if apart else lab.directory.rest_socket
        yield Site(lab, socket, NOBODY if apart else (), folder)
        lab.down()


def number_of(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0 and not done.stderr, done
    return int(done.stdout.split()[-1])


def pair(site: Site, words: Sequence[str], **variables: str) -> tuple[int, int]:
    """The same job by sbatch and by the stand-in, held."""
    arguments = [*words, "--hold", site.script, *(["x", "y z"] if site.new else [])]
    return number_of(site.sbatch(*arguments, **variables)), number_of(
        site.stand_in(*arguments, **variables, PATH=os.environ["PATH"])  # which is the job's, too
    )


def test_a_job_by_rest_is_sbatchs_own_job(site: Site) -> None:
    """Option by option: all that scontrol shows of the job, and all that the job sees when it runs."""
    tried = [(words, {}) for words in (*SAME, *(SAME_NEW if site.new else []))]
    tried += [((), {name: value}) for name, value in VARIABLES.items()]
    made = [(words, variables, pair(site, words, **variables)) for words, variables in tried]
    shown = {job: site.shown(job) for _, _, jobs in made for job in jobs}
    runs = {job: not any(word.startswith(_LATER) for word in words) for words, _, jobs in made for job in jobs}
    site.run(["scontrol", "release", ",".join(str(job) for job, now in runs.items() if now)])
    told = {job: site.told(job) if now else {} for job, now in runs.items()}
    different: list[object] = []
    for words, variables, (one, other) in made:
        for seen in (shown, told):
            keys = {key for key in {**seen[one], **seen[other]} if seen[one].get(key) != seen[other].get(key)}
            found = {key: (seen[one].get(key), seen[other].get(key)) for key in keys}
            different += [(words, variables, found)] if found else []
    site.end()
    assert not different


def test_what_no_job_by_rest_can_be_is_refused_by_its_name(site: Site) -> None:
    for words in (*REFUSED, *([] if site.new else REFUSED_OLD)):
        done = site.stand_in(*words, site.script)
        shown = words[0].partition("=")[0] if words[0].startswith("--") else ""
        assert done.returncode == 6 and not done.stdout and done.stderr.count("\n") == 1, (words, done)
        assert f"cannot be given {shown}" in done.stderr, (words, done)
    arguments = site.stand_in(site.script, "x")
    assert site.new == (arguments.returncode == 0) or "arguments of the script" in arguments.stderr
    assert "does not begin with #!" in site.run(stand_in().argv(["sbatch"]), "true\n", PATH="/x", **site.by_rest).stderr
    body = "#!/bin/sh\n#SBATCH --hint=nomultithread\n"
    assert "--hint=nomultithread" in site.run(stand_in().argv(["sbatch"]), body, PATH="/x", **site.by_rest).stderr
    site.end()


def test_slurms_own_refusal_is_one_line(site: Site) -> None:
    for words, text in ((("-p", "none"), "nvalid partition name"), (("-C", "none"), "nvalid feature spec")):
        done = site.stand_in(*words, "--wrap", "true")
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and text in done.stderr, done


def test_where_sbatch_is_at_hand_it_takes_what_slurmrestd_cannot_be_given(site: Site) -> None:
    at_hand = {"PATH": os.environ["PATH"]}
    body = "#!/bin/sh\n#SBATCH --hint=nomultithread\nsleep 30\n"
    done = site.run(stand_in().argv(["sbatch", "--parsable"]), body, **site.by_rest, **at_hand)
    assert "palsub: submitted by sbatch: slurmrestd" in done.stderr and "--hint=nomultithread" in done.stderr
    assert site.cli.job(int(done.stdout)) is not None
    away = site.by_rest | {"SLURM_PAL_SLURM_REST": "unix:/nonexistent"} | at_hand
    done = site.palsub("--wrap", "sleep 30", **away)
    assert (
        done.returncode == 0
        and done.stderr.count("submitted by sbatch: slurmrestd at unix:/nonexistent cannot be") == 1
    )
    done = site.palsub("--wrap", "sleep 30", **away | {"PATH": "/nonexistent"})
    assert done.returncode == 6 and "not submitted: slurmrestd at unix:/nonexistent cannot be reached" in done.stderr
    done = site.palsub("--gres=gpu:1", "--wrap", "sleep 30", **away)
    assert done.returncode == 0 and done.stderr.startswith(
        "palsub: submitted as plain sbatch: slurmrestd at unix:/nonex"
    )
    assert done.stderr.count("\n") == 1, done
    done = site.palsub("--gres=gpu:1", "--wrap", "sleep 30", **away | {"PATH": "/nonexistent"})
    assert done.stderr.startswith("palsub: not placed: slurmrestd at") and "palsub: not submitted: " in done.stderr
    done = site.palsub("-p", "none", "--wrap", "true", **at_hand)
    assert done.returncode == 1 and "submitted by sbatch" not in done.stderr, "Slurm has answered"
    site.end()


def test_palsub_places_by_rest_and_takes_its_list_back(site: Site) -> None:
    words = (
        "--pal-class=A",
        "--pal-watch",
        "--pal-explain",
        "--parsable",
        "--gres=gpu:3",
        "-o/dev/null",
        "--wrap",
        "/bin/sleep 60",
    )
    first = site.palsub(*words)
    placed = site.cli.job(int(first.stdout))
    assert placed is not None and placed.req_nodes == ("n1",) and "pal:" in placed.comment, first.stderr
    site.until(lambda: getattr(site.cli.job(placed.job_id), "nodes", ()) == ("n1",))
    if not site.new:  # a signal to the batch shell is palsub's word here, not the user's
        saved = site.palsub("--pal-save-before=60", "--pal-checkpoint=true", "-t10", "--gres=gpu:1", site.script)
        assert saved.returncode == 0 and saved.stdout.startswith("Submitted batch job "), saved
        assert "palsub: not placed: slurmrestd (v0.0.38) cannot be given --signal=B:USR1@60: " in saved.stderr
        assert saved.stderr.count("\n") == 1
    if not site.user:
        waits = number_of(site.sbatch("-w", "n1", "-x", "n3", "--exclusive", "--wrap", "sleep 60"))
        lease = Lease(waits, 0, 0, 0, 0, pinned="n1", excluded="n3", user_exc="n2")
        watcher.clear(site.rest, lease)
        after = site.cli.job(waits)
        assert after is not None and (after.req_nodes, after.exc_nodes) == ((), ("n2",))
    site.end()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.by_rest.items():
            patch.setenv(name, value)
        assert isinstance(watcher.own_client(), RestClient)


def test_a_sweep_by_rest_measures_or_is_refused_at_once(site: Site) -> None:
    if site.user:
        pytest.skip("a sweep is the work of the lab's own user")
    code = "import sys; sys.argv[0] = 'pal-profile'; from slurm_pal.cli.start import profile; profile()"
    env = site.lab.environ() | site.by_rest | {"PATH": "/nonexistent"}
    done = site.run([sys.executable, "-P", "-c", code, "run", "--yes", "--max-parallel=4"], **env)
    if site.new:
        assert done.returncode == 0 and "nodes 4 done; 16 GPUs measured" in done.stdout + done.stderr, done
    else:
        assert done.returncode == 6 and done.stderr.count("\n") == 1, done
        assert "cannot submit jobs with --signal=B:TERM in v0.0.38" in done.stderr
        assert not os.path.exists(os.path.join(load(env).state_dir, "sweeps"))


def test_changes_of_jobs_are_scontrols(site: Site) -> None:
    """Each field changes what scontrol's own update changes, and nothing else."""
    changes: list[dict[str, str]] = [
        {"ReqNodeList": "n1"}, {"ReqNodeList": ""}, {"ExcNodeList": "n2,n3"}, {"ExcNodeList": ""}, {"Nice": "5"},
        {"Comment": "pal:job=A;x \"y\" é"}, {"Comment": ""}, {"Partition": "gpu"}, {"TimeLimit": "1:00:00"},
        {"Prefer": "x"}, {"ExcNodeList": "n2", "StartTime": "now", "Partition": "gpu"}, {"StartTime": "now+2000"},
    ]  # fmt: skip
    changes += [{"AdminComment": "a b"}, {"AdminComment": ""}, {"Priority": "0"}] if site.new and not site.user else []
    for fields in changes:
        shown = []
        for update in (site.cli.update_job, functools.partial(site.change, "update_job")):
            job = number_of(site.sbatch("-H", "-w", "n0", "-x", "n3", "-t9", "--comment=old", site.script))
            before = site.shown(job)
            update(job, **fields)
            after = site.shown(job)
            shown.append({key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key)})
        assert shown[0] == shown[1], fields
    for fields in ({"TresPerNode": "gpu:2"}, {"NumNodes": "1"}, *([] if site.new else [{"AdminComment": "x"}])):
        with pytest.raises(NotByRestError, match="slurmrestd has no key for"):
            site.rest.update_job(1, **fields)
    site.end()


def test_cancel_signal_release_and_requeue(site: Site) -> None:
    body = "#!/bin/sh\ntrap 'echo came > came.$SLURM_JOB_ID' USR1\nwhile :; do sleep .1; done\n"
    words = [*stand_in().argv(["sbatch", "--parsable"])]
    runs, held = (number_of(site.run(words, body, **site.by_rest)) for _ in range(2))
    waits = number_of(site.sbatch("-H", site.script))
    for job in (runs, held):
        site.until(lambda job=job: getattr(site.cli.job(job), "state", "") == "RUNNING")
    site.change("cancel", [runs, waits, 999_999], pending_only=True)
    site.until(lambda: getattr(site.cli.job(waits), "state", "") == "CANCELLED")
    assert getattr(site.cli.job(runs), "state", "") == "RUNNING"
    if site.new:
        site.change("signal_batch", runs, "USR1")
        site.until(lambda: os.path.exists(os.path.join(site.folder, f"came.{runs}")))
    else:
        with pytest.raises(NotByRestError):
            site.rest.signal_batch(runs, "USR1")
    if site.rest._door.version < REQUEUES:
        with pytest.raises(NotByRestError, match="cannot requeue jobs in"):
            site.rest.requeue(held)
    else:
        site.change("requeue", held)
        site.until(lambda: getattr(site.cli.job(held), "restarts", 0) == 1)
        site.change("requeue", waits)  # which has ended, and must not come back
        assert getattr(site.cli.job(waits), "state", "") == "CANCELLED"
    again = number_of(site.sbatch("-H", site.script))
    site.change("unhold", again)
    site.until(lambda: os.path.exists(os.path.join(site.folder, f"done.{again}")))
    site.change("cancel", [runs, held, again, 999_999])
    site.until(lambda: not {state for state, _ in site.cli.job_states().values()} & {"PENDING", "RUNNING"})
