# SPDX-License-Identifier: MIT
"""palsub's own words: what --pal-* asks for, and which sensitivity class a job gets."""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS
from slurm_pal.base.light import Mapping, NamedTuple
from slurm_pal.base.numbers import digits
from slurm_pal.sensitivity.cascade import DEFAULT_WHY
from slurm_pal.submit.argv import CommandLine

HELP = """usage: palsub [--pal-OPTION]... [sbatch options] script [args]

sbatch, on the GPUs that suit the job. palsub passes every word to sbatch unchanged, except
its own, which come before `--` or the script name:

  --pal-class A|B|C  how much the job suffers from slow GPUs: A compute-bound, B mixed,
                     C memory-bound or insensitive (default: from earlier jobs of this
                     name, else from the script, else treated as A)
  --pal-app NAME     the class of a known application, or of one under [apps] in pal.toml
  --pal-policy NAME  another placement rule (class-fit, pal, pm-first, threshold, packed,
                     random)
  --pal-avoid-slow[=X]  the job is kept off nodes with GPUs slower than X (1.10: 10 % slower than
                     the median), for as long as waiting for others can pay
  --pal-watch        a small process of yours takes node lists back from pending jobs, also
                     where a daemon does (default: where none does)
  --pal-movable[=S]  the job may be moved to better GPUs while it runs: it is requeued and
                     starts anew; --open-mode=append keeps its output; S: most seconds of
                     work that a move loses
  --pal-checkpoint CMD   movable, and CMD writes a checkpoint first: a shell command, or the
                     name of a signal that the program handles; exit code 85 after it
                     means "start the job again", any other exit code ends it
  --pal-checkpoint auto  the first that holds: the script's own CMD, the recipe of a known
                     program, transparent, a requeue from the start if the job is movable;
                     none: without one; recipe:NAME: by this recipe (pal recipes)
  --pal-checkpoint transparent  CRIU writes the job's processes to disk, and they go on from
                     there; if that fails the job begins anew, with transparent:hold it is held
  --pal-save-before TIME  TIME (300, 5m, 5:00) before its time limit the job makes its
                     checkpoint, is requeued, and goes on from there
  --pal-save-times N     at most N times (10)
  --pal-elastic MIN:MAX  the job runs on MIN nodes; up to MAX-MIN companions of one node each
                     join it when nodes are free, and leave when others need them
  --pal-elastic-partition P  partition of the companions (default: that of loan.guest, else
                     the job's own)
  --pal-elastic-hook CMD     a shell command that runs beside the job each time its size has
                     changed; SLURM_PAL_WORKERS is the new size
  --pal-fork N       up to N-1 copies of the job run on idle nodes, each at its own speed, and
                     its script has what they saved merged: see pal fork --help
  --pal-goal GOAL    what decides between places that would do: time (the default), cost, or
                     deadline=WHEN (18:00, 2026-12-01T18:00, now+8hours): the cheapest in time
  --pal-alt NAME:OPTION=VALUE,...  one of several places that would do, each with partition=
                     and est=, how long it runs there; PAL_ALT in the job says which it got
  --pal-input PATH[,PATH]  what the job reads: of GPUs that are alike it gets those on nodes that
                     have it (the site's table, and what your jobs report by pal have)
  --pal-observe[=S]  measure in the job's first S seconds how much it suffers from slow GPUs,
                     so that later jobs of its name need no class; 0: do not
  --pal-note         a line at the end of the job's output: on which GPUs it ran, and what Slurm
                     alone would have given
  --pal-explain      explain on stderr what was decided, and why
  --pal-json         the same as JSON: on stderr, with --pal-dry-run on stdout
  --pal-dry-run      print the exact sbatch command and the reason; submit nothing
  --pal-off          plain sbatch (also: SLURM_PAL_OFF=1)
  --pal-help         this text; --help is sbatch's

In the script, before its first command:  #PAL class=A   or   #PAL app=resnet50
                                          #PAL movable=600
                                          #PAL checkpoint=touch save; sleep 5
                                          #PAL checkpoint=auto
                                          #PAL save-before=5m save-times=3
                                          #PAL observe note avoid-slow=1.2
                                          #PAL elastic=2:6 elastic-partition=guest
                                          #PAL fork=5
                                          #PAL goal=cost
                                          #PAL input=/data/set1
                                          #PAL alt=gpu:partition=a100,gres=gpu:1,est=20m
                                          #PAL alt=cpu:partition=cpu,cpus=32,est=2h
In the environment:  SLURM_PAL_CLASS=A  SLURM_PAL_MOVABLE=1  SLURM_PAL_CHECKPOINT=USR1
                     SLURM_PAL_ELASTIC=2:6  SLURM_PAL_GOAL=cost  SLURM_PAL_SAVE_BEFORE=300

examples:
  palsub --pal-class A --gpus-per-node=4 train.sh
  palsub --pal-dry-run --gres=gpu:2 job.sh
  palsub --parsable --gpus=1 --wrap 'python3 train.py'
"""

