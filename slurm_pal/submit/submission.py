# SPDX-License-Identifier: MIT
"""One submission from command line to sbatch. Any failure on our side ends in plain sbatch."""

from __future__ import annotations

import os
import sys
import time

from slurm_pal.base.errors import Exit, PalError, SlurmError, UsageError, one_line
from slurm_pal.base.light import signal, suppress
from slurm_pal.slurm.rest_program import BY_SBATCH, MAY_EXIST, NOT_BY_REST, SbatchProgram, stand_in
from slurm_pal.submit import argv as argv_module
from slurm_pal.submit import choice as choices
from slurm_pal.submit import run_sbatch
from slurm_pal.submit.argv import CommandLine
from slurm_pal.submit.choice import (
    AUTO,
    HELP,
    NO_SAVING,
    SITES_SAY,
    Choice,
    Moving,
    Saving,
    moving,
    observing,
    sensitivity,
    variable,
)
from slurm_pal.submit.processes import runner, which
from slurm_pal.submit.script import PLUGIN_NOTE, Script, from_file, from_stdin, scan

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_pal.base.config import Config
    from slurm_pal.submit.alternatives import Choices
    from slurm_pal.submit.asked import Asked
    from slurm_pal.submit.auto_checkpoint import Means
    from slurm_pal.submit.elastic import Elastic
    from slurm_pal.submit.planner import SubmissionPlan

REFUSALS = (
    b"node configuration", b"node name", b"ode count", b"eature specification", b"unrecognized option",
    b"is ambiguous", b"artition", b"CPU count", b"processors requested", b"QOS policy", b"time limit",
    NOT_BY_REST.encode(),
)  # fmt: skip
"""What sbatch prints if our words may be the cause: then plain sbatch is run."""
LOST = (
    b"timed out", b"Zero Bytes", b"ommunication", b"Message send failure", b"Message receive failure",
    b"Unable to contact",
)  # fmt: skip
"""What it prints after a time-out or a lost connection (slurm/slurm_errno.h): the job may have been accepted. A plug-in
of the site may have said something else before."""


def warn(text: str) -> None:
    """One line on stderr."""
    with suppress(OSError):
        os.write(2, f"palsub: {text}\n".encode(errors="replace"))


def main(words: list[str], asked: Asked) -> int:
    """Run palsub with the words after the program name; the exit code. `asked`: Slurm may have been asked already.

    Raises KeyboardInterrupt when the user interrupts before sbatch has been started.
    """
    try:
        line = argv_module.parse(words, PluginOptions())
        chosen = choices.choice(line)
        if chosen.help:
            from slurm_pal.submit import show

            return show.written(HELP.removesuffix("\n"), 1)
        path, forbidden = which("sbatch")
        program = SbatchProgram(path) if path is not None else _by_rest()
        if program is None:  # as a shell says it, with a shell's codes
            warn(f"sbatch: {'Permission denied' if forbidden else 'command not found'}")
            return 126 if forbidden else 127
        return Submission(program, line, chosen, asked).run()
    except UsageError as error:
        warn(one_line(error))
        return Exit.USAGE
    finally:
        asked.end()


def _by_rest() -> SbatchProgram | None:
    """The program that submits through slurmrestd, where the site has chosen that."""
    from slurm_pal.base.config import load

    try:
        return stand_in() if load().text("slurm", "backend") == "rest" else None
    except PalError as error:
        warn(one_line(error))
        return None


class PluginOptions:
    """Runs `sbatch --help` once, for options that only the site's plug-ins know."""

    def __init__(self) -> None:
        self._known: dict[str, int] | None = None

    def __call__(self) -> dict[str, int]:
        if self._known is None:
            from slurm_pal.submit.options_table import from_help

            try:
                self._known = from_help(runner(5.0)(["sbatch", "--help"], "").stdout)
            except SlurmError:
                self._known = {}
        return self._known


class _NotTwice(PalError):
    """The script can be read only once, and sbatch must read it."""


