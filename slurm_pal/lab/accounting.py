# SPDX-License-Identifier: MIT
"""Accounting in a lab: MariaDB and slurmdbd with their files in its directory, accounts, QOS and fair share.

MariaDB listens on a Unix socket only, in a directory that is the user's alone, and knows that
user by the socket: there is no network port and no password. slurmdbd names no socket in its
configuration; its client library takes the one of MYSQL_UNIX_PORT for the host "localhost".
slurmdbd's port is open to all addresses, as Slurm's others, and hears holders of the munge key.
Sources: slurmdbd.conf(5), sacctmgr(1), mariadbd(8).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.files import write_atomic
from slurm_pal.lab.crew import Crew, ask, complaints
from slurm_pal.lab.ports import is_listening
from slurm_pal.lab.programs import bare_environment

if TYPE_CHECKING:
    from slurm_pal.lab.conf import LabSpec
    from slurm_pal.lab.directory import LabDirectory

_POLL_S = 0.01
_DATABASE = "slurm_acct_db"
"""Made by mariadbd. slurmdbd makes it when it cannot connect to it, and then connects anew; with libmariadb 11.8.9
such a second connection refuses all answers (error 5027)."""
_COMMANDS = (
    "add qos guest preemptmode=requeue",
    "add qos owner preempt=guest priority=100",
    "add cluster palab qos=guest,normal,owner defaultqos=normal",
    "add account guest fairshare=1",
    "add account owner fairshare=3",
    "add user {user} account=guest,owner defaultaccount=guest",
)
"""One after the other: of sacctmgr's own ways to do several at once, `load` hears only who has an account already,
and in one session it does not see its own QOS."""
_ROOT_COMMAND = "modify user root set defaultaccount=guest"  # it is in the account root from the start


def port(spec: LabSpec) -> int:
    """slurmdbd's: the last one of the lab's block."""
    return spec.port + spec.nodes + 1


def settings(spec: LabSpec) -> Mapping[str, str]:
    """Keys of slurm.conf. Nothing is enforced: a job needs no account, unless AccountingStorageEnforce asks for one."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(port(spec)),
        "AccountingStoragePass": spec.directory.munge_socket,  # no password: where munged is
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
        "PriorityType": "priority/multifactor",
        "PriorityCalcPeriod": "1",  # minutes
        "PriorityMaxAge": "1-0",
        "PriorityWeightAge": "1000",
        "PriorityWeightFairshare": "100000",
        "PriorityWeightJobSize": "1000",
        "PriorityWeightPartition": "10000",
        "PriorityWeightQOS": "10000",
    }


def slurmdbd_conf_text(spec: LabSpec) -> str:
    """slurmdbd.conf(5)."""
    d = spec.directory
    return f"""# Written by pal lab up; removed by pal lab down.
AuthType=auth/munge
AuthInfo=socket={d.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port(spec)}
SlurmUser={spec.user}
LogFile={d.log("slurmdbd")}
PidFile={d("run", "slurmdbd.pid")}
StorageType=accounting_storage/mysql
# localhost: by the Unix socket
StorageHost=localhost
StorageUser={spec.user}
StorageLoc={_DATABASE}
"""


def make_database(spec: LabSpec, programs: Mapping[str, str], deadline_s: float) -> None:
    """MariaDB's own tables, and the user of the lab as the one who may do everything. Raises SlurmError."""
    d = spec.directory
    os.mkdir(d.sql_room, 0o700)
    argv = [
        programs["mariadb-install-db"],
        *_database_words(d),
        "--skip-test-db",
        f"--auth-root-socket-user={spec.user}",
    ]
    argv.append("--auth-root-authentication-method=socket")
    log = d("log", "mariadb-install-db.out")
    try:
        with open(log, "wb") as output:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=bare_environment(), check=False,
                timeout=max(1.0, deadline_s - time.monotonic()),
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmError("mariadb-install-db did not end in time: allow more with --wait-s") from None
    if done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as stream:
            lines = [line.strip() for line in stream if line.strip()]
        raise SlurmError(f"mariadb-install-db failed (exit code {done.returncode}); its log: {complaints(lines)}")


def start(spec: LabSpec, programs: Mapping[str, str], crew: Crew, deadline_s: float) -> None:
    """mariadbd, slurmdbd, and the cluster with its accounts, before slurmctld asks for it. munged must run.

    Raises PortTaken, or SlurmError if a daemon ends or time runs out.
    """
    d = spec.directory
    write_atomic(d.sql_init, f"create database {_DATABASE};\n")
    crew.spawn("mariadbd", mariadbd_argv(programs["mariadbd"], d))
    _wait(lambda: os.path.exists(d.sql_socket), "mariadbd", crew, deadline_s)
    write_atomic(d("etc", "slurmdbd.conf"), slurmdbd_conf_text(spec), 0o600)
    crew.spawn("slurmdbd", [programs["slurmdbd"], "-D"], {"MYSQL_UNIX_PORT": d.sql_socket})
    # Somebody else may have the port: only an answer shows that this is slurmdbd.
    looks = [programs["sacctmgr"], "-n", "-P", "show", "qos", "format=name"]
    _wait(lambda: is_listening(port(spec)) and bool(ask(d, looks, 3.0).text), "slurmdbd", crew, deadline_s)
    commands = [*_COMMANDS, *([_ROOT_COMMAND] if spec.user == "root" else [])]
    for command in commands:
        words = command.format(user=spec.user).split()
        answer = ask(d, [programs["sacctmgr"], "-i", *words], max(1.0, deadline_s - time.monotonic()))
        if not answer.text:
            raise SlurmError(f"sacctmgr {' '.join(words)} failed: {answer.complaint}")


def mariadbd_argv(mariadbd: str, d: LabDirectory) -> list[str]:
    """mariadbd(8) without a network, whose data a crash of the machine may destroy."""
    words = {
        "socket": d.sql_socket,
        "pid-file": d("run", "mariadbd.pid"),
        "init-file": d.sql_init,
        "innodb-buffer-pool-size": "32M",
        "innodb-lock-wait-timeout": "900",  # as slurmdbd wants it
        "performance-schema": "0",
    }
    return [mariadbd, *_database_words(d), "--skip-networking", *(f"--{name}={text}" for name, text in words.items())]


def _database_words(d: LabDirectory) -> list[str]:
    words = {
        "datadir": d.sql_data,
        "tmpdir": d.sql_room,
        "innodb-log-file-size": "4M",
        "innodb-flush-log-at-trx-commit": "0",
        "innodb-flush-method": "nosync",
    }
    if os.geteuid() == 0:
        words["user"] = "root"  # else it refuses to run as root
    # A thousand tables and rows are made: none of them has to wait for a disk.
    return [
        "--no-defaults",
        "--skip-name-resolve",
        "--debug-no-sync",
        *(f"--{name}={text}" for name, text in words.items()),
    ]


def _wait(ready: Callable[[], bool], name: str, crew: Crew, deadline_s: float) -> None:
    while not ready():
        crew.check()
        if time.monotonic() > deadline_s:
            raise SlurmError(f"{name} was not ready in time; its log: {crew.log_end(name)}; allow more with --wait-s")
        time.sleep(_POLL_S)