OBSERVE_S = 300.0
"""How long a job is observed if its user asks for it and neither user nor site states a time."""
DIRECTIVES = (
    "class", "app", "movable", "checkpoint", "observe", "elastic", "elastic-partition", "elastic-hook", "fork", "goal",
    "alt", "input", "save-before", "save-times", "note", "avoid-slow",
)  # fmt: skip
"""What may follow #PAL."""
_MOST_DIGITS = 9
AUTO, NONE = "auto", "none"
"""A checkpoint that palsub is to find, and none at all."""
SITES_SAY = ("checkpoint_accounts", "checkpoint_qos", "checkpoint_partitions", "checkpoint_programs")
"""Settings that name the jobs for which a site leaves it to palsub; submit.checkpoint does so for all."""
TRANSPARENT, HELD = "transparent", "transparent:hold"
"""A checkpoint by CRIU; of a job that is held where it cannot be restored."""
NAMED = "recipe:"
"""A checkpoint "recipe:NAME [FILE]" names a recipe."""


class Choice(NamedTuple):
    """The --pal-* options of one command line."""

    sensitivity: str = ""
    app: str = ""
    policy: str = ""
    movable: str | None = None  # seconds of work, "" if not stated; None: not asked for
    checkpoint: str = ""
    observe: str | None = None  # seconds, "" if not stated; None: not asked for
    elastic: str | None = None  # MIN:MAX
    elastic_partition: str | None = None
    elastic_hook: str | None = None
    fork: str | None = None  # copies, or "on"
    goal: str | None = None
    alt: tuple[str, ...] = ()
    input: str | None = None  # paths, comma-separated
    save_before: str | None = None  # a time
    save_times: str | None = None  # a number
    avoid_slow: str | None = None  # a slowdown, "" if not stated; None: not asked for
    off: bool = False
    dry_run: bool = False
    explain: bool = False
    json: bool = False
    watch: bool = False
    note: bool = False
    help: bool = False


class Saving(NamedTuple):
    """What is to happen before a job's time limit."""

    before_s: int = 0  # so long before it the job makes its checkpoint; 0: not asked for
    times: int = 0  # so often at most it is continued
    array: bool = False  # each task of an array for itself


NO_SAVING = Saving()


class Moving(NamedTuple):
    """Whether and how a job may be moved."""

    movable: bool = False
    checkpoint: str = ""  # a shell command, a signal's name, recipe:NAME or transparent; "" none
    lost_s: str = ""  # the most seconds of work that a requeue loses; "" not stated
    restarts: bool = False  # its user allows a requeue from the start
    auto: bool | None = None  # whether palsub is to find a checkpoint; None: nobody says

    @property
    def left_to_palsub(self) -> bool:
        """Whether the user leaves it to palsub, to a recipe or to CRIU."""
        return bool(self.auto) or self.checkpoint.startswith(NAMED) or self.transparent

    @property
    def transparent(self) -> bool:
        """Whether it is CRIU that writes it."""
        return self.checkpoint.partition(":")[0] == TRANSPARENT

    @property
    def shown(self) -> dict[str, object]:
        """For the record."""
        return {"movable": self.movable, "checkpoint": self.checkpoint, "lost_s": self.lost_s}


