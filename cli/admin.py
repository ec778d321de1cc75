# SPDX-License-Identifier: MIT
"""pal admin: put the filters and the plug-in into a site's Slurm, and take them out again."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import click

from slurm_pal.admin import apply, changes, check, services, shipped, site_files, status, units
from slurm_pal.base import config as settings
from slurm_pal.base.errors import Exit, PalError, SlurmError, UsageError, one_line
from slurm_pal.base.files import slurm_user_uid, write_atomic
from slurm_pal.cli import common, site_changes, tables
from slurm_pal.cli.aliases import Renamed
from slurm_pal.cli.dashboard import dashboard
from slurm_pal.report.listing import Listing
from slurm_pal.slurm.cli import CliClient, subprocess_runner

ASK_TIMEOUT_S = 15.0
START_TIMEOUT_S = 120.0

conf_option = click.option("--conf", metavar="DIR|FILE", help="The slurm.conf. Default: $SLURM_CONF, else /etc/slurm.")
act_option = click.option(
    "--act/--dry-run",
    "act",
    cls=Renamed,
    was=["--apply"],
    default=False,
    help="Make the changes. Default: only show them.",
)

_RECONFIGURE = (
    "scontrol reconfigure    # slurmctld takes the new lines; running jobs go on, and nothing needs a restart"
)
_STATUS = "pal admin status        # is all of it in force?"
_SERVES = "writes the table that the filter reads, and takes node lists back"
_AFTER_SPANK = """The plug-in must be at the same path on every login and compute node, and each node must see
the same plugstack.conf; every command and job step reads it again."""
_AFTER_UNINSTALL = """Left to do:
  scontrol reconfigure    # slurmctld drops the filter"""

_AFTER_UNITS = """Left to do, as root; leave out what you do not want. `pal admin install --act` does the first part.
While pal.toml says [rebalance] mode = "advise", this writes the filter's table and takes node lists back:
  install -m 644 {dir}/systemd/pal-lease-guard.service {dir}/systemd/pal-publish-table.service /etc/systemd/system/
  systemctl daemon-reload && systemctl enable --now pal-lease-guard.service pal-publish-table.service

One of these three starts the ticks:
  install -m 644 {dir}/systemd/pal-lease-guard.service {dir}/systemd/pal-rebalance.service /etc/systemd/system/
  systemctl daemon-reload && systemctl enable --now pal-lease-guard.service  # takes lists back if ticks are killed
  systemctl enable --now pal-rebalance.service      # stays; with mode = "act" it does all that the one above does:
  systemctl disable --now pal-publish-table.service # so then, and only then, end that

  install -m 644 {dir}/systemd/pal-rebalance-once.service {dir}/systemd/pal-rebalance.timer /etc/systemd/system/
  systemctl daemon-reload && systemctl enable --now pal-rebalance.timer    # a tick a minute

  install -m 644 {dir}/cron.d/pal-rebalance /etc/cron.d/                     # the same by cron
  install -m 644 {dir}/cron.d/pal-publish-table /etc/cron.d/                 # the first part by cron

and this keeps the log short:
  install -m 644 {dir}/logrotate.d/pal-rebalance /etc/logrotate.d/
All of them only advise until pal.toml says [rebalance] mode = "act".

One of these two starts a sweep every evening, which measures GPUs on idle nodes:
  install -m 644 {dir}/systemd/pal-profile.service {dir}/systemd/pal-profile.timer /etc/systemd/system/
  systemctl daemon-reload && systemctl enable --now pal-profile.timer

  install -m 644 {dir}/cron.d/pal-profile /etc/cron.d/                       # the same by cron"""


@click.group()
def admin() -> None:
    """Install slurm-pal inside Slurm: submit filter, client filter, SPANK plug-in; and start its ticks and sweeps.

    \b
    Examples:
      pal admin install                what would be changed, line by line
      pal admin install --act          do it, with backups; asks before it starts services
      pal admin status                 is all of it in force?
      pal admin uninstall --act        take it out again
      pal admin units --dir units      what systemd or cron needs to start pal-rebalance, pal-profile

    Files are edited only in blocks that begin and end with a comment naming slurm-pal.
    """


admin.add_command(dashboard)


