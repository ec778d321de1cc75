# SPDX-License-Identifier: MIT
"""pal setup: slurm-pal on a site, by one command; and all of it taken back by another."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from slurm_pal.admin import check, machine, record, services, setup, shipped, site_files
from slurm_pal.admin.changes import ChangePlan, SiteFiles, installed_parts
from slurm_pal.admin.machine import Account
from slurm_pal.admin.setup import Todo
from slurm_pal.base import config as configuration
from slurm_pal.base.config import Config
from slurm_pal.base.errors import ConfigError, Exit, PalError, SlurmError, UsageError, one_line
from slurm_pal.base.files import locked
from slurm_pal.cli import common, site_changes
from slurm_pal.emulation import gpus as emulated
from slurm_pal.leases import promise
from slurm_pal.report.check_result import CheckResult
from slurm_pal.slurm.cli import CliClient, subprocess_runner

ASK_TIMEOUT_S = 15.0
COMMAND_TIMEOUT_S = 120.0
END_WAIT_S = 60.0  # a publisher takes lists back before it ends
AUTO = "auto"
CONTROLLER, LOGIN = "controller", "login"


@click.command(name="setup")
@click.option("--undo", is_flag=True, help="Take back all that setup has written here; measurements stay.")
@click.option("--purge", is_flag=True, help="With --undo: remove the measurements, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask: the options, and defaults for the rest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be written.")
@click.option("--conf", metavar="DIR|FILE", help="The slurm.conf. Default: $SLURM_CONF, else /etc/slurm.")
@click.option("--role", type=click.Choice([AUTO, CONTROLLER, LOGIN]), default=AUTO, show_default=True,
              help="What this host is; auto: by SlurmctldHost. A login node gets only what users need.")  # fmt: skip
@click.option("--state-dir", metavar="DIR", help="Measurements, on this host's disk. Default: paths.state_dir.")
@click.option("--shared", metavar="DIR", help="Folder that all nodes see, for sweep results and published scores.")
@click.option("--prefix", metavar="DIR", help="Programs, completions, man pages. Default: /usr/local, or ~/.local.")
@click.option(
    "--filter/--no-filter",
    "with_filter",
    default=None,
    help="The submit filter in slurmctld: sbatch's jobs are placed, too.",
)
@click.option("--spank/--no-spank", "with_spank", default=None, help="The plug-in: sbatch gets --pal-class.")
@click.option("--plugin", metavar="PATH", help="pal_spank.so. Default: where Slurm's plug-ins or ours are.")
@click.option("--service", type=click.Choice([AUTO, *machine.KEEPERS]), default=AUTO, show_default=True,
              help="What keeps the publisher and the lease guard running; auto: systemd, else cron.")  # fmt: skip
@common.json_option
@common.color_option
@common.verbose_option
@click.pass_context
def setup_command(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401
    """Set slurm-pal up on this site: show all that would be written, ask, and write it.

    State folders, pal.toml, services, links to the programs, completions, man pages; with --filter and --spank also
    the filter and the plug-in inside Slurm. What is there already is kept. Then the checks of `pal doctor`.

    \b
    Examples:
      pal setup                        asks, shows, asks again
      pal setup --dry-run --filter     what would be written
      pal setup --yes --shared /gpfs/slurm-pal
      pal setup --undo                 take it back; files that were changed since stay
      pal setup --undo --purge         and remove the measurements

    Run it as root where slurmctld runs, and on login nodes, which get programs only. Without a terminal and
    without --yes nothing is written, and the exit code is 1.
    """
    if options["purge"] and not options["undo"]:
        raise UsageError("--purge removes measurements, and only --undo does that: pal setup --undo --purge")
    path = site_files.find_conf(options["conf"])
    os.environ["SLURM_CONF"] = path
    texts = site_files.conf_texts(path)
    if not options["undo"]:
        machine.check_conf(path, texts)
    user = machine.slurm_user(path, texts)
    if os.geteuid() not in (0, user.uid) and not options["dry_run"]:
        raise PalError(f"only root and SlurmUser ({user.name}) may set slurm-pal up: sudo pal setup, or --dry-run")
    notes = _safe_path(user)
    job = _Job(context, options, path, user)
    code = job.undo(notes) if options["undo"] else job.install(notes, machine.is_controller(path, texts))
    context.exit(code)


class _Job:
    """One run of the command."""

    def __init__(self, context: click.Context, options: dict[str, Any], conf: str, user: Account) -> None:
        self.options, self.conf, self.user = options, conf, user
        self.as_json = bool(options["as_json"])
        self.asks = not (options["yes"] or options["dry_run"] or self.as_json) and _at_terminal()
        self.record_path = record.path_for(conf)
        self.known = record.read(self.record_path)
        self.lab = emulated.find_registry(os.environ) is not None

    def install(self, notes: ChangePlan, controller: bool) -> int:
        from slurm_pal.cli import manual

        options = self.options
        if options["role"] != AUTO:
            controller = options["role"] == CONTROLLER
        config, running = configuration.load(), _running()
        choices = self.choices(
            site_files.read(self.conf, config, options["plugin"], running.get("PluginDir", "")), controller
        )
        settled, config = setup.settings(config, choices, self.known)
        site = site_files.read(self.conf, config, options["plugin"], running.get("PluginDir", ""))
        run = subprocess_runner(COMMAND_TIMEOUT_S)
        todo = setup.install(
            site, config, self.user, choices, machine.bin_folder(), manual.texts(), self.known, settled,
            lambda needs: services.running(needs, run), running.get("JobSubmitPlugins"),
        )  # fmt: skip
        owner = os.stat(machine.bin_folder()).st_uid
        if os.geteuid() == 0 and owner not in (0, self.user.uid):
            said = f"{machine.bin_folder()} belongs to uid {owner}, who could change what root and users run"
            notes += ChangePlan(notes=(said,))
        todo = todo._replace(ours=notes + todo.ours)
        if shipped.SERVER.part in choices.parts:
            missing = check.missing_plugins(choices.parts, site_files.plugin_dirs(site, running))
            todo = todo._replace(slurm=todo.slurm + ChangePlan(blockers=missing))
        if self.options["with_filter"] is False and installed_parts(site):
            stays = "the filter that is installed stays; pal admin uninstall --act takes it out"
            todo = todo._replace(ours=todo.ours + ChangePlan(notes=(stays,)))
        if choices.keeper == machine.NONE and choices.controller and (choices.parts or installed_parts(site)):
            where = "as SlurmUser, under a supervisor"
            by_hand = f"the filter's table is written by `pal publish-table --every 5`: run it {where}"
            todo = todo._replace(ours=todo.ours + ChangePlan(notes=(by_hand,)))
        agreed = self.agree(site, todo)
        if agreed is not None:
            return agreed
        if todo.changes.steps:
            with record.alone(self.record_path, self.known):
                setup.carry_out(todo, self.record_path, self.known, time.time())
        return self.finish(todo, self.commands(todo.after))

    def choices(self, site: SiteFiles, controller: bool) -> setup.Choices:
        """Options, answers, and defaults for what neither says. Raises UsageError for a wrong one."""
        options = self.options
        if options["plugin"] is not None and not os.path.isfile(site.plugin):
            raise UsageError(f"--plugin {options['plugin']}: there is no such file; make -C spank builds it")
        root = os.geteuid() == 0
        prefix = options["prefix"] or ("/usr/local" if root and not self.lab else os.path.expanduser("~/.local"))
        if not os.path.isabs(prefix):
            raise UsageError(f"--prefix {prefix!r} must be an absolute path")
        shared, with_filter, with_spank = options["shared"], options["with_filter"], options["with_spank"]
        if self.asks and controller:
            if shared is None and not os.path.lexists(configuration.site_file(os.environ)):
                asked = "Folder that all nodes see, for sweep results and scores (empty: only this host)"
                shared = click.prompt(asked, default="", show_default=False, err=True) or None
            if with_filter is None and not installed_parts(site):
                asked = "Put the submit filter into slurmctld, so that sbatch's jobs are placed without palsub?"
                with_filter = click.confirm(asked, default=False, err=True)
            if with_spank is None and site.plugin and with_filter:
                with_spank = click.confirm("Load the plug-in, so that sbatch has --pal-class?", default=True, err=True)
        parts = [part for part, wanted in ((shipped.SERVER.part, with_filter), (shipped.SPANK, with_spank)) if wanted]
        keeper = machine.keeper(root, self.lab) if options["service"] == AUTO else options["service"]
        if keeper != machine.NONE and not root:
            raise UsageError(
                f"--service {keeper} writes below /etc, and only root may: leave it out, or sudo pal setup"
            )
        if keeper == machine.SYSTEMD and not services.present():
            raise UsageError("--service systemd: systemd does not run here; --service cron or none")
        return setup.Choices(
            controller,
            os.path.normpath(prefix),
            options["state_dir"],
            shared,
            tuple(parts),
            keeper if controller else machine.NONE,
        )

    def undo(self, notes: ChangePlan) -> int:
        try:
            config = configuration.load()
        except ConfigError as error:
            config = Config()
            notes += ChangePlan(notes=(f"settings are not read: {one_line(error)}",))
        site = site_files.read(self.conf, config)
        todo = setup.undo(site, self.known, bool(self.options["purge"]))
        todo = todo._replace(ours=notes + todo.ours)
        cron = os.path.join(machine.CRON_FOLDER, "pal-publish-table")
        agreed = self.agree(site, todo)
        if agreed is not None:
            return agreed
        trouble = self.commands(todo.before)

        def ended() -> None:
            """Cron does not start it again, and it writes no more into folders that are to go."""
            if cron in self.known:
                trouble.extend(_end_publisher(config))
            trouble.extend(self.commands(todo.after))

        with record.alone(self.record_path, self.known):
            stay = setup.take_back(todo, self.record_path, self.known, time.time(), ended)
        pal = os.path.join(machine.bin_folder(), "pal")  # whose link is gone
        data = [p for p in stay if self.known[p].kind == record.DATA]
        kept = [f"{p} holds measurements: kept; {pal} setup --undo --purge removes them" for p in data]
        kept += [f"{p} holds other files: kept" for p in stay if p not in data]
        if not self.as_json:
            common.say(*(f"note: {line}" for line in kept))
            common.say(
                "All that setup wrote here is gone."
                if not kept and not _kept(todo)
                else "Taken back, but for what is named above."
            )
        return self.tell(todo, True, (*trouble,), kept=kept)

    def agree(self, site: SiteFiles, todo: Todo) -> int | None:
        """Show the plan; an exit code where it ends there, None where it shall be carried out."""
        plan = todo.changes
        acts = bool(plan.steps or todo.before or todo.after or (self.options["undo"] and self.known))
        reasons = [*todo.ours.blockers, *(setup.unwritable(plan, self.record_path) if acts else ())]
        if plan.steps and not self.options["undo"]:
            reasons += site_files.distrust(site, plan)
        if not reasons:
            reasons = site_changes.against(site, todo.slurm, not self.options["dry_run"])
        if not self.as_json:
            now = bool(self.options["yes"]) and not self.options["dry_run"] and not reasons
            site_changes.show(plan, now)
            would = "" if now else "would "
            common.say(*(f"{would}run {shlex.join(words)}" for words in (*todo.before, *todo.after)))
            for reason in reasons:
                common.say(f"cannot: {reason}", err=True)
        if reasons:
            if not self.as_json:
                raise PalError(
                    f"nothing was written, for the {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'} above"
                )
            return self.tell(todo, False, cannot=reasons)
        if not acts:
            if not self.as_json:
                common.say("nothing to take back" if self.options["undo"] else "nothing to change")
            return self.tell(todo, True) if self.options["undo"] else self.finish(todo, [])
        if self.options["dry_run"]:
            if not self.as_json:
                common.say("Nothing was written: --dry-run.")
            return self.tell(todo, False)
        if self.asks and not click.confirm(
            "Take this back?" if self.options["undo"] else "Write this?", default=True, err=True
        ):
            common.say("Nothing was written.")
            return Exit.FAILED
        if not (self.asks or self.options["yes"]):
            why = "nothing was written, since there is nobody to ask: --yes writes it, --dry-run only shows it"
            if not self.as_json:
                raise PalError(why)
            return self.tell(todo, False, cannot=[why])
        return None

    def commands(self, lines: Sequence[Sequence[str]]) -> list[str]:
        """Run them; what went wrong. The files are written, so the others run all the same."""
        trouble: list[str] = []
        for words in lines:
            try:
                services.carry_out([words], subprocess_runner(COMMAND_TIMEOUT_S))
            except PalError as error:
                trouble.append(f"{one_line(error)}: run it again yourself: {shlex.join(words)}")
        if not self.as_json:
            common.say(*(f"WARN: {line}" for line in trouble), err=True)
        return trouble

    def finish(self, todo: Todo, trouble: Sequence[str]) -> int:
        """The checks of `pal doctor`, and what to type next."""
        from slurm_pal.cli import doctor

        findings, _ = doctor.examined(time.time())
        answer = findings[0]
        after = _next(findings, "" if os.geteuid() == self.user.uid else f"sudo -u {self.user.name} ")
        if not self.as_json:
            if todo.changes.steps:
                common.say("", f"Written; the record of it is {self.record_path}.")
            doctor.show(
                [answer, *(one for one in findings[1:] if one.level in ("warn", "fail"))],
                common.use_color(self.options["color"]),
            )
            common.say("", f"Next: {after}")
        return self.tell(todo, True, (*trouble,), findings=findings, after=after)

    def tell(
        self, todo: Todo, ok: bool, trouble: Sequence[str] = (), cannot: Sequence[str] = (), kept: Sequence[str] = (),
        findings: Sequence[CheckResult] | None = None, after: str = "",
    ) -> int:  # fmt: skip
        """With --json print what was, or would be, done; the exit code."""
        done = ok and not cannot and not self.options["dry_run"]
        if self.as_json:
            steps = [
                {
                    "action": step.action,
                    "path": step.path,
                    "target": step.new if step.action == "link" else None,
                    "why": step.why,
                }
                for step in todo.changes.steps
            ]
            common.print_json(
                "setup",
                {
                    "done": done, "undo": bool(self.options["undo"]), "changes": steps,
                    "commands": [list(words) for words in (*todo.before, *todo.after)],
                    "notes": [*todo.changes.notes, *kept], "cannot": list(cannot), "trouble": list(trouble),
                    "placing": findings[0].level == "ok" if findings else None,
                    "findings": [one._asdict() for one in findings] if findings else None, "next": after or None,
                },
            )  # fmt: skip
        return Exit.FAILED if trouble or cannot else Exit.OK


def _at_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def _kept(todo: Todo) -> bool:
    return any(note.endswith(": kept") for note in todo.changes.notes)


def _next(findings: Sequence[CheckResult], sudo: str) -> str:
    """The one command that comes next. `sudo`: what comes before one that submits jobs, which root may not do."""
    if findings[0].level == "ok":
        return "palsub job.sh, where users typed sbatch job.sh"
    unmeasured = [one for one in findings if one.level == "fail" and one.topic not in ("placing", "data", "filter")]
    if not unmeasured and any(one.topic == "data" and one.level == "fail" for one in findings):
        return f"{sudo}pal-profile run --budget 50    # GPU hours, on idle nodes only; then palsub job.sh"
    return findings[0].mend or "pal doctor"


def _safe_path(user: Account) -> ChangePlan:
    """For root: look for programs only where nobody else could put them."""
    if os.geteuid() != 0:
        return ChangePlan()
    os.environ["PATH"], dropped = machine.trusted_path(os.environ.get("PATH", ""), {0, user.uid})
    return ChangePlan(
        notes=tuple(f"programs in {folder} are not used: others could put some there" for folder in dropped)
    )


def _running() -> dict[str, str]:
    """slurmctld's configuration, {} when it does not answer: setup does not need it."""
    try:
        return CliClient(timeout_s=ASK_TIMEOUT_S).config()
    except SlurmError:
        return {}


def _end_publisher(config: Config) -> list[str]:
    """End the process that cron has started, which takes lists back first; what went wrong."""
    import signal

    lock, holder = promise.lock_path(config.table_path), promise.holder(config.table_path)
    pid = int(holder.removeprefix("pid ")) if holder.removeprefix("pid ").isdigit() else 0
    until_s = time.monotonic() + END_WAIT_S
    while pid and os.path.exists(lock):
        try:
            with locked(lock, "a publisher"):
                return []
        except (PalError, OSError):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                return []
        if time.monotonic() > until_s:
            return [f"the publisher that cron started still runs: kill {pid}"]
        time.sleep(0.5)
    return []