def _may_be_ours(held: bytes) -> bool:
    """Whether sbatch, or what stands in for it, refused the job and perhaps because of our words."""
    said = [line for line in held.split(b"\n") if not line.startswith(f"palsub: {BY_SBATCH}".encode())]
    sent = any(line.startswith(f"palsub: {MAY_EXIST}".encode()) or any(map(line.__contains__, LOST)) for line in said)
    return not sent and any(text in line for line in said for text in REFUSALS)


def _refusal(held: bytes) -> str:
    """Why palsub's own words are left out, by what sbatch said, or what stands in for it."""
    said = held.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("palsub: not submitted: ")
    return said if NOT_BY_REST in said else "sbatch refused the words added by palsub"


def _words(line: CommandLine, added: Sequence[str] = ()) -> list[str]:
    return ["sbatch", *line.before, *added, *line.after]


def _both(config: Config) -> str:
    """The partitions of a guest where guests have one more to wait in, else ""."""
    guest, waits = config.text("loan", "guest"), config.text("loan", "waits")
    return f"{guest},{waits}" if guest and waits else ""


def _site_saves(config: Config) -> bool:
    """Whether the site wants checkpoints found for any jobs whose users do not say."""
    return config.text("submit", "checkpoint") == AUTO or any(config.text("submit", key) for key in SITES_SAY)