@admin.command()
@click.option("--server", "parts", flag_value=shipped.SERVER.part, multiple=True, help="The filter in slurmctld.")
@click.option("--client", "parts", flag_value=shipped.CLIENT.part, multiple=True, help="The filter in sbatch and srun.")
@click.option("--spank", "parts", flag_value=shipped.SPANK, multiple=True, help="The plug-in with --pal-class.")
@click.option("--plugin", metavar="PATH", help="pal_spank.so. Default: where Slurm's plug-ins or ours are.")
@conf_option
@act_option
@click.option("-y", "--yes", is_flag=True, help="Start the services without asking.")
@common.verbose_option
def install(parts: tuple[str, ...], plugin: str | None, conf: str | None, act: bool, yes: bool) -> None:
    """Show, or with --act make, the changes that put slurm-pal into force.

    Where systemd runs, root also gets the units of the services that write the filter's table and take node lists
    back; they are started after a question. Elsewhere the command to run is shown.

    Without --server, --client or --spank: the filter in slurmctld, and the plug-in where
    pal_spank.so is found. The client filter is for sites that cannot touch slurmctld.
    If one part is not possible, nothing is changed.
    """
    path = _use(conf)
    running = _running()
    found = site_files.read(path, settings.load(), plugin, running.get("PluginDir", ""))
    if plugin is not None and not os.path.isfile(found.plugin):
        raise UsageError(f"--plugin {plugin}: there is no such file; make -C spank builds it")
    wanted = set(parts) or {shipped.SERVER.part} | ({shipped.SPANK} if found.plugin else set())
    todo = changes.install(found, sorted(wanted))
    dirs = site_files.plugin_dirs(found, running)
    todo += changes.ChangePlan(blockers=check.missing_plugins(wanted, dirs))
    if not parts and not found.plugin:
        todo += changes.ChangePlan(
            notes=("no pal_spank.so found, so sbatch gets no --pal-class: make -C spank install",)
        )
    changed = _carry_out(found, todo, act)
    left = _serve(act, yes)
    if changed:
        common.say("Left to do:", *(f"  {line}" for line in (_RECONFIGURE, *left, _STATUS)))
        if shipped.SPANK in wanted:
            common.say(*_AFTER_SPANK.split("\n"))


@admin.command()
@conf_option
@act_option
@common.verbose_option
def uninstall(conf: str | None, act: bool) -> None:
    """Show, or with --act make, the changes that take slurm-pal out: its blocks, files, links and units, nothing else.

    Services of these units end. Backups and the table stay.
    """
    found = site_files.read(_use(conf), settings.load())
    todo = changes.uninstall(found)
    changed = _carry_out(found, todo, act)
    _end_services(act)
    if changed:
        common.say(*_AFTER_UNINSTALL.split("\n"))


@admin.command(name="status")
@conf_option
@tables.table_options
@common.verbose_option
@click.pass_context
def status_command(context: click.Context, conf: str | None, form: tables.Form) -> None:
    """Show whether each installed part is in force. Exit code 0 only when all of them are."""
    found = site_files.read(_use(conf), settings.load())
    running: dict[str, str] | None = None
    with contextlib.suppress(SlurmError):
        running = CliClient(timeout_s=ASK_TIMEOUT_S).config()
    now_s = time.time()
    items = status.examine(found, running, now_s)
    code = status.exit_code(items)
    rows = [item._asdict() | {"code": int(item.code)} for item in items]
    tables.show(
        form, Listing(status.Item._fields, rows), "admin",
        lambda told: {
            "ok": code == Exit.OK, "items": told,
            "table": status.table_facts(status.table_of(found), now_s)._asdict(),
        },
        text=lambda: _print_items(items, common.use_color(form.color)),
    )  # fmt: skip
    context.exit(code)


@admin.command(name="units")
@click.option("--dir", "folder", metavar="DIR", help="Write the files there. Default: only show them.")
@conf_option
@common.verbose_option
def units_command(folder: str | None, conf: str | None) -> None:
    """Show, or write to DIR, the systemd units, cron lines and the logrotate rule of pal-rebalance and pal-profile.

    They carry this site's paths and its SlurmUser. Nothing is put into force: the command
    prints what to do with them. `pal admin install --act` puts the units where systemd looks.
    """
    _use(conf)
    files = units.filled(units.place(settings.load(), slurm_user_uid()))
    if folder is None:
        for name, text in files.items():
            click.echo(f"==> {name} <==\n{text}")
        return
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, text)
        common.say(f"write {path}")
    common.say(*_AFTER_UNITS.format(dir=folder.rstrip("/") or "/").split("\n"))


