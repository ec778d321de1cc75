# SPDX-License-Identifier: MIT
"""bin/palsub as users start it: nothing in their environment keeps a job from sbatch, or changes what sbatch gets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PALSUB = os.path.join(os.path.dirname(sys.executable), "palsub")
PAL = os.path.join(os.path.dirname(sys.executable), "pal")
ECHO = r"""#!/bin/sh
for word; do printf '<%s>' "$word"; done > "$RECORD"
cat >> "$RECORD"
echo x >> "$TRIES"
cat /proc/$$/environ > "$SEEN"
echo Submitted batch job 7 2> /dev/null
exit 0
"""
NAMES = ("enum", "json", "re", "os", "posix", "signal", "encodings", "codecs", "io", "abc", "site", "binascii", "types")
SCRIPT = b"#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n"


class Place:
    """A user's folder with an sbatch that notes what it gets; `start` runs a command there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        self.write("bin/sbatch", ECHO)
        self.env = {
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "HOME": str(root),
            "SLURM_CONF": str(root / "slurm.conf"),
            "RECORD": str(root / "record"),
            "TRIES": str(root / "tries"),
            "SEEN": str(root / "seen"),
        }

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(
        self, *words: str | bytes, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        found = {"input": SCRIPT, "cwd": self.root, "timeout": 60, "env": self.env | (env or {})} | options
        return subprocess.run(words, capture_output=True, check=False, **found)  # type: ignore[call-overload,no-any-return]

    def tries(self) -> int:
        """How often something was submitted."""
        path = self.root / "tries"
        return path.read_text().count("x") if path.exists() else 0

    def seen(self) -> dict[bytes, bytes]:
        """sbatch's environment. A shell between, as our sbatch is, adds nothing to what /proc shows of it."""
        pairs = (entry.partition(b"=") for entry in (self.root / "seen").read_bytes().split(b"\0"))
        return {name: value for name, sign, value in pairs if sign}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def hostile(place: Place) -> str:
    """A folder with modules of the names that Python needs, each of which ends it."""
    for name in NAMES:
        place.write(f"hostile/{name}.py", "raise SystemExit(1)\n")
    return str(place.root / "hostile")


HOSTILE: dict[str, dict[str, str]] = {
    "nothing": {},
    "PYTHONPATH": {"PYTHONPATH": "HOSTILE"},
    "PYTHONHOME": {"PYTHONHOME": "/nonexistent"},
    "both": {"PYTHONHOME": "/nonexistent", "PYTHONPATH": "HOSTILE"},
    "PYTHONSTARTUP": {"PYTHONSTARTUP": "HOSTILE/os.py", "PYTHONINSPECT": "1"},
    "PYTHONSAFEPATH": {"PYTHONSAFEPATH": ""},
    "PYTHONWARNINGS": {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
    "PYTHONIOENCODING": {"PYTHONIOENCODING": "nonsense", "PYTHONUTF8": "nonsense"},
    "PYTHONPLATLIBDIR": {"PYTHONPLATLIBDIR": "nowhere", "PYTHONEXECUTABLE": "/nonexistent"},
    "locale": {"LANG": "xx_YY", "LC_ALL": "xx_YY.nonsense"},
    "C": {"LANG": "C", "LC_ALL": ""},
    "shell": {"IFS": "/ps", "ENV": "HOSTILE/os.py", "BASH_ENV": "HOSTILE/os.py", "CDPATH": "/", "PS4": "$(exit 1)"},
    "functions": {f"BASH_FUNC_{name}%%": "() { exit 1; }" for name in ("test", "printf", "exec", "unset", "readlink")},
    "libraries": {"LD_LIBRARY_PATH": "HOSTILE/lib", "LD_BIND_NOW": "1"},
    "ours": {"SLURM_PAL_COPY_1": "?", "SLURM_PAL_COPY_2": "?"},
}


@pytest.mark.parametrize("off", [False, True], ids=["on", "off"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_the_job_is_submitted_once_as_it_was_written(kind: str, off: bool, place: Place, hostile: str) -> None:
    given = {key: value.replace("HOSTILE", hostile) for key, value in HOSTILE[kind].items()}
    (Path(hostile) / "lib").mkdir()
    for name in ("libz.so.1", "libexpat.so.1", "libm.so.6"):  # what Python needs, and a shell does not
        (Path(hostile) / "lib" / name).write_bytes(b"no library")
    env = place.env | given | {"PWD": "/wrong", "BASH_FUNC_module%%": "() { :\n}", "SHLVL": "7", "a.b": "ä\udcff\n"}
    env |= {"SLURM_PAL_OFF": "1"} if off else {}
    done = place.start(PALSUB, "-N1", b"--comment=a\xff\n b", "-J", "it's", env=env, cwd=hostile)
    assert done.returncode == 0 and done.stdout == b"Submitted batch job 7\n", done.stderr
    assert place.tries() == 1
    assert (place.root / "record").read_bytes() == b"<-N1><--comment=a\xff\n b><-J><it's>" + SCRIPT
    assert place.seen() == {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def test_a_folder_of_hostile_modules_is_no_module_path(place: Place, hostile: str) -> None:
    assert place.start(PALSUB, "-N1", cwd=hostile).returncode == 0 and place.tries() == 1
    done = place.start(PALSUB, "--pal-dry-run", "-N1", cwd=hostile)
    assert done.returncode == 0 and done.stdout.startswith(b"sbatch -N1\n") and place.tries() == 1


@pytest.mark.parametrize("how", ["a link", "a link to a link", "a path", "a relative path", "a relative link"])
def test_it_is_found_by_whatever_name_it_is_started(how: str, place: Place) -> None:
    (place.root / "one").symlink_to(PALSUB)
    (place.root / "two").symlink_to("one")
    beside = os.path.relpath(PALSUB, place.root)
    name = {"a link": f"{place.root}/one", "a link to a link": f"{place.root}/two", "a path": PALSUB,
            "a relative path": beside, "a relative link": "./two"}[how]  # fmt: skip
    done = place.start(name, "--pal-dry-run", "job.sh", env={"PYTHONHOME": "/nonexistent"})
    assert done.returncode == 0 and done.stdout.startswith(b"sbatch job.sh\n"), done.stderr


def test_under_sbatchs_name_it_finds_the_real_one(place: Place) -> None:
    (place.root / "first").mkdir()
    (place.root / "first" / "sbatch").symlink_to(PALSUB)
    env = {"PATH": f"{place.root}/first:{place.env['PATH']}"}
    assert place.start("sbatch", "-N1", env=env).returncode == 0 and place.tries() == 1
    assert place.start("sbatch", "-N1", env=env | {"SLURM_PAL_PLAIN": "why"}).returncode == 0 and place.tries() == 2


@pytest.mark.parametrize("path", ["", "/nonexistent", None])
def test_without_a_path_it_says_what_a_shell_says(path: str | None, place: Place) -> None:
    (place.root / "slurm.conf").write_text("# says nothing: for one that is not there sbatch waits a minute\n")
    env = {key: value for key, value in place.env.items() if key != "PATH"} | ({} if path is None else {"PATH": path})
    done = subprocess.run([PALSUB, "x"], env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if shutil.which("sbatch", path=os.defpath) and path is None:  # this machine's own, which a shell would find, too
        assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(b"sbatch: ")
        return
    assert (done.returncode, done.stderr) == (127, b"palsub: sbatch: command not found\n")


def test_a_folder_that_is_gone_is_sbatchs_to_report(place: Place) -> None:
    gone = place.root / "gone"
    gone.mkdir()
    words = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", PALSUB, "-N1"]
    done = place.start(*words, cwd=gone)
    assert done.returncode == 0 and done.stdout == b"Submitted batch job 7\n" and place.tries() == 1


def test_a_large_environment_arrives(place: Place) -> None:
    env = {f"V{i}": "x" * 100_000 for i in range(5)} | {"BASH_FUNC_a%%": "() { " + "y" * 90_000 + "\n}"}
    assert place.start(PALSUB, "-N1", env=env).returncode == 0
    assert {key: value for key, value in place.seen().items() if key.startswith((b"V", b"B"))} == {
        key.encode(): value.encode() for key, value in env.items()
    }


@pytest.mark.parametrize(("stack_kib", "size"), [(8192, 600_000), (8192, 1_500_000), (512, 100_000)])
def test_an_environment_that_sbatch_can_take_is_no_reason_to_lose_the_job(
    stack_kib: int, size: int, place: Place
) -> None:
    """The kernel bounds environment and words together, by the stack (execve(2)): a copy may be too much."""
    env = {f"V{i}": "x" * 100_000 for i in range(size // 100_000)}
    done = place.start("sh", "-c", f'ulimit -s {stack_kib} && exec "$@"', "sh", PALSUB, "-N1", env=env)
    assert done.returncode == 0 and place.tries() == 1, done.stderr
    assert env.items() <= {key.decode(): value.decode() for key, value in place.seen().items()}.items()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_sbatch_and_its_end_is_ours(number: signal.Signals, place: Place) -> None:
    place.write(
        "bin/sbatch",
        f"#!/bin/sh\ntrap 'echo caught; exit 9' {number.name[3:]}\necho ready\nwhile :; do sleep 0.05; done\n",
    )
    child = subprocess.Popen(
        [PALSUB, "--wait", "job.sh"], env=place.env | {"PYTHONHOME": "/x"}, cwd=place.root, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    assert child.communicate(timeout=30)[0] == b"caught\n" and child.returncode == 9
    place.write("bin/sbatch", f"#!/bin/sh\nkill -{number.name[3:]} $$\n")
    assert place.start(PALSUB, "job.sh").returncode == -number


def test_switched_off_it_is_sbatch_in_the_same_process(place: Place) -> None:
    place.write("bin/sbatch", "#!/bin/sh\necho $$\n")
    child = subprocess.Popen([PALSUB, "--pal-off"], env=place.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.communicate(timeout=30)[0] == f"{child.pid}\n".encode()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_stay_closed(closed: str, place: Place) -> None:
    place.write("bin/sbatch", '#!/bin/sh\nfor f in 0 1 2; do [ -e /proc/$$/fd/$f ] && echo "$f"; done > open\nexit 4\n')
    seen = []
    for argv in (["sbatch", "job.sh"], [PALSUB, "job.sh"]):
        done = place.start("sh", "-c", f'exec "$@" {closed}', "sh", *argv)
        seen.append((done.returncode, (place.root / "open").read_text()))
    assert seen[0] == seen[1]


def copied(place: Place, change: Callable[[Path], None]) -> str:
    """A palsub of its own, in an installation that `change` has damaged."""
    root = place.root / "opt"
    library = root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (root / "bin").mkdir(parents=True)
    shutil.copy2(PALSUB, root / "bin" / "palsub")
    shutil.copy2(PALSUB, root / "bin" / "pal")
    (root / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
    import slurm_pal

    package = os.path.dirname(slurm_pal.__file__)
    shutil.copytree(package, library / "slurm_pal", ignore=shutil.ignore_patterns("__pycache__", "profiling", "report"))
    change(root)
    return str(root / "bin" / "palsub")


def _package(root: Path) -> Path:
    (found,) = root.glob("lib/python3.*/site-packages/slurm_pal")
    return found


def no_change(root: Path) -> None:
    """Whole."""


def no_package(root: Path) -> None:
    shutil.rmtree(_package(root))


def no_interpreter(root: Path) -> None:
    (root / "bin" / "python3").unlink()
    (root / "bin" / "python3").symlink_to("/nonexistent/python3")
    no_package(root)


def broken_interpreter(root: Path) -> None:
    (root / "bin" / "python3").unlink()
    (root / "bin" / "python3").write_text("#!/bin/sh\necho 'Fatal Python error' >&2\nexit 1\n")
    (root / "bin" / "python3").chmod(0o755)


def broken_library(root: Path) -> None:
    """An interpreter that starts, but finds no standard library: it ends before any code of ours."""
    (root / "bin" / "python3").unlink()
    (root / "bin" / "python3").write_text(f'#!/bin/sh\nPYTHONHOME=/nonexistent exec {sys.executable} -c "" "$@"\n')
    (root / "bin" / "python3").chmod(0o755)


def broken_entry(root: Path) -> None:
    (_package(root) / "cli" / "palsub.py").write_text("import nothing_of_that_name\n")


def broken_module(root: Path) -> None:
    (_package(root) / "submit" / "submission.py").write_text("def (:\n")


def broken_base(root: Path) -> None:
    (_package(root) / "base" / "errors.py").write_text("raise SystemExit(0)\n")


DAMAGES = [
    no_package, no_interpreter, broken_interpreter, broken_library, broken_entry, broken_module, broken_base,
]  # fmt: skip


def test_a_copy_works_so_the_damages_below_are_what_is_tested(place: Place) -> None:
    done = place.start(copied(place, no_change), "--pal-class", "A", "-N1", input=b"#!/bin/sh\ntrue\n")
    assert done.returncode == 0 and done.stderr == b"" and place.tries() == 1


def editable(root: Path) -> None:
    """The package is elsewhere, and a .pth file names the place, as `pip install --editable` has it."""
    package = _package(root)
    (root / "tree").mkdir()
    package.rename(root / "tree" / "slurm_pal")
    (package.parent / "editable.pth").write_text(f"{root}/tree\n")
    home = os.path.dirname(os.path.realpath(sys.executable))
    (root / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")


def test_an_editable_installation_works(place: Place, hostile: str) -> None:
    env = {"PYTHONHOME": "/nonexistent", "PYTHONPATH": hostile}
    done = place.start(copied(place, editable), "--pal-dry-run", "-N1", env=env)
    assert done.stdout.startswith(b"sbatch -N1\n") and done.returncode == 0, done.stderr


def test_a_bash_that_is_called_sh_does_as_well(place: Place, hostile: str) -> None:
    """As on other distributions. It takes functions and settings from the environment, and changes variables."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (place.root / "sh").symlink_to(bash)
    functions = {f"BASH_FUNC_{name}%%": "() { exit 1; }" for name in ("test", "printf", "base64", "readlink", "say")}
    env = place.env | functions | {
        "PYTHONHOME": "/nonexistent", "PYTHONPATH": hostile, "PWD": "/wrong", "OLDPWD": "/no", "SHLVL": "7",
        "IFS": "/ps", "BASH_ENV": f"{hostile}/os.py", "ENV": f"{hostile}/os.py", "a.b": "x\n", "PS4": "$(exit 1)",
        "BASHOPTS": "failglob", "SHELLOPTS": "errexit:nounset",
    }  # fmt: skip
    done = place.start(str(place.root / "sh"), PALSUB, "-N1", b"a\xff b", env=env)
    assert done.returncode == 0 and done.stdout == b"Submitted batch job 7\n", done.stderr
    assert place.seen() == {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    assert (place.root / "record").read_bytes() == b"<-N1><a\xff b>" + SCRIPT
    done = place.start(str(place.root / "sh"), PALSUB, "--pal-class", "A", "-N1", env=env | {"SLURM_PAL_PLAIN": "why"})
    assert done.returncode == 0 and done.stderr == b"palsub: submitted as plain sbatch: why\n"
    assert (place.root / "record").read_bytes() == b"<-N1>" + SCRIPT


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_installation_is_sbatch(damage: Callable[[Path], None], place: Place) -> None:
    program = copied(place, damage)
    words = ["--pal-class", "A", "-J", "x y", "--pal-explain", "--time", "5", "--pal-app=z", "job.sh", "--pal-off", ""]
    place.write("job.sh", SCRIPT.decode())
    env = {"LD_LIBRARY_PATH": "/nonexistent", "SLURM_PAL_KEPT": "1"}
    done = place.start(program, *words, env=env)
    assert done.returncode == 0 and done.stdout == b"Submitted batch job 7\n", done.stderr
    assert done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"palsub: submitted as plain sbatch: ")
    assert (place.root / "record").read_bytes() == b"<-J><x y><--time><5><job.sh><--pal-off><>" + SCRIPT
    assert place.tries() == 1 and place.seen()[b"LD_LIBRARY_PATH"] == b"/nonexistent"
    assert not any(name.startswith((b"SLURM_PAL_COPY", b"SLURM_PAL_PLAIN")) for name in place.seen())


@pytest.mark.parametrize("word", ["--pal-dry-run", "--pal-help"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_installation_submits_nothing_that_was_not_to_be(
    damage: Callable[[Path], None], word: str, place: Place
) -> None:
    done = place.start(copied(place, damage), "-N1", word, "job.sh")
    assert done.returncode == 1 and done.stdout == b"" and place.tries() == 0
    assert done.stderr.count(b"\n") == 1 and done.stderr.endswith(b": nothing is submitted\n")


@pytest.mark.parametrize("damage", [no_package, no_interpreter, broken_interpreter])
def test_a_job_goes_on_where_pal_is_damaged(damage: Callable[[Path], None], place: Place) -> None:
    program = os.path.join(os.path.dirname(copied(place, damage)), "pal")
    for words in (["progress", "3"], ["ack"], ["observe"]):
        done = place.start(program, *words)
        assert done.returncode == 0 and done.stderr.count(b"\n") == 1, done.stderr
    assert place.start(program, "nodes").returncode == 1


def test_pal_in_a_job_ignores_the_jobs_python(place: Place, hostile: str) -> None:
    env = {"PYTHONHOME": "/nonexistent", "PYTHONPATH": hostile}
    assert place.start(PAL, "--version", env=env, cwd=hostile).stdout.startswith(b"pal (slurm-pal) ")
    done = place.start(PAL, "progress", "3", env=env | {"SLURM_JOB_ID": "1", "TMPDIR": str(place.root)}, cwd=hostile)
    assert done.returncode == 0 and b"squeue" in done.stderr


def test_a_full_disk_costs_no_job_and_doubles_none(place: Place) -> None:
    """sbatch ends with 0 although its line is lost; who resubmits after another code would have two jobs."""
    place.write("job.sh", "#!/bin/sh\ntrue\n")  # no GPUs: palsub runs sbatch and listens to it
    place.write("plain.sh", SCRIPT.decode())  # GPUs, but no Slurm that could be asked: palsub becomes sbatch
    for words in (["job.sh"], ["--pal-explain", "job.sh"], ["--pal-json", "job.sh"], ["plain.sh"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [PALSUB, *words], env=place.env, cwd=place.root, stdin=subprocess.DEVNULL, stdout=full, stderr=full,
                check=False,
            )  # fmt: skip
        assert done.returncode == 0, words
    assert place.tries() == 4
    for words in (["--pal-help"], ["--pal-dry-run", "job.sh"], ["--pal-dry-run", "--pal-json", "job.sh"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [PALSUB, *words], env=place.env, cwd=place.root, stdin=subprocess.DEVNULL, stdout=full,
                stderr=subprocess.PIPE, check=False,
            )  # fmt: skip
        assert done.returncode == 1 and b"No space left on device" in done.stderr
    assert place.tries() == 4


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_full_disk_is_no_more_than_that_where_we_are_damaged(damage: Callable[[Path], None], place: Place) -> None:
    program = copied(place, damage)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [program, "job.sh"], env=place.env, cwd=place.root, stdin=subprocess.DEVNULL, stdout=full, stderr=full,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0 and place.tries() == 1


GPUS = "#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n"


@pytest.mark.parametrize(
    ("words", "asks"),
    [
        (["--gres=gpu:1", "--wrap", "true"], True),
        (["-G1", "cpu.sh"], True),
        (["gpu.sh"], True),
        (["--reservation=r", "gpu.sh"], True),
        (["--reservation=r", "--gpus", "1", "cpu.sh"], True),
        (["cpu.sh"], False),
        (["nosuch.sh"], False),
        (["--pal-off", "gpu.sh"], False),
        (["--hold", "gpu.sh"], False),
        (["--gres=gpu:1", "--help"], False),
        (["--pal-class=Z", "--gres=gpu:1", "cpu.sh"], True),  # guessed by the look of the words: in vain
    ],
)
def test_slurm_is_asked_once_and_only_where_that_may_help(words: list[str], asks: bool, place: Place) -> None:
    """Both commands at once, before palsub has read its own words; none is left behind."""
    place.write("cpu.sh", "#!/bin/sh\ntrue\n")
    place.write("gpu.sh", GPUS)
    for name in ("scontrol", "squeue"):
        place.write(f"bin/{name}", f'#!/bin/sh\necho "{name} $$" >> {place.root}/asked\necho no >&2\nexit 1\n')
    done = place.start(PALSUB, *words, stdin=subprocess.DEVNULL, input=None)
    assert place.tries() == ("--pal-class=Z" not in words) and done.returncode == (0 if place.tries() else 2)
    asked = (place.root / "asked").read_text().split() if (place.root / "asked").exists() else []
    counted = [asked.count(name) for name in ("scontrol", "squeue")]
    # A guess that comes to nothing ends its commands, maybe before they have begun.
    assert counted == [1, 1] if asks and place.tries() else max(counted) <= asks
    assert not any(os.path.exists(f"/proc/{pid}") for pid in asked[1::2])


def test_without_slurms_commands_a_wrong_word_is_still_a_wrong_word(place: Place) -> None:
    place.env["PATH"] = f"{place.root}/bin"
    (place.root / "bin" / "cat").symlink_to(shutil.which("cat") or "cat")
    assert place.start(PALSUB, "--pal-class=Z", "--gres=gpu:1", "job.sh").returncode == 2
    done = place.start(PALSUB, "--gres=gpu:1", "--wrap", "true")
    assert done.returncode == 0 and done.stderr.startswith(
        b"palsub: submitted as plain sbatch: scontrol is not in PATH"
    )
    assert place.tries() == 1
