# SPDX-License-Identifier: MIT
"""palsub as a program, around an sbatch that is a shell script: nothing may differ from calling it directly."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_pal.sensitivity.history import Label, Seen
from slurm_pal.sensitivity.keys import name_key
from slurm_pal.slurm.fake import FakeNode, write_shims
from slurm_pal.store import labels, user_files
from slurm_pal.store.snapshot import GpuScore, publish

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]

ECHO = r"""#!/bin/sh
case "$1" in --help) echo "      --mycompany=WHO  site option"; exit 0;; esac
for word; do printf '<%s>' "$word"; done > "$RECORD"
[ -t 0 ] || cat >> "$RECORD"
printf '%s' "$OUT"
printf '%s' "$ERR" >&2
[ -z "$DIE" ] || kill -"$DIE" $$
exit "${CODE:-0}"
"""


class Site:
    """A PATH with a given sbatch, and nothing of Slurm beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_"))}
        self.env = kept | {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(root),
            "RECORD": str(root / "record"),
            "XDG_STATE_HOME": str(root / "state"),
            "SLURM_CONF": str(root / "slurm.conf"),
            "SLURM_PAL_PATHS_SNAPSHOT": str(root / "snapshot"),
        }

    def sbatch(self, text: str = ECHO) -> None:
        (self.bin / "sbatch").write_text(text)
        (self.bin / "sbatch").chmod(0o755)

    def run(self, argv: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        env = self.env | dict(options.pop("env", {}))  # type: ignore[call-overload]
        return subprocess.run(argv, env=env, cwd=self.root, capture_output=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]

    def both(self, words: list[str], **options: object) -> tuple[object, object]:
        """What sbatch does with these words, and what palsub does: code, stdout, stderr, what sbatch was given."""
        found = []
        for argv in (["sbatch", *words], [*PALSUB, *words]):
            record = self.root / "record"
            record.unlink(missing_ok=True)
            done = self.run(argv, **options)
            seen = record.read_bytes() if record.exists() else None
            found.append((done.returncode, done.stdout, done.stderr, seen))
        return found[0], found[1]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.sbatch()
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH -N1\ntrue\n")
    return made


HOSTILE = ["a b.sh", "a'b.sh", 'a"b.sh', "a$(touch x)b.sh", "a\nb.sh", "ä\udcff.sh", "-x.sh", "*.sh", "a;b.sh"]


@pytest.mark.parametrize(
    "words",
    [
        ["job.sh"],
        ["-N1", "--time=5", "job.sh", "--pal-off", "-x", "--", "a b"],
        ["--", "job.sh", "--pal-class=Z"],
        ["--wrap", "echo 'a b'"],
        ["--wrap=x", "-J", "--pal-explain"],
        ["--bogus", "job.sh"],
        ["--mycompany", "job.sh", "job.sh"],
        ["-N"],
        ["nosuch.sh"],
        ["--array=1-3", "-Q", "job.sh"],
        ["-N1", ":", "-N2", "job.sh"],
        ["--help"],
        ["-V"],
        ["", "x"],
        *([["--", name, "arg"] for name in [*HOSTILE, "--pal-off"]]),
    ],
)
def test_words_codes_and_streams_are_sbatchs_own(words: list[str], site: Site) -> None:
    for name in words[1:2]:
        if "/" not in name and name:
            (site.root / name).write_text("#!/bin/sh\ntrue\n")
    taken, refused = {"OUT": "Submitted batch job 7\n"}, {"OUT": "partial", "ERR": "sbatch: error: no\n", "CODE": "3"}
    for environment in (taken, refused):
        alone, ours = site.both(words, env=environment, stdin=subprocess.DEVNULL)
        assert ours == alone


@pytest.mark.parametrize(
    "body",
    [
        b"#!/bin/sh\ntrue\n",
        b"",
        b"no shebang\n",
        b"#!/bin/sh\r\n#SBATCH -N1\r\n",
        b"\x7fELF\0\1\2" + bytes(range(256)),
        b"#!/bin/sh\n#SBATCH --comment='x\n",
        b"#!/bin/sh\n" + b"# filler\n" * 120_000,
    ],
    ids=["plain", "empty", "no-shebang", "crlf", "binary", "bad-quote", "megabyte"],
)
@pytest.mark.parametrize("how", ["pipe", "file", "named"])
def test_scripts_of_all_kinds_arrive_unchanged(body: bytes, how: str, site: Site) -> None:
    (site.root / "given").write_bytes(body)
    if how == "pipe":
        alone, ours = site.both(["-N1"], input=body)
    elif how == "named":
        alone, ours = site.both(["given"], stdin=subprocess.DEVNULL)
    else:
        with open(site.root / "given", "rb") as stream:
            alone, _ = site.both(["-N1"], stdin=stream)
        with open(site.root / "given", "rb") as stream:
            stream.seek(0)
            done = site.run([*PALSUB, "-N1"], stdin=stream)
            ours = (done.returncode, done.stdout, done.stderr, (site.root / "record").read_bytes())
            assert os.lseek(stream.fileno(), 0, os.SEEK_CUR) == len(body)  # consumed by sbatch, as without us
    assert ours == alone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
def test_a_death_by_signal_is_died_again(number: signal.Signals, site: Site) -> None:
    alone, ours = site.both(["job.sh"], env={"DIE": number.name[3:]}, stdin=subprocess.DEVNULL)
    assert ours == alone
    assert isinstance(ours, tuple) and ours[0] == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_signals_reach_sbatch(number: signal.Signals, site: Site) -> None:
    site.sbatch(
        f"#!/bin/sh\ntrap 'echo caught; exit 9' {number.name[3:]}\necho Submitted batch job 7\n"
        "while :; do sleep 0.05; done\n"
    )
    child = subprocess.Popen(
        [*PALSUB, "--wait", "job.sh"], env=site.env, cwd=site.root, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"Submitted batch job 7\n"
    child.send_signal(number)
    assert child.communicate(timeout=30)[0] == b"caught\n"
    assert child.returncode == 9


def test_an_ignored_hangup_stays_ignored_for_sbatch(site: Site) -> None:
    site.sbatch("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]

    def ignored(argv: list[str]) -> int:
        text = site.run([*words, *argv, "job.sh"], stdin=subprocess.DEVNULL).stdout.split()[1]
        return int(text, 16) & 0x7FFFFFFF  # 32 and 33 are the C library's own

    assert ignored(["sbatch"]) & 1
    assert ignored(PALSUB) == ignored([*PALSUB, "--pal-off"]) == ignored(["sbatch"])


def test_a_terminal_stays_a_terminal_and_bytes_stay_bytes(site: Site) -> None:
    site.sbatch("#!/bin/sh\n[ -t 1 ] && printf 'tty\\tSubmitted\\nx\\r\\n'\n")
    seen = []
    for argv in (["sbatch", "job.sh"], [*PALSUB, "job.sh"]):
        master, slave = pty.openpty()
        child = subprocess.Popen(argv, env=site.env, cwd=site.root, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        text = b""
        while select.select([master], [], [], 30)[0]:
            try:
                block = os.read(master, 1000)
            except OSError:
                break
            text += block
        os.close(master)
        assert child.wait(30) == 0
        seen.append(text)
    assert seen[0] == seen[1] and seen[0].startswith(b"tty")


def test_a_prompt_on_the_terminal_can_be_answered(site: Site) -> None:
    site.sbatch('#!/bin/sh\nprintf "account? " >&2\nread answer\necho "got $answer"\n')
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [*PALSUB, "job.sh"], env=site.env, cwd=site.root, stdin=slave, stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    assert select.select([master], [], [], 30)[0]
    assert os.read(master, 100) == b"account? "
    os.write(master, b"abc\n")
    assert child.stdout is not None
    assert child.stdout.read() == b"got abc\n"
    child.stdout.close()
    assert child.wait(30) == 0
    os.close(master)


def test_output_appears_as_it_comes(site: Site) -> None:
    site.sbatch("#!/bin/sh\necho Submitted batch job 7\nread line < go\n")
    os.mkfifo(site.root / "go")
    child = subprocess.Popen([*PALSUB, "--wait", "job.sh"], env=site.env, cwd=site.root, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"Submitted batch job 7\n"  # while sbatch is still there
    records = list((site.root / "state" / "slurm-pal" / "decisions").glob("*/7.json"))
    deadline_s = time.monotonic() + 30
    while not records and time.monotonic() < deadline_s:
        time.sleep(0.02)
        records = list((site.root / "state" / "slurm-pal" / "decisions").glob("*/7.json"))
    assert records  # the record does not wait for the job
    (site.root / "go").write_text("x\n")
    assert child.wait(30) == 0
    child.stdout.close()


def test_a_child_that_keeps_stdout_open_is_not_waited_for(site: Site) -> None:
    site.sbatch(
        "#!/bin/sh\nmkfifo hold\n(exec 9<>hold; read x <&9) 2>err &\necho $! > child\necho Submitted batch job 7\n"
    )
    done = site.run([*PALSUB, "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 7\n" and done.returncode == 0
    os.kill(int((site.root / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_stay_closed(closed: str, site: Site) -> None:
    site.sbatch('#!/bin/sh\nfor f in 0 1 2; do [ -e /proc/$$/fd/$f ] && echo "$f open"; done > seen\nexit 4\n')
    seen = []
    for argv in (["sbatch", "job.sh"], [*PALSUB, "job.sh"]):
        done = site.run(["sh", "-c", f'exec "$@" {closed}', "sh", *argv], stdin=subprocess.DEVNULL)
        seen.append((done.returncode, (site.root / "seen").read_text()))
    assert seen[0] == seen[1]


def test_a_reader_that_left_is_noticed_as_sbatch_would(site: Site) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = subprocess.run(
        [*PALSUB, "job.sh"], env=site.env | {"OUT": "Submitted batch job 7\n"}, cwd=site.root,
        stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE, timeout=60,
    )  # fmt: skip
    os.close(write_end)
    assert code.returncode == -signal.SIGPIPE and code.stderr == b""


def test_a_missing_sbatch_is_told_as_a_shell_tells_it(site: Site) -> None:
    (site.bin / "sbatch").chmod(0o644)
    done = site.run([*PALSUB, "job.sh"], env={"PATH": str(site.bin)}, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (126, b"")
    (site.bin / "sbatch").unlink()
    done = site.run([*PALSUB, "job.sh"], env={"PATH": str(site.bin)}, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (127, b"palsub: sbatch: command not found\n")


@pytest.mark.parametrize("how", ["option", "variable", "setting"])
def test_switched_off_it_is_sbatch_itself(how: str, site: Site) -> None:
    site.sbatch("#!/bin/sh\necho $$\n")
    words = ["--pal-off"] if how == "option" else []
    env = {"option": {}, "variable": {"SLURM_PAL_OFF": "1"}, "setting": {"SLURM_PAL_SUBMIT_ENABLED": "no"}}[how]
    child = subprocess.Popen(
        [*PALSUB, *words, "--gres=gpu:1", "job.sh"], env=site.env | env, cwd=site.root, stdout=subprocess.PIPE
    )
    assert child.communicate(timeout=60)[0] == f"{child.pid}\n".encode()


def test_a_job_that_is_off_does_not_switch_off_those_that_it_submits(site: Site) -> None:
    env = site.env | {"SLURM_PAL_OFF": "1", "SLURM_PAL_JOB_OFF": "1"}  # as the plug-in leaves them in such a job
    done = site.run([*PALSUB, "--gres=gpu:1", "job.sh"], env=env, stdin=subprocess.DEVNULL)
    assert b"palsub: submitted as plain sbatch: no snapshot" in done.stderr  # else it says nothing


def test_a_wrong_value_of_ours_submits_nothing(site: Site) -> None:
    for words in (
        ["--pal-class", "Z"], ["--pal-app", "nix"], ["--pal-klass=A"], ["--pal-policy=x"],
        ["--pal-movable=soon"], ["--pal-movable=-1"], ["--pal-checkpoint", " "], ["--pal-observe=soon"],
    ):  # fmt: skip
        done = site.run([*PALSUB, *words, "job.sh"], stdin=subprocess.DEVNULL)
        assert done.returncode == 2 and done.stdout == b""
        assert done.stderr.startswith(b"palsub: ") and done.stderr.count(b"\n") == 1
        assert not (site.root / "record").exists()


def test_help_shows_every_option_of_ours(site: Site) -> None:
    done = site.run([*PALSUB, "--pal-help"])
    assert done.returncode == 0
    for name in (
        "class",
        "app",
        "policy",
        "watch",
        "explain",
        "json",
        "dry-run",
        "off",
        "help",
        "movable",
        "checkpoint",
        "observe",
    ):
        assert f"--pal-{name}".encode() in done.stdout


@pytest.mark.parametrize(
    ("env", "snapshot", "part"),
    [
        ({}, None, "no snapshot"),
        ({}, b"", "empty"),
        ({}, b"{}", "damaged"),
        ({}, b'{"schema": "pal.snapshot/9"}\n', "newer"),
        ({}, b'{"schema": "pal.snapshot/1", "layout": [], "bytes": 5, "crc32": 0}\n', "truncated"),
        ({"SLURM_PAL_SUBMIT_LEASE_MAX_S": "many"}, None, "SLURM_PAL_SUBMIT_LEASE_MAX_S"),
    ],
)
def test_trouble_of_ours_is_one_line_and_plain_sbatch(
    env: dict[str, str], snapshot: bytes | None, part: str, site: Site
) -> None:
    write_shims(str(site.bin), str(site.root / "fake.json"), [FakeNode("n0")])
    site.sbatch()
    if snapshot is not None:
        (site.root / "snapshot").write_bytes(snapshot)
    env = env | {"OUT": "Submitted batch job 7\n"}
    alone, ours = site.both(["--gres=gpu:1", "job.sh"], env=env, stdin=subprocess.DEVNULL)
    assert isinstance(alone, tuple) and isinstance(ours, tuple)
    assert (ours[0], ours[1], ours[3]) == (alone[0], alone[1], alone[3])
    assert ours[2].startswith(b"palsub: submitted as plain sbatch: ")
    assert ours[2].count(b"\n") == 1 and part.encode() in ours[2]


def test_an_error_in_our_own_code_is_one_line_and_plain_sbatch(site: Site) -> None:
    main = "from slurm_pal.cli.palsub import main; sys.exit(main())"
    broken = f"import sys, slurm_pal.submit.script as s; s.scan = None; {main}"
    done = site.run([sys.executable, "-P", "-c", broken, "--gres=gpu:1", "job.sh", "a b"], stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and (site.root / "record").read_bytes() == b"<--gres=gpu:1><job.sh><a b>"
    assert done.stderr.count(b"\n") == 1 and b"submitted as plain sbatch" in done.stderr
    body = b"#!/bin/sh\ntrue\n"
    done = site.run([sys.executable, "-P", "-c", broken, "-N1"], input=body)  # the pipe's content is not lost
    assert (site.root / "record").read_bytes() == b"<-N1>" + body and done.stderr.count(b"\n") == 1
    gone = f"import sys; sys.modules['slurm_pal.submit.submission'] = None; {main}"
    words = ["--pal-class", "A", "-J", "x", "--pal-explain", "job.sh", "--pal-off"]
    done = site.run([sys.executable, "-P", "-c", gone, *words], stdin=subprocess.DEVNULL)
    assert (site.root / "record").read_bytes() == b"<-J><x><job.sh><--pal-off>"
    assert done.stderr.count(b"\n") == 1 and b"submitted as plain sbatch" in done.stderr


def test_after_sbatch_was_started_no_error_starts_it_again(site: Site) -> None:
    """Nor changes its exit code: a script that resubmits would have two jobs."""
    site.sbatch("#!/bin/sh\necho x >> tries\necho Submitted batch job 7\nexit $CODE\n")
    broken = "import sys, slurm_pal.submit.submission as s; from slurm_pal.cli.palsub import program"
    for name in ("_unwrap", "_end", "_forget"):
        code = f"{broken}; s.Submission.{name} = None; sys.exit(program())"
        for status in ("0", "5"):
            (site.root / "tries").unlink(missing_ok=True)
            words = [sys.executable, "-P", "-c", code, "job.sh"]
            done = site.run(words, stdin=subprocess.DEVNULL, env={"CODE": status})
            assert (site.root / "tries").read_text() == "x\n" and done.stdout == b"Submitted batch job 7\n"
            assert done.returncode == int(status), done.stderr


def test_a_named_pipe_is_left_for_sbatch_to_read(site: Site) -> None:
    site.sbatch('#!/bin/sh\ncat "$2"\n')
    os.mkfifo(site.root / "pipe")
    writer = subprocess.Popen(["sh", "-c", "echo '#!/bin/sh' > pipe"], cwd=site.root)
    done = site.run([*PALSUB, "-N1", "pipe"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"#!/bin/sh\n" and writer.wait(30) == 0


@pytest.fixture
def scored(site: Site) -> Site:
    """A fake Slurm of two nodes behind the shims, the second one faster, with features to prefer."""
    return with_scores(site, [FakeNode("n0", features="pal_A_v1"), FakeNode("n1", features="pal_A_v0")])


@pytest.fixture
def plain_nodes(site: Site) -> Site:
    """The same without features."""
    return with_scores(site, [FakeNode("n0", features="fast"), FakeNode("n1")])


def with_scores(site: Site, nodes: list[FakeNode]) -> Site:
    write_shims(str(site.bin), str(site.root / "fake.json"), nodes)
    gpus = [
        GpuScore(name, k, f"{name}{k}", "m", {"A": a}, {"A": "v0"}, time.time(), 1.0, ())
        for name, a in (("n0", 1.1), ("n1", 0.9))
        for k in range(4)
    ]
    publish(str(site.root / "snapshot"), gpus, cluster="c", epoch=5, now_s=time.time())
    return site


def test_a_dry_run_prints_the_command_and_submits_nothing(scored: Site) -> None:
    words = ["--pal-dry-run", "--gres=gpu:1", "-J", "a b", "job.sh", "x y"]
    done = scored.run([*PALSUB, *words], stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.splitlines()[0] == b"sbatch --gres=gpu:1 -J 'a b' --prefer=pal_A_v0 job.sh 'x y'"
    assert b"# decision: preference for" in done.stdout
    table = json.loads(scored.run([*PALSUB, "--pal-json", *words], stdin=subprocess.DEVNULL).stdout)
    assert table["schema"] == "pal.decision/1" and table["action"] == "prefer" and table["job_id"] is None
    assert json.loads((scored.root / "fake.json").read_text())["jobs"] == []
    assert not (scored.root / "state").exists() or not list((scored.root / "state").rglob("*.json"))


@pytest.mark.parametrize(
    ("words", "past", "node"),
    [(["--pal-class=C"], "", "n1"), (["--pal-class=C"], "A", "n1"), (["--pal-class=C"], "C", "n0"), ([], "C", "n0")],
)
def test_only_a_class_that_was_measured_sends_a_job_to_slow_gpus(
    words: list[str], past: str, node: str, scored: Site
) -> None:
    if past:
        seen = tuple(Seen(i, past, 1.0, time.time()) for i in range(3))
        folder = user_files.site_folder(str(scored.root / "snapshot"))
        labels.write(labels.path_of(folder, os.geteuid()), {name_key("job.sh"): Label(past, 3, seen)})
    done = scored.run([*PALSUB, "--pal-json", "--pal-dry-run", "--pal-movable", "--gres=gpu:1", *words, "job.sh"])
    made = json.loads(done.stdout)
    assert (made["sensitivity"]["class"], made["chosen"]["gpus"][0]["node"]) == ("C", node)
    agreed = f"pal:job=C;from={'--pal-class' if words else 'history'}{';mea=1' if words and past == 'C' else ''};mov=1"
    assert any(agreed in word for word in made["added"]), made["added"]  # for the tick


def test_only_the_standard_library_is_imported(scored: Site) -> None:
    """What a submission costs is mostly imports; these would each add 4 to 200 ms."""
    heavy = ["ClusterShell", "argparse", "click", "dataclasses", "logging", "numpy", "pandas", "pathlib", "pydantic"]
    heavy += ["rich", "subprocess", "http", "ssl", "slurm_pal.slurm.rest_wire", "slurm_pal.slurm.rest_client"]
    code = (
        "import sys; from slurm_pal.cli.palsub import main; code = main()\n"
        f"print([name for name in {heavy} if name in sys.modules], code)"
    )
    done = scored.run([sys.executable, "-P", "-c", code, "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 1\n[] 0\n", done.stderr


def test_explanations_go_to_stderr_and_the_record_is_kept(scored: Site) -> None:
    words = ["--pal-explain", "--pal-json", "--pal-class=A", "--gres=gpu:1", "job.sh"]
    done = scored.run([*PALSUB, *words], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 1\n"
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("palsub: decision: preference for ")
    assert json.loads(lines[-1])["job_id"] == 1
    (record,) = (scored.root / "state" / "slurm-pal" / "decisions").glob("*/1.json")
    assert json.loads(record.read_text()) == json.loads(lines[-1])


@pytest.mark.parametrize("how", ["stdin", "pipe", "file"])
def test_words_that_sbatch_refuses_are_taken_back(how: str, scored: Site) -> None:
    """An sbatch without --prefer (before 22.05) must not make a submission fail."""
    scored.sbatch(
        '#!/bin/sh\ncase "$*" in *--prefer*) cat >/dev/null; echo "sbatch: unrecognized option" >&2; exit 1;; esac\n'
        'echo Submitted batch job 7; echo "$*"; cat\n'
    )
    body = b"#!/bin/sh\ntrue\n"
    if how == "file":
        done = scored.run([*PALSUB, "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
        assert done.stdout == b"Submitted batch job 7\n--gres=gpu:1 job.sh\n"
    elif how == "pipe":
        done = scored.run([*PALSUB, "--gres=gpu:1"], input=body)
    else:
        (scored.root / "in").write_bytes(body)
        with open(scored.root / "in", "rb") as stream:
            done = scored.run([*PALSUB, "--gres=gpu:1"], stdin=stream)
    if how != "file":
        assert done.stdout == b"Submitted batch job 7\n--gres=gpu:1\n" + body
    assert done.returncode == 0
    assert done.stderr == b"palsub: submitted as plain sbatch: sbatch refused the words added by palsub\n"


def test_a_refusal_that_is_not_about_our_words_is_shown_once_and_not_tried_again(scored: Site) -> None:
    scored.sbatch(
        "#!/bin/sh\necho x >> tries\necho 'sbatch: error: Socket timed out on send/recv operation' >&2\nexit 1\n"
    )
    done = scored.run([*PALSUB, "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and done.stderr == b"sbatch: error: Socket timed out on send/recv operation\n"
    assert (scored.root / "tries").read_text() == "x\n"


@pytest.mark.parametrize(
    "said",
    [
        "palsub: submitted by sbatch: slurmrestd cannot be given --hint=x: leave it out\n"
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
        "palsub: the job may exist: slurmrestd at http://x sent text/html and no JSON (HTTP 504): no time limit\n",
        "sbatch: site filter: partition set to gpu\n"
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n",
    ],
)
def test_a_job_whose_answer_was_lost_is_not_sent_again(said: str, scored: Site) -> None:
    """Whatever is said beside that, and by whom."""
    scored.sbatch('#!/bin/sh\necho x >> tries\nprintf %s "$SAID" >&2\nexit 1\n')
    done = scored.run([*PALSUB, "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL, env={"SAID": said})
    assert (done.returncode, done.stderr.decode(), (scored.root / "tries").read_text()) == (1, said, "x\n")


def test_an_unwritable_state_folder_means_soft_words_only(scored: Site) -> None:
    (scored.root / "state").write_text("a file where a folder should be")
    done = scored.run([*PALSUB, "--pal-watch", "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 1\n" and done.returncode == 0
    assert done.stderr.count(b"\n") == 1 and b"no watcher, so no node list" in done.stderr
    (job,) = json.loads((scored.root / "fake.json").read_text())["jobs"]
    assert job["req"] == "" and "prefer" in job["options"]


def test_nobody_beside_the_users_watcher_is_needed(plain_nodes: Site) -> None:
    """As after the first installation: scores, no daemon, no features, no settings."""
    done = plain_nodes.run([*PALSUB, "--pal-class=A", "--gres=gpu:1", "-t60", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 1\n" and done.stderr == b""
    (job,) = json.loads((plain_nodes.root / "fake.json").read_text())["jobs"]
    mark = "pal:lease=360;req=;exc=;act=nodelist;set=n1;alone=1.100 pal:job=A;from=--pal-class"
    assert job["req"] == "n1" and job["comment"] == mark  # for whoever asks whose list it is
    (record,) = (plain_nodes.root / "state").rglob("decisions/*/1.json")
    assert json.loads(record.read_text())["lease"]["why"].endswith("taken back by the watcher")


def test_a_comment_of_the_users_own_needs_the_watcher_even_beside_a_daemon(plain_nodes: Site) -> None:
    beat = {"schema": "pal.heartbeat/1", "at_s": time.time(), "clears_leases": True}
    (plain_nodes.root / "snapshot.heartbeat").write_text(json.dumps(beat))
    plain_nodes.run([*PALSUB, "--gres=gpu:1", "--comment=mine", "job.sh"], stdin=subprocess.DEVNULL)
    (job,) = json.loads((plain_nodes.root / "fake.json").read_text())["jobs"]
    assert (job["req"], job["comment"]) == ("n1", "mine")


def test_where_nothing_can_be_placed_palsub_says_so_once_a_day(plain_nodes: Site) -> None:
    env = {"SLURM_PAL_SUBMIT_WATCH": "never"}

    def said() -> bytes:
        done = plain_nodes.run([*PALSUB, "--gres=gpu:1", "job.sh"], env=env, stdin=subprocess.DEVNULL)
        assert done.returncode == 0 and done.stdout.startswith(b"Submitted batch job ")
        return done.stderr

    first = said()
    assert first.count(b"\n") == 1 and b'and submit.watch is "never"; shown once a day' in first
    assert said() == b""
    (stamp,) = (plain_nodes.root / "state").rglob("leases/*/said")
    os.utime(stamp, (time.time() - 90_000,) * 2)
    assert said() == first
    assert not any(job["req"] for job in json.loads((plain_nodes.root / "fake.json").read_text())["jobs"])


def test_inside_a_job_no_watcher_starts_by_itself(plain_nodes: Site) -> None:
    """It would end with that job, and nobody would take the list of the next one back."""
    env = {"SLURM_JOB_ID": "4711"}
    done = plain_nodes.run([*PALSUB, "--gres=gpu:1", "job.sh"], env=env, stdin=subprocess.DEVNULL)
    assert b"a watcher would end with this job" in done.stderr
    plain_nodes.run([*PALSUB, "--pal-watch", "--gres=gpu:1", "job.sh"], env=env, stdin=subprocess.DEVNULL)
    assert [job["req"] for job in json.loads((plain_nodes.root / "fake.json").read_text())["jobs"]] == ["", "n1"]


def test_with_a_live_daemon_the_lease_is_written_on_the_job(scored: Site) -> None:
    beat = {"schema": "pal.heartbeat/1", "at_s": time.time(), "clears_leases": True}
    (scored.root / "snapshot.heartbeat").write_text(json.dumps(beat))
    done = scored.run([*PALSUB, "--gres=gpu:1", "-t60", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 1\n" and done.stderr == b""
    (job,) = json.loads((scored.root / "fake.json").read_text())["jobs"]
    word = "pal:job=?;from=default"  # by which a tick knows the job when the lease is over
    assert job["req"] == "n1" and job["comment"] == f"pal:lease=360;req=;exc=;act=nodelist;set=n1;alone=1.100 {word}"


def test_a_users_own_comment_stays_and_the_watcher_takes_the_list_back(scored: Site) -> None:
    """The daemon would find a lease by the comment only."""
    beat = {"schema": "pal.heartbeat/1", "at_s": time.time(), "clears_leases": True}
    (scored.root / "snapshot.heartbeat").write_text(json.dumps(beat))
    done = scored.run([*PALSUB, "--pal-explain", "--gres=gpu:1", "--comment=mine", "job.sh"], stdin=subprocess.DEVNULL)
    (job,) = json.loads((scored.root / "fake.json").read_text())["jobs"]
    assert job["req"] == "n1" and job["comment"] == "mine", done.stderr
    assert b"taken back by the watcher" in done.stderr and b"neither a daemon" not in done.stderr


@pytest.mark.parametrize("elastic", [(), ("--pal-elastic=1:1",)])
def test_a_guest_is_not_refused_because_slurm_does_not_know_where_it_is_to_wait(
    elastic: tuple[str, ...], scored: Site
) -> None:
    """loan.waits is the site's mistake, and not the user's."""
    scored.env |= {"SLURM_PAL_LOAN_GUEST": "guest", "SLURM_PAL_LOAN_WAITS": "nosuch"}
    scored.sbatch(
        '#!/bin/sh\necho "$*" >> tries\n'
        'case "$*" in *nosuch*) echo "sbatch: error: invalid partition specified: nosuch" >&2; exit 1;; esac\n'
        "echo Submitted batch job 7\n"
    )
    done = scored.run([*PALSUB, *elastic, "-p", "guest", "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and b"sbatch refused the words added by palsub" in done.stderr
    first, second = (scored.root / "tries").read_text().splitlines()
    assert first.startswith("-p guest --gres=gpu:1 ") and " --partition=guest,nosuch " in first
    assert second.startswith("-p guest --gres=gpu:1 ") and "nosuch" not in second


def test_a_job_that_was_refused_with_our_words_bears_the_word_by_which_a_tick_knows_it(scored: Site) -> None:
    beat = {"schema": "pal.heartbeat/1", "at_s": time.time(), "clears_leases": True}
    (scored.root / "snapshot.heartbeat").write_text(json.dumps(beat))
    scored.sbatch(
        '#!/bin/sh\necho "$*" >> tries\n'
        'case "$*" in *--nodelist*) echo "Requested node configuration is not available" >&2; exit 1;; esac\n'
        "echo Submitted batch job 7\n"
    )
    done = scored.run([*PALSUB, "--pal-class=A", "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and b"sbatch refused the words added by palsub" in done.stderr
    _, second = (scored.root / "tries").read_text().splitlines()
    assert second == "--gres=gpu:1 --comment=pal:job=A;from=--pal-class job.sh"


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("--image=docker:x/y", "--image=NAME"), ("--uenv=prgenv/24.7", "--uenv=NAME"),
        ("--pal-class=A", "--pal-class=X"), ("--tasks-per-node=2 -N1", ""),
    ],
)  # fmt: skip
def test_options_of_the_site_in_the_script_keep_nobody_from_placing_the_job(
    line: str, known: str, scored: Site
) -> None:
    (scored.root / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {line}\ntrue\n")
    scored.sbatch(f'#!/bin/sh\ncase "$1" in --help) echo "      {known}  of a plug-in"; exit 0;; esac\n')
    words = ["--pal-dry-run", "--pal-json", "--pal-watch", "--gres=gpu:1", "job.sh"]
    made = json.loads(scored.run([*PALSUB, *words], stdin=subprocess.DEVNULL).stdout)
    assert made["action"] == "nodelist", made["reason"]
    assert made["sensitivity"]["class"] == ("A" if "class" in line else "?")


@pytest.mark.parametrize(
    ("line", "bound", "noted"),
    [
        ("#SBATCH --pal-avoid-slow --gres=gpu:1", 1.1, True),  # --gres is no value of it
        ("#SBATCH --pal-avoid-slow=1.3", 1.3, True),
        ("#PAL avoid-slow=1.2", 1.2, True),
        ("#SBATCH --pal-note", None, False),  # the plug-in writes the line, which must not come twice
    ],
)
def test_the_plugin_s_options_in_the_script_count_for_palsub(
    line: str, bound: float | None, noted: bool, scored: Site
) -> None:
    (scored.root / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    known = "      --pal-avoid-slow=[X]    [pal] x\n      --pal-note              [pal] y"
    scored.sbatch(f'#!/bin/sh\ncase "$1" in --help) echo "{known}"; exit 0;; esac\n')
    words = ["--pal-dry-run", "--pal-json", "--pal-watch", "--pal-note", "--gres=gpu:1", "job.sh"]
    made = json.loads(scored.run([*PALSUB, *words], stdin=subprocess.DEVNULL).stdout)
    assert made["action"] == "nodelist", made["reason"]
    assert made["note"] is noted and (made["avoid_slow"] or {}).get("bound") == bound


def test_an_option_that_no_sbatch_knows_is_for_sbatch_to_refuse(scored: Site) -> None:
    (scored.root / "job.sh").write_text("#!/bin/sh\n#SBATCH --bogus=1\ntrue\n")
    done = scored.run([*PALSUB, "--pal-dry-run", "--gres=gpu:1", "job.sh"], stdin=subprocess.DEVNULL)
    assert b"--bogus is not an option of sbatch that is known here" in done.stdout


COPY = """#!/bin/sh
for word; do printf '<%s>' "$word"; done > "$RECORD"
for path; do [ ! -f "$path" ] || { cp "$path" copy; stat -c %a "$(dirname "$path")" > mode; }; done
echo Submitted batch job 7
"""


def movable(site: Site, *words: str, **options: object) -> tuple[str, str]:
    """The comment that sbatch got and what palsub said, beside "no snapshot" or nothing: the job asks for no GPU."""
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    done = site.run([*PALSUB, *words], **options)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"<--comment=([^>]*)>", (site.root / "record").read_text())
    return (found or [""])[-1], done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "env", "line", "comment"),
    [
        (["--pal-movable"], {}, "", "pal:job=?;from=default;mov=1;app=1"),
        (["--pal-movable=60", "--pal-class=B"], {}, "", "pal:job=B;from=--pal-class;mov=1;lost=60;app=1"),
        (["--pal-movable", "--pal-app", "resnet50"], {}, "", "pal:job=A;from=--pal-app:resnet50;mov=1;app=1"),
        ([], {"SLURM_PAL_MOVABLE": "1", "SLURM_PAL_CLASS": "C"}, "", "pal:job=C;from=SLURM_PAL_CLASS;mov=1;app=1"),
        ([], {}, "#PAL movable=600 class=A", "pal:job=A;from=#PAL:class;mov=1;lost=600;app=1"),
        (["--pal-movable=5"], {}, "#PAL movable=600", "pal:job=?;from=default;mov=1;lost=5;app=1"),
        ([], {"SLURM_PAL_MOVABLE": "0"}, "#PAL movable checkpoint=x", ""),
        (["--comment", "it's  b=c"], {}, "#PAL movable", "it's  b=c pal:job=?;from=default;mov=1;app=1"),
        (
            ["--pal-movable"],
            {},
            "#SBATCH --comment='of the script'",
            "of the script pal:job=?;from=default;mov=1;app=1",
        ),
        (["--pal-class=A"], {}, "", ""),  # no tick that would read it
    ],
)
def test_a_movable_job_bears_a_word(words: list[str], env: dict[str, str], line: str, comment: str, site: Site) -> None:
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    site.sbatch(COPY)
    assert movable(site, *words, "job.sh", env=env) == (comment, "")


@pytest.mark.parametrize(
    ("env", "line", "said"),
    [
        ({"SLURM_PAL_MOVABLE": "yes"}, "", "SLURM_PAL_MOVABLE"),
        ({}, "#PAL movable=soon", "whole number"),
        ({}, "#PAL checkpoint=", "lacks its command"),
    ],
)
def test_a_wrong_value_elsewhere_is_warned_about(env: dict[str, str], line: str, said: str, site: Site) -> None:
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    comment, warning = movable(site, "job.sh", env=env)
    assert comment == "" and said in warning and warning.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "env", "line", "why"),
    [
        (["-a1-2"], {}, "#PAL movable", "array"),
        (["--no-requeue"], {}, "", "--no-requeue"),
        ([], {"SBATCH_NO_REQUEUE": ""}, "", "--no-requeue"),
        ([], {}, "#SBATCH --no-requeue", "--no-requeue"),
        ([], {}, "#SBATCH hetjob", "heterogeneous"),
        ([], {}, "#SBATCH --comment='open", "quote"),
    ],
)
def test_a_job_that_cannot_be_moved_is_submitted_as_it_is(
    words: list[str], env: dict[str, str], line: str, why: str, site: Site
) -> None:
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    comment, said = movable(site, *words, "--pal-checkpoint", "true", "job.sh", env=env)
    assert comment == "" and said.count("\n") == 1 and why in said
    assert (site.root / "record").read_text().endswith("<job.sh>")


def test_requeue_said_later_counts(site: Site) -> None:
    (site.root / "job.sh").write_text("#!/bin/sh\n#SBATCH --no-requeue\ntrue\n")
    assert movable(site, "--requeue", "--pal-movable", "job.sh")[0].endswith(";mov=1;app=1")


@pytest.mark.parametrize(
    ("words", "env", "line", "mode", "word"),
    [
        ([], {}, "", "append", "1"),
        (["--open-mode=Append"], {}, "", "", "1"),
        ([], {}, "#SBATCH --open-mode append", "", "1"),
        ([], {"SBATCH_OPEN_MODE": "a"}, "#SBATCH --open-mode=truncate", "", "1"),
        (["--open-m", "truncate"], {"SBATCH_OPEN_MODE": "append"}, "", "", "0"),
        (["-o", "run-%j.log", "-e/dev/null"], {}, "", "append", "1"),
        ([], {"SBATCH_OUTPUT": "fixed"}, "#SBATCH -o %j", "append", "1"),
        (["-o", "%A", "-e", "100%%j"], {}, "", "append", "1"),
        (["-o", r"a\%j"], {}, "", "append", "1"),
    ],
)
def test_the_output_of_a_movable_job_is_kept_unless_its_user_says_otherwise(
    words: list[str], env: dict[str, str], line: str, mode: str, word: str, site: Site
) -> None:
    """What plain sbatch would have emptied at the start, or a move empties, is said in one line; nothing else is."""
    (site.root / "job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    comment, said = movable(site, *words, "--pal-movable", "job.sh", env=env)
    record = (site.root / "record").read_text()
    assert comment.endswith(f";mov=1;app={word}")
    assert ("<--open-mode=append>" in record) == (mode == "append")
    fixed = next((name for name in ("fixed", "100%%j", r"a\%j") if name in record + str(env)), "")
    assert said.count("\n") == (word == "0" or fixed != "") and fixed in said


def test_a_job_that_stays_is_emptied_as_ever(site: Site) -> None:
    (site.root / "job.sh").write_text("#!/bin/sh\n#SBATCH -a1-2\n#PAL movable\ntrue\n")
    assert movable(site, "-o", "fixed", "job.sh")[0] == ""
    assert "open-mode" not in (site.root / "record").read_text()
    (site.root / "job.sh").write_text("#!/bin/sh\n#PAL movable\ntrue\n")
    movable(site, "--comment=" + "x" * 990, "-o", "fixed", "job.sh")
    assert "open-mode" not in (site.root / "record").read_text()


SAVING = b"#!/bin/sh\n#SBATCH -N1\n#PAL checkpoint=save 'a  b'\ntrue"


def arrives(site: Site, name: str, words: list[str], end: bytes = SAVING, **options: object) -> None:
    """Submit and check that sbatch got a private wrapper of this name, and that it is gone."""
    site.sbatch(COPY)
    (site.root / "tmp").mkdir()
    said = movable(site, *words, env={"TMPDIR": str(site.root / "tmp")}, **options)
    assert said == ("pal:job=?;from=default;mov=1;ck=1;app=1", "")
    rest = "<x y>" if "x y" in words else ""
    pattern = rf"<-N1><--open-mode=append><--comment=[^>]*><{site.root}/tmp/palsub\.[^/>]*/{name}>{rest}"
    assert re.fullmatch(pattern, (site.root / "record").read_text())
    text = (site.root / "copy").read_bytes()
    assert text.endswith(end) and rb"pal_command='save '\''a  b'\'''" in text
    assert (site.root / "mode").read_text() == "700\n" and os.listdir(site.root / "tmp") == []


def test_a_script_with_a_checkpoint_goes_in_a_wrapper(site: Site) -> None:
    (site.root / "job.sh").write_bytes(SAVING)
    arrives(site, "job.sh", ["-N1", "job.sh", "x y"])


def test_so_do_the_words_of_wrap(site: Site) -> None:
    arrives(site, "wrap", ["--pal-checkpoint=save 'a  b'", "-N1", "--wrap", "true"], b"\n\ntrue\n")


def test_so_does_a_script_from_a_pipe(site: Site) -> None:
    arrives(site, "sbatch", ["-N1"], input=SAVING)


def test_so_does_a_script_on_stdin(site: Site) -> None:
    (site.root / "job.sh").write_bytes(SAVING)
    with open(site.root / "job.sh", "rb") as stream:
        arrives(site, "sbatch", ["-N1"], stdin=stream)


def test_a_wrapper_that_cannot_be_written_costs_the_checkpoint_only(site: Site) -> None:
    comment, said = movable(site, "--pal-checkpoint", "true", "job.sh", env={"TMPDIR": str(site.root / "none")})
    assert comment == "pal:job=?;from=default;mov=1;app=1" and said.count("\n") == 1 and "No such file" in said
    assert (site.root / "record").read_text().endswith("<job.sh>")


def test_refused_words_take_the_wrapper_with_them(site: Site) -> None:
    site.sbatch(
        '#!/bin/sh\ncase "$*" in *--comment*) echo "sbatch: unrecognized option" >&2; exit 1;; esac\n'
        'echo Submitted batch job 7; echo "$*"\n'
    )
    done = site.run([*PALSUB, "--pal-checkpoint", "true", "job.sh"], stdin=subprocess.DEVNULL)
    assert done.stdout == b"Submitted batch job 7\njob.sh\n" and done.stderr.count(b"\n") == 1


def test_a_dry_run_shows_no_script_that_is_gone(site: Site) -> None:
    words = ["--pal-dry-run", "--pal-checkpoint", "save it", "--pal-movable=9", "job.sh"]
    done = site.run([*PALSUB, *words], stdin=subprocess.DEVNULL, env={"TMPDIR": str(site.root)})
    first = done.stdout.decode().splitlines()[0]
    assert re.fullmatch("sbatch --open-mode=append '--comment=[^']*' job.sh", first)
    assert b"\n# sbatch would get a copy of the script, with the checkpoint command\n" in done.stdout
    how = b"after a checkpoint by 'save it', at most 9 s of work lost, its output is kept (--open-mode=append)"
    assert b"# movable while it runs: " + how + b"\n" in done.stdout
    assert not list(site.root.glob("palsub.*"))


def saving(site: Site, *words: str, script: str = "", env: dict[str, str] | None = None) -> tuple[str, str]:
    """What sbatch got, and what was said on stderr."""
    (site.root / "job.sh").write_text(script or "#!/bin/sh\n#PAL save-before=5m checkpoint=save it\ntrue\n")
    site.sbatch(COPY)
    (site.root / "tmp").mkdir(exist_ok=True)
    _, said = movable(site, *words, "job.sh", env={"TMPDIR": str(site.root / "tmp")} | (env or {}))
    return (site.root / "record").read_text(), said


def test_a_job_that_saves_before_its_end_asks_slurm_for_notice(site: Site) -> None:
    record, said = saving(site, "-t60", "--pal-save-times=3")
    comment = "pal:job=?;from=default;mov=1;ck=1;app=1"
    assert said == "" and record.startswith(f"<-t60><--open-mode=append><--comment={comment}>")
    assert "<--requeue><--signal=B:USR1@300>" in record
    text = (site.root / "copy").read_text()
    assert "\npal_before_s=300 " in text and "\npal_times=3 " in text and "\npal_array=0 " in text


def test_so_do_the_tasks_of_an_array_which_is_not_moved(site: Site) -> None:
    record, said = saving(site, "-a1-3")
    assert "<--open-mode=append><--comment=pal:job=?;from=default;ck=1;app=1><--requeue><--signal=B:USR1@300>" in record
    assert "\npal_array=1 " in (site.root / "copy").read_text()
    assert said == "palsub: submitted as not movable, but to be continued: it is an array\n"


@pytest.mark.parametrize(
    ("words", "env", "why"),
    [
        (["--no-requeue"], {}, "not movable and not to be continued after its time limit: of --no-requeue"),
        ([], {"TMPDIR": "/nonexistent"}, "no checkpoint for this job"),
        (["-a1-3"], {"TMPDIR": "/nonexistent"}, "not continued after its time limit"),
        (["--signal=TERM@30"], {}, "--signal=TERM@30"),
    ],
)
def test_no_notice_comes_to_a_script_that_is_not_wrapped(
    words: list[str], env: dict[str, str], why: str, site: Site
) -> None:
    """SIGUSR1 would kill it."""
    record, said = saving(site, *words, env=env)
    assert why in said and "B:USR1" not in record and "--requeue" not in record.replace("--no-requeue", "")
    assert record.endswith("<job.sh>") or "signal" in why


@pytest.mark.parametrize(
    "words",
    [["--pal-save-before=5m"], ["--pal-save-before=soon"], ["--pal-checkpoint=x", "--pal-save-before=5m", "-t3"],
     ["--pal-save-times=3"], ["--pal-checkpoint=x", "--pal-save-before=5m", "--signal=TERM@30"]],
)  # fmt: skip
def test_what_cannot_be_saved_so_submits_nothing(words: list[str], site: Site) -> None:
    (site.root / "job.sh").write_text("#!/bin/sh\ntrue\n")
    done = site.run([*PALSUB, *words, "job.sh"], stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and done.stderr.startswith(b"palsub: --pal-save-") and done.stderr.count(b"\n") == 1
    assert not (site.root / "record").exists()


def test_a_dry_run_shows_what_happens_before_the_end(site: Site) -> None:
    (site.root / "job.sh").write_text("#!/bin/sh\n#PAL checkpoint=save\ntrue\n")
    words = ["--pal-dry-run", "--pal-save-before=300", "-a1-2", "job.sh"]
    done = site.run([*PALSUB, *words], stdin=subprocess.DEVNULL, env={"TMPDIR": str(site.root)})
    assert b"--requeue --signal=B:USR1@300 job.sh\n" in done.stdout and b"with the checkpoint command\n" in done.stdout
    said = b"# each task saves 300 s before its time limit by 'save', and is requeued to go on: at most 10 times\n"
    assert said in done.stdout


@pytest.mark.parametrize(
    ("words", "shown", "remark"),
    [
        (["--gres=gpu:1", "job.sh", "a b"], "job.sh 'a b'", True),
        (["--gres=gpu:1", "--", "job.sh"], "-- job.sh", True),
        (["--gres=gpu:1", "--wrap", "x y"], "; x y'", False),  # the observer is in these words
    ],
)
def test_a_dry_run_with_an_observer_can_be_typed(plain_nodes: Site, words: list[str], shown: str, remark: bool) -> None:
    done = plain_nodes.run([*PALSUB, "--pal-dry-run", "--pal-observe", *words], stdin=subprocess.DEVNULL)
    first, *rest = done.stdout.decode().splitlines()
    assert (first.endswith(shown) if remark else shown in first) and ("profiling.node.observer" in first) is not remark
    assert ("# sbatch would get a copy of the script, with an observer" in rest) is remark
    assert not list(plain_nodes.root.glob("palsub.*"))


def test_with_a_live_daemon_a_stated_class_is_written_on_the_job(scored: Site) -> None:
    beat = {"schema": "pal.heartbeat/1", "at_s": time.time(), "clears_leases": True}
    (scored.root / "snapshot.heartbeat").write_text(json.dumps(beat))
    for words in (["--pal-class=A"], ["--pal-class=A", "--comment=mine"], ["--pal-class=A", "-N1", "--begin=now+60"]):
        done = scored.run([*PALSUB, "--gres=gpu:1", "-t60", *words, "job.sh"], stdin=subprocess.DEVNULL)
        assert done.returncode == 0 and done.stderr == b""
    first, second, third = (job["comment"] for job in json.loads((scored.root / "fake.json").read_text())["jobs"])
    word = "pal:job=A;from=--pal-class"
    assert (
        first == f"pal:lease=360;req=;exc=;act=nodelist;set=n1;alone=1.100 {word}"
        and second == "mine"
        and third == word
    )


def test_a_comment_without_room_keeps_its_text(site: Site) -> None:
    long = "x" * 990
    comment, said = movable(site, "--pal-movable", f"--comment={long}", "job.sh")
    assert comment == long and "too long" in said


def test_a_recipe_also_saves_before_the_time_limit(scored: Site) -> None:
    words = ["--pal-dry-run", "--pal-json", "--pal-checkpoint=auto", "--pal-save-before=300", "--gres=gpu:1", "-t60"]
    script = scored.root / "job.sh"
    script.write_text("#!/bin/bash\ngmx mdrun -deffnm x -cpi\n")
    made = json.loads(scored.run([*PALSUB, *words, "job.sh"]).stdout)
    assert made["saving"] == {"before_s": 300, "times": 10, "array": False, "checkpoint": "recipe:gromacs"}
    assert "--signal=B:USR1@300" in made["added"] and made["movable"]["checkpoint"] == "recipe:gromacs"
    script.write_text("#!/bin/bash\n./mine\n")
    done = scored.run([*PALSUB, *words, "job.sh"])
    assert done.returncode == 2 and b"--pal-save-before" in done.stderr and b"checkpoint" in done.stderr