def choice(line: CommandLine) -> Choice:
    """Check our options. Raises UsageError for a value that is not allowed."""
    values = dict(line.pal)
    wanted = values.get("class", "")
    if "class" in values and wanted not in SENSITIVITY_CLASSES:
        allowed = ", ".join(SENSITIVITY_CLASSES)
        raise UsageError(f"--pal-class {wanted!r} is not one of {allowed}; see palsub --pal-help")
    policy = values.get("policy", "")
    if "policy" in values:
        from slurm_pal.placement import POLICIES

        if policy not in POLICIES:
            raise UsageError(f"--pal-policy {policy!r} is not one of {', '.join(POLICIES)}; see palsub --pal-help")
    lost_s = values.get("movable")
    if lost_s and not _is_seconds(lost_s):
        raise UsageError(f"--pal-movable={lost_s!r} is not a whole number of seconds, such as --pal-movable=600")
    observe = values.get("observe")
    if observe and not _is_seconds(observe):
        raise UsageError(f"--pal-observe={observe!r} is not a whole number of seconds, such as --pal-observe=300")
    if "checkpoint" in values and not values["checkpoint"].strip():
        raise UsageError("--pal-checkpoint needs a shell command or the name of a signal, such as USR1")
    return Choice(
        sensitivity=wanted, app=values.get("app", ""), policy=policy, movable=lost_s,
        checkpoint=values.get("checkpoint", "").strip(), observe=observe, elastic=values.get("elastic"),
        elastic_partition=values.get("elastic-partition"), elastic_hook=values.get("elastic-hook"),
        fork=values.get("fork"), goal=values.get("goal"),
        alt=tuple(value for name, value in line.pal if name == "alt"),
        input=values.get("input"),
        avoid_slow=_bound(values.get("avoid-slow")),
        save_before=values.get("save-before"), save_times=values.get("save-times"),
        off="off" in values, dry_run="dry-run" in values, explain="explain" in values,
        json="json" in values, watch="watch" in values, note="note" in values, help="help" in values,
    )  # fmt: skip


def is_bound(text: str) -> bool:
    """Whether a text is a slowdown that can be a bound: above 1, below 10."""
    whole, _, part = text.partition(".")
    plain = digits(whole) is not None and len(whole) == 1 and (not part or (digits(part) is not None and len(part) < 5))
    return plain and 1.0 < float(text) < 10.0


def _bound(said: str | None) -> str | None:
    if said and not is_bound(said):
        raise UsageError(
            f"--pal-avoid-slow={said!r} is not a slowdown between 1.0 and 10, such as --pal-avoid-slow=1.10 for GPUs "
            "that are 10 % slower than the median"
        )
    return said


def sensitivity(
    chosen: Choice,
    environment: Mapping[str, str],
    directives: tuple[tuple[str, str], ...],
    apps: Mapping[str, str],
    warnings: list[str],
) -> tuple[str, str]:
    """What the user stated: (class, where), or ("?", ...). A wrong value outside the command line causes a
    warning and is ignored.

    The script's own words rank above the variable: jobs that another job submits inherit its environment.

    Raises UsageError for an unknown --pal-app.
    """
    if chosen.sensitivity:
        return chosen.sensitivity, "--pal-class"
    if chosen.app:
        from slurm_pal.sensitivity.catalogue import class_of

        return class_of(chosen.app, apps), f"--pal-app {chosen.app}"
    for key, _ in directives:
        if key not in DIRECTIVES:
            warnings.append(f"#PAL {key} is unknown and ignored; known are {', '.join(DIRECTIVES)}")
    named = dict(directives)
    if said := _one_class("#PAL class", named.get("class"), warnings):
        return said
    if said := _of_app("#PAL app", named.get("app"), apps, warnings):
        return said
    if said := _one_class("$SLURM_PAL_CLASS", variable(environment, "CLASS"), warnings):
        return said
    return _of_app("$SLURM_PAL_APP", variable(environment, "APP"), apps, warnings) or (UNKNOWN_CLASS, DEFAULT_WHY)


