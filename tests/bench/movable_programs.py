# SPDX-License-Identifier: MIT
"""The programs of movable_set.py: each counts and sums, in its own way, and saves in its own way, or not at all.

What they come to is known without them: step i makes a = (31 a + i) mod 1000003 out of a, and is one line "i a".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STEPS = 150
BEAT_S = 0.1
SLOW_S = 16.0
"""What the slow one takes to save, more than movable_set.py waits for it."""
MOVED, STAYS, ENDS = "moved", "stays", "ends"


def sums(steps: int = STEPS) -> list[str]:
    """The lines of a whole run."""
    lines, value = [], 0
    for i in range(1, steps + 1):
        value = (31 * value + i) % 1000003
        lines.append(f"{i} {value}")
    return lines


class Program(NamedTuple):
    """One job, and what is to become of it."""

    name: str
    script: str  # "" none: by --wrap
    words: tuple[str, ...] = ()  # of palsub, before the script
    expected: str = MOVED
    said: str = ""  # of a job that stays: part of the reason
    output: str = "out"  # the file with its lines; "out.*": of each task or rank one
    exact: bool = True  # no line is there twice, also after moves
    variables: Mapping[str, str] = {}
    encoding: str = "utf-8"
    piped: bool = False  # the script comes by stdin
    state: str = "COMPLETED"
    keeps_output: bool = True  # False: its user wants its output emptied at each start
    tasks: int = 1
    least: int = 2  # moves
    once: str = ""  # is in its output once, however often it is moved
    never: str = ""


WORK_PL = rf"""#!/usr/bin/perl
# -deffnm NAME: of its files; -on SIGNAL | -file NAME | -every STEPS: when it saves; -rc N: its status then
use strict; use warnings;
my %said = (deffnm => "state", on => "TERM", rc => 1, die => 0, file => "", every => 0, out => "");
while (@ARGV) {{ my $key = shift(@ARGV) =~ s/^-//r; $said{{$key}} = shift(@ARGV) if exists $said{{$key}} }}
my ($state, $i, $sum, $wanted) = ("$said{{deffnm}}.cpt", 0, 0, 0);
$SIG{{$said{{on}}}} = sub {{ $wanted = 1 }} unless $said{{file}} || $said{{every}} || $said{{on}} eq "none";
$SIG{{TERM}} = sub {{ kill("KILL", $$) }} if $said{{die}};
my $out = \*STDOUT;
my $length = 0;
if (open(my $in, "<", $state)) {{ ($i, $sum, $length) = split(" ", <$in>) }}
if ($said{{out}}) {{ open($out, ">>", $said{{out}}) or die; truncate($out, $length) or die }}
sub save {{
  open(my $new, ">", "$state.new") or die;
  print $new "$i $sum ", ($said{{out}} ? -s $said{{out}} : 0), "\n";
  close($new) && rename("$state.new", $state) or die;
}}
while ($i < {STEPS}) {{
  $i++;
  $sum = (31 * $sum + $i) % 1000003;
  syswrite($out, "$i $sum\n");
  select(undef, undef, undef, {BEAT_S});
  save() if $said{{every}} && $i % $said{{every}} == 0;
  if ($wanted || ($said{{file}} && -e $said{{file}})) {{ save(); exit $said{{rc}} }}
}}
open(my $end, ">", "$said{{deffnm}}.result") or die;
print $end "$sum\n";
close($end);
unlink($state);
"""
"""A program of many names: mdrun, lmp, pw.x."""

WORK_C = rf"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t wanted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long i, sum;
static int threads;
static void ask(int number) {{ wanted = number; }}
static void save(void) {{
  FILE *f = fopen("c.new", "w");
  if (!f || fprintf(f, "%ld %ld\n", i, sum) < 0 || fclose(f) || rename("c.new", "c.cpt")) exit(3);
}}
static void *work(void *unused) {{
  (void)unused;
  for (;;) {{
    pthread_mutex_lock(&lock);
    if (i >= {STEPS} || wanted) break;
    i++;
    sum = (31 * sum + i) % 1000003;
    dprintf(1, "%ld %ld\n", i, sum);
    pthread_mutex_unlock(&lock);
    usleep(threads * {int(BEAT_S * 1e6)});
  }}
  pthread_mutex_unlock(&lock);
  return NULL;
}}
int main(int argc, char **argv) {{
  int number = atoi(argv[1]);
  threads = argc > 2 ? atoi(argv[2]) : 1;
  pthread_t all[8];
  FILE *f = fopen("c.cpt", "r");
  if (f && fscanf(f, "%ld %ld", &i, &sum) != 2) return 2;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = ask;
  sigaction(number, &action, NULL);
  for (int k = 0; k < threads; k++) pthread_create(&all[k], NULL, work, NULL);
  for (int k = 0; k < threads; k++) pthread_join(all[k], NULL);
  if (wanted && i < {STEPS}) {{ save(); return argc > 3 ? atoi(argv[3]) : 1; }}
  f = fopen("run.result", "w");
  return !f || fprintf(f, "%ld\n", sum) < 0 || fclose(f);
}}
"""

PYTHON = f"""#!/usr/bin/env python3
#PAL class=B
@
import os, pathlib, signal, sys, threading, time
task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
state, wanted = pathlib.Path(f"py{{task}}.cpt"), threading.Event()
i, total = map(int, state.read_text().split()) if state.exists() else (0, 0)
def save():
    pathlib.Path(f"py{{task}}.new").write_text(f"{{i}} {{total}}")
    os.replace(f"py{{task}}.new", state)
def step():
    global i, total
    i += 1
    total = (31 * total + i) % 1000003
    print(i, total, flush=True)
    time.sleep({BEAT_S})
"""
PYTHON_END = f"""
while i < {STEPS}:
    step()
    if wanted.is_set():
        @
pathlib.Path(f"run{{task}}.result").write_text(f"{{total}}\\n")
"""
PYTHON_ENDS = PYTHON_END.replace("@", "save(); sys.exit(85)")
PYTHON_LATE = PYTHON_END.replace("@", f"time.sleep({SLOW_S}); save(); sys.exit(85)")
PYTHON_GOES_ON = PYTHON_END.replace("@", 'wanted.clear(); save(); pathlib.Path(os.environ["SLURM_PAL_ACK"]).touch()')
ON_USR1 = "signal.signal(signal.SIGUSR1, lambda *_: wanted.set())\n"

THREADS = f"""
lock = threading.Lock()
def work():
    while i < {STEPS} and not wanted.is_set():
        with lock:
            if i < {STEPS}:
                step()
workers = [threading.Thread(target=work) for _ in range(4)]
for one in workers:
    one.start()
for one in workers:
    one.join()
if i < {STEPS}:
    save()
    sys.exit(85)
pathlib.Path(f"run{{task}}.result").write_text(f"{{total}}\\n")
"""

FORKS = f"""
import multiprocessing
def summing(pipe):
    while (asked := pipe.recv()) is not None:
        a, k = asked
        pipe.send((31 * a + k) % 1000003)
children = []
for _ in range(3):
    ours, theirs = multiprocessing.Pipe()
    children.append(ours)
    multiprocessing.get_context("fork").Process(target=summing, args=(theirs,), daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: wanted.set())
while i < {STEPS}:
    i += 1
    children[i % 3].send((total, i))
    total = children[i % 3].recv()
    print(i, total, flush=True)
    time.sleep({BEAT_S})
    if wanted.is_set():
        save()
        sys.exit(85)
pathlib.Path(f"run{{task}}.result").write_text(f"{{total}}\\n")
"""

PERL = f"""#!/usr/bin/perl
#PAL checkpoint=USR2
use strict; use warnings; use IO::Handle;
my ($i, $sum, $wanted) = (0, 0, 0);
binmode(STDOUT); STDOUT->autoflush(1);
$SIG{{USR2}} = sub {{ $wanted = 1 }};
if (open(my $in, "<", "pl.cpt")) {{ ($i, $sum) = split(" ", <$in>) }}
while ($i < {STEPS}) {{
  $i++; $sum = (31 * $sum + $i) % 1000003;
  print "$i $sum@\\n";
  select(undef, undef, undef, {BEAT_S});
  if ($wanted) {{
    open(my $new, ">", "pl.new"); print $new "$i $sum\\n"; close($new); rename("pl.new", "pl.cpt"); exit 85;
  }}
}}
open(my $end, ">", "run.result"); print $end "$sum\\n"; close($end);
"""

SHELL = """i=0 sum=0
if [ -e sh.cpt ]; then read -r i sum < sh.cpt; fi
save() { echo "$i $sum" > sh.new && mv sh.new sh.cpt; }
step() { i=$((i + 1)); sum=$(((31 * sum + i) % 1000003)); echo "$i $sum"; }
"""
SHELL_FILE = f"""#!/bin/bash
#PAL class=A movable=600
#PAL checkpoint=touch wanted; until [ -e saved ]; do sleep 0.1; done; rm saved
{SHELL}while [ "$i" -lt {STEPS} ]; do
  step; sleep {BEAT_S}
  if [ -e wanted ]; then save; rm wanted; touch saved; fi
done
echo "$sum" > run.result
"""
SHELL_TRAP = f"""#!/bin/@
#PAL checkpoint=INT
{SHELL}trap 'asked=1' INT
while [ "$i" -lt {STEPS} ]; do
  step
  sleep {BEAT_S} & wait $!
  if [ -n "$asked" ]; then save; exit 85; fi
done
echo "$sum" > run.result
"""
AWK = f"""#!/bin/sh
#PAL @
awk 'BEGIN {{
  if ((getline line < "awk.cpt") > 0) {{ split(line, was, " "); i = was[1]; sum = was[2] }}
  while (i < {STEPS}) {{
    i++; sum = (31 * sum + i) % 1000003; print i, sum; fflush()
    system("sleep {BEAT_S}")
    if (i % 5 == 0) {{ print i, sum > "awk.new"; close("awk.new"); system("mv awk.new awk.cpt") }}
  }}
  print sum > "run.result"
}}'
"""
NEXT_SAVE = 'was=$(stat -c %i awk.cpt); while [ "$(stat -c %i awk.cpt)" = "$was" ]; do sleep 0.1; done'
IGNORANT = f"""#!/bin/bash
i=0 sum=0
while [ "$i" -lt {STEPS} ]; do i=$((i + 1)); sum=$(((31 * sum + i) % 1000003)); echo "$i $sum"; sleep {BEAT_S}; done
echo "$sum" > run.result
"""
AUTO = "#PAL class=B checkpoint=auto\n"
BASH_AUTO = f"#!/bin/bash\n{AUTO}"
SEQUENCE = f"""{BASH_AUTO}for part in a b; do
  [ ! -e "$part.done" ] || continue
  mdrun -cpi -deffnm "$part" -out out.$part || exit 1
  touch "$part.done"
done
"""
BASH_SET_E = f"""#!/bin/bash
{AUTO}set -eu -o pipefail
trap 'echo "left with $?"' EXIT
simulate() {{ mdrun -cpi "$@"; echo "inside"; }}
simulate -deffnm run
"""
INPUT_LMP = "units lj\nrestart 5 run.restart.*\nread_restart run.restart.*\n"
INPUT_PW = "&control\n restart_mode='restart', prefix='run', outdir='./'\n/\n"
HEREDOC = PYTHON.replace("#!/usr/bin/env python3\n#PAL class=B\n@", "").strip()
MPIRUN = """#!/bin/bash
for rank in 1 2 3; do "$@" -deffnm "rank$rank" -out "out.$rank" & done
wait
"""
PART = """#!/bin/bash
[ -e "$1.result" ] || exec -a mdrun perl work.pl -deffnm "$1" -out "out.$1"
"""
DIES = """
signal.signal(signal.SIGUSR1, lambda *_: os.abort())
"""
ENDS_THEN = f"""
def finish(*_):
    global i, total
    while i < {STEPS}:
        i += 1
        total = (31 * total + i) % 1000003
        print(i, total, flush=True)
    pathlib.Path(f"run{{task}}.result").write_text(f"{{total}}\\n")
    os._exit(0)
signal.signal(signal.@, finish)
"""

FILES = {
    "work.pl": WORK_PL, "work.c": WORK_C, "mpirun": MPIRUN, "part": PART, "inner.sh": "mdrun -cpi\n",
    "in.run": INPUT_LMP, "in.pw": INPUT_PW, "ends.py": HEREDOC + ENDS_THEN.replace("@", "SIGTERM") + PYTHON_ENDS,
    **{name: f'#!/bin/bash\nexec -a {name} perl work.pl "$@"\n' for name in ("mdrun", "mdrun_mpi", "lmp", "pw.x")},
}  # fmt: skip
"""In the folder of each job, which is on its PATH."""


def named(name: str, line: str) -> str:
    """A script with a means that its user names, and one command."""
    return f"#!/bin/bash\n#PAL class=A checkpoint=recipe:{name}\n{line}\n"


def python(pal: str, *parts: str) -> str:
    return PYTHON.replace("@", f"#PAL {pal}" if pal else "#") + "".join(parts)


PROGRAMS = (
    Program("python: signal, exit 85", python("checkpoint=USR1", ON_USR1, PYTHON_ENDS)),
    Program("python: signal, acknowledges, goes on", python("checkpoint=USR1", ON_USR1, PYTHON_GOES_ON), exact=False),
    Program("python: four threads", python("checkpoint=USR1", ON_USR1, THREADS)),
    Program("python: three forks, pipes between them", python("checkpoint=TERM", FORKS)),
    Program("python: means by variable", python("", ON_USR1, PYTHON_ENDS), variables={"SLURM_PAL_CHECKPOINT": "USR1"}),
    Program("perl: signal, exit 85", PERL.replace("@", "")),
    Program("perl: bytes that are no UTF-8", PERL.replace("@", "\\xff\\x80\\xc3"), encoding="latin-1"),
    Program("bash: own command, by a file", SHELL_FILE, exact=False),
    Program("bash: trap for SIGINT, background sleeps", SHELL_TRAP.replace("@", "bash")),
    Program("dash: trap for SIGINT, background sleeps", SHELL_TRAP.replace("@", "dash")),
    Program("awk: saves at intervals, own command waits", AWK.replace("@", f"checkpoint={NEXT_SAVE}"), exact=False),
    Program("awk: saves at intervals, movable", AWK.replace("@", "movable=5"), exact=False),
    Program("C: SIGTERM", named("saves-on-term", "./work 15")),
    Program("C: four threads, SIGUSR1", named("saves-on-usr1", "./work 10 4")),
    Program("C: SIGINT", named("saves-on-int", "./work 2")),
    Program("C: SIGUSR2, exit 85 of its own", named("saves-on-usr2", "./work 12 1 85")),
    Program("C: compiled in the job", named("saves-on-term", "gcc -pthread -o own work.c && ./own 15")),
    Program("perl: stop file", named("stop-file halt.now", "perl work.pl -file halt.now")),
    Program("python in a here-document", named("saves-on-term", f"python3 - <<'EOF'\n{HEREDOC}\n"
            f"signal.signal(signal.SIGTERM, lambda *_: wanted.set()){PYTHON_ENDS}EOF")),
    Program("auto: plain", f"{BASH_AUTO}mdrun -cpi\n"),
    Program("auto: from stdin", f"{BASH_AUTO}mdrun -cpi\n", piped=True),
    Program("auto: --wrap", "", ("--pal-checkpoint=auto", "--wrap", "mdrun -cpi; echo after"), once="after"),
    Program("auto: set -e, function, trap on EXIT", BASH_SET_E),
    Program("auto: pipe into a loop of the shell",
            f'{BASH_AUTO}mdrun -cpi | while read -r a b; do echo "$a $b"; done\n'),
    Program("auto: pipe into another program", f"{BASH_AUTO}mdrun -cpi | tee -a log | cat\n"),
    Program("auto: into a process substitution",
            f'{BASH_AUTO}mdrun -cpi > >(while read -r a b; do echo "$a $b"; done); sleep 0.5\n'),
    Program("auto: into a loop of the script's own shell",
            f'{BASH_AUTO}while read -r a b; do echo "$a $b"; done < <(mdrun -cpi)\n'),
    Program("auto: output of all the script through tee",
            f"{BASH_AUTO}exec > >(tee -a log) 2>&1\nmdrun -cpi\nsleep 0.5\n"),
    Program("auto: background and wait", f"{BASH_AUTO}mdrun -cpi &\nwait\n"),
    Program("recipe named, in a session of its own",
            named("gromacs", "setsid mdrun -cpi &\nwhile kill -0 $! 2> /dev/null; do sleep 0.2; done")),
    Program("auto: subshell", f"#!/bin/sh\n{AUTO}(cd . && mdrun -cpi; echo inside)\necho after\n", once="inside"),
    Program("auto: in an if", f"{BASH_AUTO}if mdrun -cpi; then echo well; else echo badly; fi\n", never="badly"),
    Program("auto: after ||", f"{BASH_AUTO}mdrun -cpi || echo badly\n", never="badly"),
    Program("auto: by timeout and nice", f"{BASH_AUTO}timeout 300 nice mdrun -cpi\n"),
    Program("auto: input by a here-document", f"{BASH_AUTO}mdrun -cpi <<END\nmdrun\nEND\n"),
    Program("auto: two after each other", SEQUENCE, output="out.*", tasks=2),
    Program("auto: an srun step", f"{BASH_AUTO}srun -n1 mdrun -cpi && echo inside\n", once="inside"),
    Program("auto: three ranks of an MPI launcher",
            f"{BASH_AUTO}mpirun mdrun_mpi -cpi\n", output="out.*", tasks=3),
    Program("auto: its next restart file, appends to a file",
            f"{BASH_AUTO}lmp -in in.run -deffnm run.restart -every 30 -out lines\n", output="lines"),
    Program("auto: saves more often than can be seen",
            f"{BASH_AUTO}lmp -in in.run -deffnm run.restart -every 3 -out lines\n", (), STAYS, "no checkpoint after",
            output="lines"),
    Program("auto: EXIT file", f"{BASH_AUTO}pw.x -in in.pw -file run.EXIT\n"),
    Program("recipe named, in a script of the script", named("gromacs", "bash inner.sh")),
    Program("recipe named, by xargs", named("gromacs", "printf 'a\\nb\\n' | xargs -n1 ./part"),
            output="out.*", tasks=2, exact=False),
    Program("recipe named, its program dies of the request",
            named("saves-on-term", "perl work.pl -every 5 -die 1"), exact=False),
    Program("--open-mode=append and a name of its own",
            f"#!/bin/bash\n#SBATCH --open-mode=append\n{AUTO}mdrun -cpi\n"),
    Program("--open-mode=truncate", f"#!/bin/bash\n#SBATCH --open-mode=truncate\n{AUTO}mdrun -cpi -out lines\n",
            output="lines", keeps_output=False),
    Program("knows nothing, movable: from the start", IGNORANT,
            ("--pal-checkpoint=auto", "--pal-movable"), exact=False),
    Program("knows nothing", IGNORANT, ("--pal-checkpoint=auto",), STAYS, "no program of a recipe"),
    Program("python, knows nothing", python("checkpoint=auto", PYTHON_ENDS), (), STAYS, "not for a shell"),
    Program("auto: exec", f"{BASH_AUTO}exec mdrun -cpi\n", (), STAYS, "with exec"),
    Program("auto: would not go on", f"{BASH_AUTO}mdrun\n", (), STAYS, "no -cpi"),
    Program("--no-requeue", python("checkpoint=USR1", ON_USR1, PYTHON_ENDS), ("--no-requeue",), STAYS, "--no-requeue"),
    Program("tasks of an array", python("checkpoint=USR1", ON_USR1, PYTHON_ENDS),
            ("--array=1-2", "-oout.%a"), STAYS, "array", tasks=2, output="out.*"),
    Program("ignores the signal",
            python("checkpoint=USR1", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)", PYTHON_ENDS), (), STAYS,
            "no process of the job handles SIGUSR1"),
    Program("its own command fails", IGNORANT.replace("\n", "\n#PAL checkpoint=false\n", 1), (), STAYS, "failed"),
    Program("its own trap for SIGURG", named("gromacs", "trap : URG; mdrun -cpi; :"), (), STAYS,
            "trap for SIGURG of its own"),
    Program("its program does not run then", named("gromacs", IGNORANT), (), STAYS, "does not run on this node"),
    Program("takes too long to save", python("checkpoint=USR1", ON_USR1, PYTHON_LATE), (), STAYS,
            "no checkpoint after"),
    Program("dies of the signal", python("checkpoint=USR1", DIES, PYTHON_ENDS), (), ENDS, "FAILED", state="FAILED"),
    Program("ends at the request",
            python("checkpoint=USR1", ENDS_THEN.replace("@", "SIGUSR1"), PYTHON_ENDS), (), ENDS),
    Program("a recipe's program ends at the request",
            named("saves-on-term", '[ -e run.result ] || python3 ends.py'), exact=False, least=1),
)  # fmt: skip