class Submission:
    """One command line on its way to sbatch."""

    def __init__(self, program: SbatchProgram, line: CommandLine, chosen: Choice, asked: Asked) -> None:
        self._program, self._line, self._choice, self._asked = program, line, chosen, asked
        self._first = program  # what was found in PATH, if anything
        self._stdin: int | None = None  # a copy for sbatch, if we had to read its stdin
        self._offset: int | None = None  # the position of its stdin
        self._partitions = ""  # of a guest: both that it waits in
        self._warnings: list[str] = []
        self._wrapper = ""  # the file that sbatch gets instead of the script
        self._script: Script | None = None
        self._elastic: Elastic | None = None
        self._wanted: Choices | None = None  # what there is to choose from, if anything
        self._means: Means | None = None  # how the job saves, where its user leaves that to us
        self._again_line = line  # if sbatch refuses the words that we add

    @property
    def _plain(self) -> list[str]:
        return _words(self._sheltered(self._line))

    @property
    def _plainly(self) -> str:
        """What becomes of a job for which nothing is decided."""
        return "submitted as plain sbatch" if self._program.path != sys.executable else "not placed"

    def run(self) -> int:
        """Decide and submit; the exit code."""
        try:
            return self._run_checked()
        finally:
            self._unwrap()

    def _run_checked(self) -> int:
        if self._nothing_to_do():
            return self._become_sbatch()
        try:
            planned = self._plan()
        except _Typo as error:
            warn(one_line(error))
            return Exit.USAGE
        except _NotTwice as error:
            return self._show_plain(str(error)) if self._choice.dry_run else self._become_sbatch()
        except Exception as error:  # the boundary at which each of our failures becomes plain sbatch
            text = one_line(error) if isinstance(error, PalError) else f"{type(error).__name__}: {one_line(error)}"
            if self._choice.dry_run:
                return self._show_plain(text)
            if isinstance(error, SlurmError):  # slurmrestd would not take the job either
                self._program = self._first
            warn(f"{self._plainly}: {text}")
            return self._become_sbatch()
        if planned is None:
            return self._show_plain("switched off") if self._choice.dry_run else self._become_sbatch()
        for text in self._warnings:
            warn(text)
        if self._choice.dry_run:
            return self._dry_run(planned)
        if planned.trouble:
            how = "submitted without placement" if self._elastic or planned.place else self._plainly
            warn(f"{how}: {planned.trouble}")
        try:
            return self._submit(planned)
        except run_sbatch.NotStarted as error:
            self._forget(planned)
            if planned.words != self._plain:  # too long for the system, perhaps
                warn(f"{self._plainly}: {self._program.path}: {error}")
            return self._become_sbatch()
        except Exception as error:  # sbatch has run: never submit a second time
            warn(f"{type(error).__name__} after sbatch was started: {one_line(error)}")
            return Exit.FAILED if run_sbatch.ended is None else run_sbatch.leave(run_sbatch.ended)

    def _nothing_to_do(self) -> bool:
        if self._choice.dry_run:
            return False
        return self._switched_off() or self._line.has("help", "usage", "version") or not _three_streams()

    def _switched_off(self) -> bool:
        return self._choice.off or (variable(os.environ, "OFF") or "0") != "0"

    def _become_sbatch(self) -> int:
        self._asked.end()
        self._unwrap()
        try:
            run_sbatch.replace(self._program.path, self._program.argv(self._plain), self._stdin)
        except OSError as error:
            warn(f"{self._program.path}: {error.strerror}")
        return 126

    def _plan(self) -> SubmissionPlan | None:
        """The plan, or None when the site or the user has switched us off."""
        script = self._read_script()
        if script is not None:
            script = script.understood(PluginOptions())
            if any(name == "pal-off" for name, _ in script.options.found):
                return None
        from slurm_pal.submit.asked import likely

        try:
            if likely(self._line, script, os.environ):
                with suppress(SlurmError):  # tried again once it is known how Slurm is asked
                    self._asked.begin(self._line.has("reservation"))
            return self._planned(script)
        finally:
            self._asked.end()

    def _planned(self, script: Script | None) -> SubmissionPlan | None:
        from slurm_pal.base import config as configs

        config = configs.load()
        if not config.flag("submit", "enabled") or self._switched_off():
            return None
        if config.text("slurm", "backend") == "rest":
            self._program = stand_in()
            self._asked.by_rest(config)
        try:
            stated = sensitivity(self._choice, os.environ, script.pal if script else (), config.apps, self._warnings)
        except UsageError as error:
            raise _Typo(str(error)) from None
        from slurm_pal.submit.known import verdict

        self._script = script
        self._shelter(script, config)
        self._grow(script, config)
        self._alternate(script, config)
        known = verdict(stated, self._line, script, config, os.environ)
        moves, saving = self._moving(script, config)
        named = self._named(script)
        sent, changed, seconds = self._observe(named, config)
        noted = self._noted(script)
        if moves.checkpoint or self._elastic or noted:
            moves, saving, sent, noted = self._wrap(moves, saving, sent, changed, config, noted)
        if self._elastic:
            self._again_line = sent
        elif (seconds or named is not script) and not (moves.checkpoint or noted):
            sent, seconds = self._send(sent, changed, seconds)
        from slurm_pal.submit.planner import plan, prepare

        planned = plan(
            self._line, self._choice, script, config, known, self._warnings, moves, self._sheltered(sent),
            self._asked, elastic=self._elastic, wanted=self._wanted, saving=saving,
        )  # fmt: skip
        self._choose(planned)
        planned.made["observed_s"] = seconds
        planned.made["note"] = noted
        planned.made["checkpoint"] = self._means.shown if self._means else None
        if self._elastic:
            planned.made["elastic"] = self._elastic.shown(self._line)
        if not self._choice.dry_run:
            prepare(planned)
        return planned

    def _read_script(self) -> Script | None:
        """The script's directives; None with --wrap, which has none.

        Raises _NotTwice when it must be left for sbatch to read.
        """
        if self._line.has("wrap"):
            return None
        if self._line.script is not None:
            chdir = next((value for name, value in reversed(self._line.options) if name == "chdir"), None)
            return from_file(self._line.script, chdir)
        given = from_stdin()
        if given is None:
            reason = "the script comes from a terminal or a device, which is read only once"
            if self._wants_elastic(None):
                raise _Typo(f"the job cannot be elastic: {reason}")
            raise _NotTwice(reason)
        self._stdin = given.stdin
        self._offset = os.lseek(0 if given.stdin is None else given.stdin, 0, os.SEEK_CUR)
        return scan(given.body)._replace(body=given.body)

    def _shelter(self, script: Script | None, config: Config) -> None:
        """A guest waits in loan.waits, too, which is down: Slurm refuses jobs that no open node fits."""
        guest, both = config.text("loan", "guest"), _both(config)
        if not both or self._line.hetjob or (script and script.hetjob):
            return
        from slurm_pal.decide.request import Conflict
        from slurm_pal.submit.options import merge

        with suppress(Conflict, UsageError):
            if merge(self._line, os.environ, script).get("partition") == guest:
                self._partitions = both

    def _sheltered(self, line: CommandLine) -> CommandLine:
        """The command line for sbatch, whose last --partition counts."""
        added = [f"--partition={self._partitions}"] if self._partitions else []
        return line._replace(before=(*line.before, *added))

    def _grow(self, script: Script | None, config: Config) -> None:
        """Whether the job is elastic: then the number of its nodes is as good as typed by the user.

        Raises _Typo for what cannot be elastic.
        """
        if not self._wants_elastic(script):
            return
        from slurm_pal.submit import elastic

        try:
            guest = config.text("loan", "guest")
            wanted = elastic.asked(self._choice, os.environ, script, guest)
            if wanted is not None:
                if wanted.partition == guest:
                    wanted = wanted._replace(partition=_both(config) or guest)
                self._elastic, self._line = elastic.checked(wanted, self._line, os.environ, script)
        except UsageError as error:
            raise _Typo(str(error)) from None

    def _alternate(self, script: Script | None, config: Config) -> None:
        """What the job has to choose from. Raises _Typo."""
        chosen, directives = self._choice, script.pal if script else ()
        stated = chosen.goal is not None or chosen.alt or variable(os.environ, "GOAL") is not None
        stated = stated or any(name in ("goal", "alt") for name, _ in directives)
        if not stated and config.text("submit", "goal") == "time":
            return
        from slurm_pal.submit import alternatives

        try:
            wanted = alternatives.wanted(
                chosen, os.environ, self._line, script, config, time.time(), self._warnings
            )  # fmt: skip
        except UsageError as error:
            raise _Typo(str(error)) from None
        if wanted and self._elastic:
            self._warnings.append("an elastic job has no choice of places: its goal and alternatives are ignored")
            wanted = None
        self._wanted = wanted

    def _named(self, script: Script | None) -> Script | None:
        """The script with PAL_ALT set in it, where a shell runs it."""
        if script is None or not (self._wanted and self._wanted.declared):
            return script
        from slurm_pal.submit import alternatives
        from slurm_pal.submit.checkpoint import CannotWrap

        try:
            return script._replace(body=alternatives.with_name(script.body, self._wanted))
        except CannotWrap:  # sbatch hands the variable on, unless --export says otherwise
            return script

    def _choose(self, planned: SubmissionPlan) -> None:
        """The options of the place chosen are as good as typed by the user, also if sbatch refuses our other words."""
        if planned.place is None or self._wanted is None:
            return
        from slurm_pal.submit.alternatives import line_for

        self._again_line = line_for(self._again_line, planned.place)
        if self._wanted.declared:
            os.environ["PAL_ALT"] = planned.place.name

    def _wants_elastic(self, script: Script | None) -> bool:
        chosen = self._choice
        asked = (chosen.elastic, chosen.elastic_partition, chosen.elastic_hook, chosen.fork)
        return (
            any(said is not None for said in asked)
            or any(variable(os.environ, name) is not None for name in ("ELASTIC", "FORK"))
            or any(name in ("elastic", "fork") for name, _ in (script.pal if script else ()))
        )

    def _moving(self, script: Script | None, config: Config) -> tuple[Moving, Saving]:
        """Whether the job may be moved, if it is an ordinary batch job, and how it saves; what happens before its time
        limit. Raises _Typo."""
        asked = moving(self._choice, os.environ, script.pal if script else (), self._warnings)
        wanted = self._saves(asked, script, config)
        saving = self._saving(script, wanted, config)
        if not wanted.movable:
            return wanted, saving
        from slurm_pal.submit.movable import terms

        obstacle = terms(self._line, os.environ, script).obstacle
        if not obstacle:
            return wanted, saving
        if saving.array:  # Slurm requeues a task by itself
            self._warnings.append(f"submitted as not movable, but to be continued: {obstacle}")
            return Moving(checkpoint=wanted.checkpoint), saving
        if asked.movable or asked.auto or saving.before_s:
            lost = " and not to be continued after its time limit" if saving.before_s else ""
            self._warnings.append(f"submitted as not movable{lost}: {obstacle}")
        if self._means:
            self._means = self._means._replace(name="none", why=obstacle, recipe=None)
        return Moving(), NO_SAVING

    def _saves(self, asked: Moving, script: Script | None, config: Config) -> Moving:
        """What the user asks for, with a checkpoint that is found for the job. Raises _Typo."""
        if not asked.left_to_palsub and (asked.auto is not None or asked.checkpoint or not _site_saves(config)):
            return asked
        from slurm_pal.submit import auto_checkpoint

        among = auto_checkpoint.wanted(asked, self._line, os.environ, script, config)
        if among is None:
            return asked
        try:
            self._means = auto_checkpoint.found(
                asked, self._line, os.environ, script, config, self._elastic is not None, among, self._warnings
            )
        except UsageError as error:
            if self._choice.checkpoint == asked.checkpoint:
                raise _Typo(str(error)) from None
            self._warnings.append(f"{one_line(error)}; ignored")
            return asked._replace(checkpoint="", movable=asked.restarts)
        return self._means.moving if self._means else asked

    def _saving(self, script: Script | None, moves: Moving, config: Config) -> Saving:
        chosen = self._choice
        asked = chosen.save_before is not None or chosen.save_times is not None
        asked = asked or variable(os.environ, "SAVE_BEFORE") is not None
        if not asked and not any(name in ("save-before", "save-times") for name, _ in (script.pal if script else ())):
            return NO_SAVING
        from slurm_pal.submit.saving import saving

        most_times = int(config.number("submit", "save_times_max"))
        try:
            return saving(chosen, os.environ, self._line, script, moves, most_times, self._warnings)
        except UsageError as error:
            raise _Typo(str(error)) from None

    def _observe(self, script: Script | None, config: Config) -> tuple[CommandLine, Script | None, float]:
        """Put an observer before the script's first command: command line, script, and time in s (0: no observer).

        A failure costs the observation, not the job; it is reported only if the user asked for an observer.
        """
        directives = script.pal if script else ()
        site_s = config.number("sensitivity", "observe_s")
        seconds, asked = observing(self._choice, directives, site_s, self._warnings)
        if seconds:
            from slurm_pal.submit import observing as observers

            try:
                observers.check(self._line, os.environ, script, asked)
                line, changed = observers.observed(self._line, script, config, seconds, PluginOptions())
                return line, changed, seconds
            except PalError as error:
                if asked:
                    self._warnings.append(f"the job is not observed: {one_line(error)}")
        return self._line, script, 0.0

    def _send(self, line: CommandLine, script: Script | None, seconds: float) -> tuple[CommandLine, float]:
        """Write the script with the observer to where sbatch finds it; the command line that names it."""
        from slurm_pal.submit import checkpoint
        from slurm_pal.submit import observing as observers

        if self._choice.dry_run and not line.has("wrap"):
            return self._line, seconds  # the copy of the script would be gone again
        path, text, sent = observers.sending(line, script)
        if path:
            try:
                self._wrapper = path
                checkpoint.write(path, text)
            except OSError as error:
                self._warnings.append(f"the job is not observed: {path} cannot be written ({error.strerror})")
                return self._line, 0.0
        return sent, seconds

    def _noted(self, script: Script | None) -> bool:
        """Whether the wrapper is to end the job's output with a line about its GPUs: not if the plug-in will."""
        directives = script.pal if script else ()
        asked = self._choice.note or variable(os.environ, "NOTE") or any(name == "note" for name, _ in directives)
        if not asked or (script and any(name == PLUGIN_NOTE for name, _ in script.options.found)):
            return False
        from slurm_pal.submit import note

        return note.wanted(self._choice, os.environ, directives, self._warnings)

    def _wrap(
        self, moves: Moving, saving: Saving, line: CommandLine, script: Script | None, config: Config, noted: bool
    ) -> tuple[Moving, Saving, CommandLine, bool]:
        """Put the script into the wrapper that makes checkpoints, of an elastic job counts workers, and has the note.

        Returns the new command line, and whether there will be a note. A failure costs checkpoint and note, not the
        job; that of an elastic job is raised.
        """
        from slurm_pal.submit import checkpoint

        try:
            part = b""
            if self._elastic:
                from slurm_pal.submit import elastic

                part = elastic.part(self._elastic, None)
            elif moves.transparent:
                from slurm_pal.submit import transparent

                part = transparent.part(moves.checkpoint, config)
            command, first = moves.checkpoint, ""
            if self._means and (recipe := self._means.recipe):
                from slurm_pal.submit import recipes

                command, first = recipes.command(recipe, self._means.file), recipes.END_SCRIPT if recipe.ends else ""
            words: tuple[str, ...] = ()
            if noted:
                from slurm_pal.submit import note

                words = note.command(config)
            path, text, sent = checkpoint.wrapped(line, script, command, PluginOptions(), part, first, saving, words)
            if self._choice.dry_run:
                return moves, saving, self._line, noted
            self._wrapper = path
            checkpoint.write(path, text)
        except (PalError, OSError) as error:
            if self._elastic:
                raise
            if noted:
                self._warnings.append(f"no line about its GPUs at the job's end: {one_line(error)}")
            if not moves.checkpoint:
                return moves, saving, line, False
            kept = moves.restarts or not (moves.transparent or (self._means and self._means.recipe))
            left = "movable without one" if moves.movable and kept else "not movable" if moves.movable else ""
            left = left or "not continued after its time limit"
            self._warnings.append(f"no checkpoint for this job: {one_line(error)}; {left}")
            if self._means:
                self._means = self._means._replace(name="requeue" if kept else "none", why=one_line(error), recipe=None)
            # Without the wrapper Slurm's notice would kill it.
            return moves._replace(checkpoint="", movable=moves.movable and kept), NO_SAVING, line, False
        return moves, saving, sent, noted

    def _unwrap(self) -> None:
        """sbatch has read the wrapper, or never will."""
        if self._wrapper:
            from slurm_pal.submit.checkpoint import remove

            remove(self._wrapper)
            self._wrapper = ""

    def _show_plain(self, reason: str) -> int:
        from slurm_pal.submit import show

        return show.dry_run(self._plain, [f"plain sbatch: {reason}"])

    def _dry_run(self, planned: SubmissionPlan) -> int:
        from slurm_pal.submit import show

        if self._choice.json:
            return show.as_json(planned.made, 1)
        wrapped = (planned.made["movable"] or {}).get("checkpoint") or planned.made["saving"]
        observed = planned.made["observed_s"] and (wrapped or not self._line.has("wrap"))
        parts = [*(["an observer"] if observed else []), *(["the checkpoint command"] if wrapped else [])]
        parts += ["the count of its workers"] if self._elastic else []
        parts += ["the line at its end"] if planned.made["note"] else []
        copy = [f"sbatch would get a copy of the script, with {' and '.join(parts)}"] if parts else []
        return show.dry_run(planned.words, [*copy, *show.lines(planned.made)])

    def _submit(self, planned: SubmissionPlan) -> int:
        if self._choice.explain:
            from slurm_pal.submit import show

            for text in show.lines(planned.made):
                warn(text)
        careful = planned.words != _words(self._line)
        ended = self._run(planned, planned.words, careful)
        if ended.job_id is None:
            self._forget(planned)
            words = _words(self._again_line, planned.word)
            ours = careful and planned.words != words and _may_be_ours(ended.held)
            if ours and ended.status > 0:
                return self._again(planned, words, _refusal(ended.held))
            run_sbatch.show_held(ended)
        return self._end(planned, ended)

    def _again(self, planned: SubmissionPlan, words: list[str], why: str) -> int:
        """sbatch refused, perhaps because of our words: leave them out, but for the one by which ticks know the job."""
        if self._offset is not None:
            os.lseek(0 if self._stdin is None else self._stdin, self._offset, os.SEEK_SET)
        planned.made |= {"action": "none", "reason": why}
        planned.made |= {"added": planned.word, "argv": words, "lease": None, "movable": None, "observed_s": 0.0}
        planned.made |= {"saving": None, "note": False}
        planned.lease = None
        ended = self._run(planned, words, careful=False)
        if ended.status == 0:
            warn(f"{self._plainly}: {why}")
        return self._end(planned, ended)

    def _run(self, planned: SubmissionPlan, words: list[str], careful: bool) -> run_sbatch.SbatchExit:
        from slurm_pal.submit.planner import submitted

        def on_job(job_id: int) -> None:
            try:
                self._unwrap()
                for text in submitted(planned, job_id):
                    warn(text)
            except Exception as error:  # sbatch must be listened to until its end
                warn(f"job {job_id} was submitted, but not recorded: {type(error).__name__}: {one_line(error)}")

        def meanwhile() -> None:
            if planned.lease is not None:
                with suppress(Exception):  # `on_job` will say so
                    from slurm_pal.submit import watcher  # noqa: F401

        return run_sbatch.run(
            self._program.path,
            self._program.argv(words),
            self._stdin,
            careful=careful,
            parsable=planned.parsable,
            on_job=on_job,
            meanwhile=meanwhile,
        )

    def _accompany(self, wanted: Elastic, planned: SubmissionPlan, base: int) -> None:
        """Submit the companions. Whatever fails here, the base job is submitted, and goes on with those it has."""
        from slurm_pal.submit import checkpoint, elastic
        from slurm_pal.submit.planner import accompanied

        made: list[int] = []
        try:
            self._wrapper, body, sent = elastic.wrapped(wanted, self._line, self._script, base, PluginOptions())
            checkpoint.write(self._wrapper, body)
            made, trouble = elastic.submit(self._program, elastic.companions(wanted, sent, base))
        except (PalError, OSError) as error:
            trouble = one_line(error)
        finally:
            self._unwrap()
        for text in accompanied(planned, base, made, trouble):
            warn(text)
        if self._choice.explain:
            for number, job_id in enumerate(made, 1):
                warn(f"companion {job_id} may join {wanted.spacing_s * number:g} s from now")

    def _forget(self, planned: SubmissionPlan) -> None:
        from slurm_pal.submit.planner import forget

        forget(planned)

    def _end(self, planned: SubmissionPlan, ended: run_sbatch.SbatchExit) -> int:
        if self._elastic and ended.status == 0:
            if ended.job_id is not None:
                self._accompany(self._elastic, planned, ended.job_id)
            elif not self._line.has("test-only"):
                warn("the job has no companions: sbatch did not print its number (--quiet hides it)")
        if self._choice.json:
            from slurm_pal.submit import show

            show.as_json(planned.made, 2)
        if self._choice.explain and "unsaved" in planned.made:
            warn(f"the decision could not be kept for pal explain: {planned.made['unsaved']}")
        return run_sbatch.leave(-signal.SIGPIPE if ended.broken and ended.status == 0 else ended.status)


class _Typo(UsageError):
    """A value of a --pal- option that only the configuration could show to be wrong."""


def _three_streams() -> bool:
    """Whether stdin, stdout and stderr are open: otherwise our own descriptors would take their place."""
    try:
        for descriptor in (0, 1, 2):
            os.fstat(descriptor)
    except OSError:
        return False
    return True