def _of_app(origin: str, app: str | None, apps: Mapping[str, str], warnings: list[str]) -> tuple[str, str] | None:
    """The same for the name of an application."""
    if not app:
        return None
    from slurm_pal.sensitivity.catalogue import class_of

    try:
        return class_of(app, apps), f"{origin}={app}"
    except UsageError as error:
        warnings.append(f"{origin}: {error}")
        return None


def variable(environment: Mapping[str, str], name: str) -> str | None:
    """SLURM_PAL_NAME as the user has set it; None without it.

    A job's options are in its environment, too, for its steps, each with a mark beside it: they are no words about
    the jobs that it submits.
    """
    value = environment.get(f"SLURM_PAL_{name}")
    return None if value == environment.get(f"SLURM_PAL_JOB_{name}") else value


def _one_class(origin: str, value: str | None, warnings: list[str]) -> tuple[str, str] | None:
    """What one source says: (class, where); None for nothing, or for a wrong value, which causes a warning."""
    if value in SENSITIVITY_CLASSES:
        return value, origin
    if value is not None:
        warnings.append(f"{origin} = {value!r} is not one of {', '.join(SENSITIVITY_CLASSES)} and is ignored")
    return None


def moving(
    chosen: Choice, environment: Mapping[str, str], directives: tuple[tuple[str, str], ...], warnings: list[str]
) -> Moving:
    """Whether the job may be moved, by command line, environment and script.

    A wrong value outside the command line causes a warning and is ignored. SLURM_PAL_MOVABLE=0
    overrides the script.
    """
    named = dict(directives)
    variable = environment.get("SLURM_PAL_MOVABLE", "")
    if variable not in ("", "0", "1"):
        warnings.append(f"$SLURM_PAL_MOVABLE = {variable!r} is neither 0 nor 1 and is ignored")
    by_option = chosen.movable is not None or chosen.checkpoint not in ("", NONE)
    if variable == "0" and not by_option:
        return Moving(auto=False)
    in_script = named.get("movable")
    if in_script and not _is_seconds(in_script):
        warnings.append(f"#PAL movable = {in_script!r} is not a whole number of seconds and is ignored")
        in_script = None
    if named.get("checkpoint") == "":
        warnings.append("#PAL checkpoint= lacks its command and is ignored")
    in_environment = environment.get("SLURM_PAL_CHECKPOINT", "").strip()
    said = [word for word in (chosen.checkpoint, in_environment, named.get("checkpoint", "")) if word]
    auto = said[0] == AUTO if said else None
    checkpoint = next((word for word in said if word not in (AUTO, NONE)), "") if auto else "".join(said[:1])
    checkpoint = "" if checkpoint == NONE else checkpoint
    restarts = bool(chosen.movable is not None or variable == "1" or in_script is not None)
    return Moving(restarts or bool(checkpoint), checkpoint, chosen.movable or in_script or "", restarts, auto)


def _is_seconds(text: str) -> bool:
    return digits(text) is not None and len(text) <= _MOST_DIGITS


def observing(
    chosen: Choice, directives: tuple[tuple[str, str], ...], site_s: float, warnings: list[str]
) -> tuple[float, bool]:
    """(the seconds for which the job is observed, 0 for not at all; whether its user asked for that).

    `site_s` is the time that the site wants for every job.
    """
    said, origin = chosen.observe, "--pal-observe"
    if said is None:
        said, origin = dict(directives).get("observe"), "#PAL observe"
    if said and not _is_seconds(said):
        warnings.append(f"{origin} = {said!r} is not a whole number of seconds and is ignored")
        said = None
    if said is None:
        return site_s, False
    seconds = float(said) if said else site_s or OBSERVE_S
    return seconds, seconds > 0