def _serve(act: bool, yes: bool) -> list[str]:
    """Show, or with `act` write, the units, and start the services if the admin agrees; lines of what is left to do.

    Raises PalError where systemd refuses.
    """
    config = settings.load()
    try:
        where = units.place(config, slurm_user_uid())
    except UsageError as error:
        common.say(f"note: no units: {one_line(error)}")
        return [f"pal publish-table --every 5    # as SlurmUser, under a supervisor: {_SERVES}"]
    needs = services.wanted(config.text("rebalance", "mode"), where)
    by_hand = [f"{needs.by_hand}    # as {where.user}, under a supervisor: {_SERVES}"]
    if not site_changes.has_systemd():
        return by_hand
    if os.geteuid() != 0:
        return ["pal admin install --act    # once more, as root: its units are for root to write", *by_hand]
    todo = services.install(where)
    site_changes.show(todo, act and not todo.blockers)
    for reason in todo.blockers:
        common.say(f"cannot: {reason}", err=True)
    if todo.blockers:
        return by_hand
    if not act:
        return []
    run = subprocess_runner(START_TIMEOUT_S)
    apply.carry_out(todo, time.time())
    if todo.steps:
        services.carry_out([[services.SYSTEMCTL, "daemon-reload"]], run)
    elif services.running(needs, run):
        return []
    names = " and ".join(needs.run)
    if yes or (_at_terminal() and click.confirm(f"Start {names}, now and at each boot?", default=True, err=True)):
        services.carry_out(services.start(needs), run)
        common.say(f"started: {names}, which {_SERVES}")
        return []
    return [f"{' '.join(words)}" for words in services.start(needs)]


def _at_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def _end_services(act: bool) -> None:
    """End and remove what `_serve` has put into the site's systemd."""
    todo = services.uninstall() if site_changes.has_systemd() and os.geteuid() == 0 else changes.ChangePlan()
    if not todo.steps:
        return
    paths = [step.path for step in todo.steps]
    todo += services.stamps(paths)
    site_changes.show(todo, act)
    if act:
        run = subprocess_runner(START_TIMEOUT_S)
        services.carry_out([services.stop(paths)], run)
        apply.carry_out(todo, time.time())
        services.carry_out(services.forget(paths), run)


def _print_items(items: list[status.Item], colored: bool) -> None:
    colours = {"ok": "green", "note": "cyan", "absent": None, "wrong": "red"}
    for item in items:
        text = f"{item.part:9}  {item.text}"
        common.say_finding(f"{item.state:6}", colours[item.state], text, item.mend, colored)


def _use(conf: str | None) -> str:
    """The slurm.conf to use; from now on settings and Slurm's own commands follow it."""
    path = site_files.find_conf(conf)
    os.environ["SLURM_CONF"] = path
    return path


def _running() -> dict[str, str]:
    """slurmctld's configuration, {} when it does not answer: installing does not need it."""
    try:
        return CliClient(timeout_s=ASK_TIMEOUT_S).config()
    except SlurmError:
        return {}


def _carry_out(found: changes.SiteFiles, todo: changes.ChangePlan, act: bool) -> bool:
    """Show and check the plan, with --act carry it out; whether anything changed. Raises PalError if it cannot be."""
    reasons = site_changes.against(found, todo, act)
    site_changes.show(todo, act and not reasons)
    for reason in reasons:
        common.say(f"cannot: {reason}", err=True)
    if reasons:
        raise PalError(
            f"nothing was changed, for the {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'} above"
        )
    if not todo.steps:
        common.say("nothing to change")
        return False
    if not act:
        common.say("Slurm's parser accepts the new files. Nothing was changed; --act makes the changes.")
        return False
    for backup in apply.carry_out(todo, time.time()):
        common.say(f"backup: {backup}")
    return True
