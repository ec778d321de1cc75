# SPDX-License-Identifier: MIT
"""pal.toml and what overrides it, with the origin of every value.

Order, weakest first: built-in defaults; `pal.toml` beside slurm.conf and
`pal.d/*.toml` there; `$XDG_CONFIG_HOME/slurm-pal/config.toml`; the variables
`SLURM_PAL_<SECTION>_<KEY>`; command-line options. `$SLURM_PAL_CONFIG` names another
first file (a lab sets it). Read on the submit path: no third-party import, and
tomllib only for a file with more than plain values.
"""

from __future__ import annotations

import os

from slurm_pal.base.errors import ConfigError
from slurm_pal.base.files import SMALL_BYTES, read_trusted, slurm_conf
from slurm_pal.base.light import Mapping, NamedTuple

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from slurm_pal.base.data_places import DataPlace

Value = str | int | float | bool


class Key(NamedTuple):
    """One setting: its default (whose type is the setting's type) and what it means."""

    default: Value
    meaning: str
    minimum: float | None = None
    choices: tuple[str, ...] = ()
    renamed: tuple[tuple[Value, str], ...] = ()  # values that are accepted by an earlier name: (earlier, now)
    maximum: float | None = None


AUTO, ALWAYS, NEVER = "auto", "always", "never"
"""When palsub starts a watcher (submit.watch)."""

KEYS: dict[str, dict[str, Key]] = {
    "paths": {
        "state_dir": Key("/var/lib/slurm-pal", "database, sweeps and snapshot; local disk of the controller"),
        "snapshot": Key("", "published snapshot, readable on every login node (default: STATE_DIR/snapshot)"),
        "spool": Key("", "where sweep jobs drop their results, shared with the nodes (default: STATE_DIR/spool)"),
        "table": Key("", "standing answers for the submit filter (default: STATE_DIR/pal_table.lua)"),
        "gpus": Key("", "scores for the plug-in on the nodes (default: STATE_DIR/gpus.txt)"),
    },
    "slurm": {
        "backend": Key(
            "cli",
            "how palsub (cli, rest), pal and pal-profile use Slurm; ticks and pal publish-table always use cli",
            choices=("cli", "pyslurm", "rest"),
        ),
        "rest": Key(
            "unix:/run/slurmrestd.socket",
            'where slurmrestd listens, for backend "rest": unix:/PATH, http://HOST:PORT or https://HOST:PORT',
        ),
        "rest_token": Key(
            "", "file of mode 0600 with the JSON web token for slurmrestd; $SLURM_JWT comes first, empty: none"
        ),
    },
    "placement": {
        "policy": Key(
            "class-fit",
            "which rule places a job",
            choices=("class-fit", "pal", "pm-first", "threshold", "packed", "random"),
        ),
        "locality_penalty": Key(1.7, "factor on iteration time when a job spans nodes (PAL, SC'24)", minimum=1.0),
        "barred_slowdown": Key(
            1.05, "sensitive jobs wait, as long as that pays, rather than start on GPUs slower than this", minimum=1.0
        ),
    },
    "submit": {
        "enabled": Key(True, "false: palsub passes every job to sbatch unchanged"),
        "watch": Key(
            AUTO,
            "when palsub starts its own watcher for leases, as with --pal-watch; "
            "auto: if no daemon takes the job's lease back and no node has a class feature",
            choices=(AUTO, ALWAYS, NEVER),
            renamed=(
                *((word, ALWAYS) for word in (True, "true", "yes", "1")),
                *((word, NEVER) for word in (False, "false", "no", "0")),
            ),
        ),
        "lease_max_s": Key(600.0, "longest time that a node list stays on a pending job, s", minimum=0),
        "lease_pass_s": Key(3.0, "time allowed for one scheduling pass before a lease is checked, s", minimum=0.1),
        "expected_run_share": Key(0.5, "expected run time as a share of the time limit", minimum=0.0),
        "expected_run_s": Key(3600.0, "expected run time of a job without a time limit, s", minimum=0),
        "slurm_timeout_s": Key(
            5.0,
            "time that palsub gives slurmctld to answer, if it can be reached, before it submits without placement, s",
            minimum=0.1,
        ),
        "boot_s": Key(
            0.0, "time in which a node that is powered down boots; 0: at most Slurm's ResumeTimeout, s", minimum=0
        ),
        "goal": Key(
            "time", "what decides between places that would do, where users do not say", choices=("time", "cost")
        ),
        "prices": Key(
            "",
            "live prices, CSV of partition,price of a GPU hour,Unix time; newer than a day they count before [prices]",
        ),
        "avoid_slow": Key(1.1, "bound of --pal-avoid-slow where users state none: a slowdown", minimum=1.001),
        "admin_note": Key(
            False,
            "say for people in the admin comment of each job on which GPUs it runs, once it has started "
            "(pal publish-table --every, pal-rebalance --daemon --act)",
        ),
        "save_times_max": Key(
            100, "how often at most a job is continued after its time limit (palsub --pal-save-before)", minimum=0
        ),
        "checkpoint": Key(
            "none",
            "checkpoint of GPU jobs whose users do not say; auto: by a recipe, if one holds, which makes them movable",
            choices=("none", "auto"),
        ),
        "checkpoint_qos": Key("", "auto for jobs that name one of these QOS, comma-separated"),
        "checkpoint_partitions": Key("", "auto for jobs that name only these partitions, comma-separated"),
        "checkpoint_accounts": Key("", "auto for jobs that name one of these accounts, comma-separated"),
        "checkpoint_programs": Key("", "auto for jobs for which one of these recipes holds, comma-separated"),
        "checkpoint_images": Key(
            "", "folder that all nodes share, for the images of transparent checkpoints; empty: there are none"
        ),
        "criu": Key("/usr/sbin/criu", "the program CRIU, 4.2 or newer, on all nodes, for transparent checkpoints"),
        "recipes": Key("", "folder of the site's own recipes, *.toml, trusted like pal.toml; empty: none"),
        "heartbeat_max_age_s": Key(
            10.0,
            "a daemon silent for longer than this, or for three of its beats, counts as dead and clears no leases, s",
            minimum=1,
        ),
    },
    "sensitivity": {
        "trust": Key(
            "user",
            "who decides the class where a user and the measurement of their jobs differ",
            choices=("user", "measured", "more-sensitive"),
        ),
        "history_sure": Key(0.8, "least confidence at which earlier jobs decide the class; above 1: never", minimum=0),
        "script_sure": Key(0.8, "least confidence at which the script decides the class; above 1: never", minimum=0),
        "observe_s": Key(0.0, "how long palsub observes each GPU job; 0: only jobs whose users ask, s", minimum=0),
        "active_s": Key(60.0, "minimum observed GPU activity before a job gets a class, s", minimum=2),
        "classifier": Key(
            "centroid",
            "how telemetry becomes a class: by the sweep's nearest kernel, thresholds between kernels, or fixed ones",
            choices=("centroid", "calibrated", "rules"),
        ),
    },
    "filter": {
        "max_age_s": Key(
            30.0, "with a table older than this the submit filter sets no node list and no exclusion, s", minimum=1
        ),
    },
    "rebalance": {
        "mode": Key("advise", "what pal-rebalance does with its plan", choices=("advise", "act")),
        "interval_s": Key(15.0, "time between two ticks of pal-rebalance --daemon, s", minimum=1),
        "retarget": Key(True, "set and clear node lists of pending jobs"),
        "fit": Key(True, "keep waiting jobs of sensitive classes off slow GPUs, before these become free"),
        "avoid": Key(True, "keep waiting jobs off GPUs that were seen to fail, and move running ones off slow GPUs"),
        "moves": Key(True, "move running jobs that are marked movable"),
        "gather": Key(True, "steer jobs with --gpus on an open number of nodes; bring spread ones together"),
        "features": Key(False, "publish class features on the nodes (SlurmUser or root)"),
        "weights": Key(False, "raise the Weight of nodes with slow GPUs (SlurmUser or root)"),
        "wait": Key(False, "the first job of a queue waits for better GPUs, with a reservation behind it (operators)"),
        "wait_max_s": Key(3600.0, "longest time that such a job waits though it could start, s", minimum=90.0),
        "depth": Key(100, "pending jobs that one tick examines: users in turn, each user's by priority", minimum=1),
        "allocation": Key(
            "",
            "policy that shares out partitions to jobs that name several; empty: Slurm does",
            renamed=(("pal-share", "nonpreemptive-makespan"),),  # the simulator's pal-share is another policy
        ),
        "throughputs": Key("", "the site's table of throughputs, CSV or .json; empty: only what past runs reported"),
        "partition_wait_s": Key(
            21600.0, "longest time that a job that could start is kept off a partition, s", minimum=0
        ),
        "order": Key(
            "none",
            "order of the pending jobs, by Nice or SiteFactor; none: Slurm's own",
            choices=("none", "shortest", "response-ratio", "fair"),
        ),
        "order_bound_s": Key(
            43200.0, "a job that others have overtaken for this long gets its place in front back, s", minimum=0
        ),
        "order_weight": Key(
            0,
            "priority points between the last and the first of that order; 0: more than age, fair share and size",
            minimum=0,
            maximum=2**30,
        ),
        "movable_qos": Key("", "jobs of these QOS count as movable without being marked, comma-separated"),
        "movable_partitions": Key(
            "", "jobs of these partitions count as movable without being marked, comma-separated"
        ),
        "may_empty_output": Key(False, "also move jobs whose output file a move empties"),
        "margin": Key(1.5, "a move must gain at least this many times its cost", minimum=1.0),
        "minimum_s": Key(600.0, "minimum time a job runs where it is before it is moved, s", minimum=0),
        "end_guard_s": Key(900.0, "no job is moved this close to its time limit, s", minimum=0),
        "moves_per_tick": Key(4, "most moves under way at once", minimum=0),
        "moves_per_job": Key(5, "most moves of one job in its life", minimum=0),
        "moves_per_user": Key(2, "most moves of one user's jobs under way at once", minimum=0),
        "move_cost_s": Key(60.0, "assumed cost of a move until moves have been measured, s", minimum=0),
        "egress": Key(
            0.0, "money that a move to a cheaper partition costs beside its restart, in the unit of prices", minimum=0
        ),
        "lost_work_s": Key(600.0, "assumed work lost by moving a job without a checkpoint command, s", minimum=0),
        "ack_limit_s": Key(
            120.0, "a job that does not confirm its checkpoint within this time is not moved, s", minimum=1
        ),
        "busy_threads": Key(
            64, "the tick changes nothing while at least this many slurmctld threads are busy", minimum=1
        ),
        "metrics": Key("", "textfile for the Prometheus node exporter"),
        "log": Key("", "log of all actions as JSON lines (default: STATE_DIR/rebalance.log)"),
        "keep_ticks": Key("", "folder in which each tick keeps what it saw and decided (pal ticks); empty: none"),
        "keep_ticks_mib": Key(256.0, "size of that folder, MiB; the oldest ticks go", minimum=1),
    },
    "loan": {
        "owners": Key("", "partitions whose idle nodes are lent, comma-separated; empty: none"),
        "guest": Key(
            "",
            "partition of those who borrow them, and of companions of elastic jobs; it has these nodes in slurm.conf",
        ),
        "waits": Key(
            "", "partition with State=DOWN and the nodes of loan.guest, in which guests wait that no open node fits"
        ),
        "interval_s": Key(300.0, "time between two orders about how many nodes are lent, s", minimum=1),
        "grace_s": Key(60.0, "time that a guest has for its checkpoint before it is requeued, s", minimum=0),
        "headroom": Key(
            0.02, "share of the owners' nodes that is kept beyond what they are expected to need", minimum=0, maximum=1
        ),
        "quantile": Key(
            0.75, "quantile of the most that owners needed in the same hour of past weeks", minimum=0, maximum=1
        ),
        "history_d": Key(28.0, "how far back the owners' demand counts, days", minimum=1),
        "period_s": Key(604800.0, "time after which the owners' demand repeats: a week, s", minimum=168),
    },
    "online": {
        "ladder": Key(
            "observe",
            "how far a tick goes about a GPU that running jobs wait for",
            choices=("observe", "annotate", "avoid", "reserve", "drain"),
        ),
        "users": Key(2, "users whose jobs must wait for a GPU before it is avoided", minimum=1),
    },
    "profile": {
        "backend": Key(
            "auto",
            "how GPUs are measured; auto: the first that works on the node",
            choices=("auto", "emu", "torch", "driver", "cupy"),
        ),
        "benchmarks": Key("", "benchmarks of a sweep, comma-separated (default: see pal-profile bench --list)"),
        "max_parallel": Key(0, "nodes measured at once; 0: 5 % of the nodes, at most 16", minimum=0),
        "time_limit_s": Key(600, "time limit of one sweep job, s", minimum=60),
        "pending_max_s": Key(120, "a sweep job that has not started within this time is cancelled, s", minimum=1),
        "window": Key("", 'hours in which sweeps submit jobs, local time, like "20:00-06:00"; empty: all day'),
        "budget_gpu_h_per_day": Key(0.0, "GPU-hours that sweeps may use in 24 h; 0: no limit", minimum=0),
        "yield_to_users": Key(
            True,
            "sweeps pause while a user's GPU job waits for nodes that a sweep could use, and their jobs leave such "
            "nodes; not with `profile.reservation`",
        ),
        "max_leavings": Key(
            5,
            "how often in a sweep a running job leaves a node for a user's job that could start there; 0: never",
            minimum=0,
        ),
        "spare_nodes": Key(
            1,
            "nodes that stay idle for users beside those that a sweep takes; its jobs leave early for that; 0: none",
            minimum=0,
        ),
        "publish_every_s": Key(
            300.0, "how often a running sweep publishes its results so far, s; 0: only at its end", minimum=0
        ),
        "network_pairs": Key(
            0,
            "pairs of nodes at each level of the network whose all-reduce a sweep measures; 0: none",
            minimum=0,
            maximum=64,
        ),
        "nice": Key(10000, "nice value of sweep jobs", minimum=0),
        "partition": Key("", "partition of sweep jobs"),
        "account": Key("", "account of sweep jobs"),
        "qos": Key("", "QOS of sweep jobs"),
        "reservation": Key("", "reservation of sweep jobs"),
        "python": Key("", "Python with slurm-pal on the nodes (default: the one that runs pal-profile)"),
    },
    "classes": {
        "method": Key("exact", "how classes are formed", choices=("exact", "pal", "pal-artifact")),
        "k": Key(0, "classes of each GPU model; 0: as many as explain 90 % of the variance", minimum=0, maximum=32),
        "stale_after_d": Key(30.0, "scores older than this shrink towards 1.0, days", minimum=0),
        "unknown_after_d": Key(90.0, "scores older than this are forgotten, days", minimum=0),
    },
    "hooks": {
        "on_sweep": Key("", "program that is run after a sweep, with its summary on standard input"),
        "on_outlier": Key("", "program that is run when GPUs become outliers, or are seen to fail"),
        "on_move": Key("", "program that is run when a move of a running job begins, and when it has ended"),
    },
}

TABLES = ("apps", "prices", "data")
"""Sections whose keys are names of the site's own."""


class Config:
    """The settings in force: `config["submit", "watch"]`, and where each came from."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Value] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self.apps: dict[str, str] = {}  # application name -> sensitivity class
        self.prices: dict[str, Mapping[str, float]] = {}  # partition -> rates (base/prices.py)
        self.data: dict[str, DataPlace] = {}  # path prefix -> where it is local
        self.files: list[str] = []

    def __getitem__(self, key: tuple[str, str]) -> Value:
        section, name = key
        found = self._values.get(key)
        return KEYS[section][name].default if found is None else found

    def text(self, section: str, name: str) -> str:
        return str(self[section, name])

    def number(self, section: str, name: str) -> float:
        return float(self[section, name])

    def flag(self, section: str, name: str) -> bool:
        return bool(self[section, name])

    def origin(self, section: str, name: str) -> str:
        """Where a value came from: a file, `$VARIABLE`, an option, or "default"."""
        return self._origins.get((section, name), "default")

    def set(self, section: str, name: str, value: object, origin: str) -> None:
        """Take one value. Raises ConfigError when key, type or range is wrong."""
        known = KEYS.get(section, {}).get(name)
        if known is None:
            allowed = ", ".join(f"{s}.{k}" for s in KEYS for k in KEYS[s] if s == section or section not in KEYS)
            raise ConfigError(f"{origin}: unknown setting {section}.{name}; allowed here: {allowed}")
        self._values[section, name] = _checked(f"{section}.{name}", known, value, origin)
        self._origins[section, name] = origin

    @property
    def state_dir(self) -> str:
        return self.text("paths", "state_dir")

    @property
    def snapshot_path(self) -> str:
        return self.text("paths", "snapshot") or os.path.join(self.state_dir, "snapshot")

    @property
    def spool_dir(self) -> str:
        return self.text("paths", "spool") or os.path.join(self.state_dir, "spool")

    @property
    def table_path(self) -> str:
        return self.text("paths", "table") or os.path.join(self.state_dir, "pal_table.lua")

    @property
    def public_table_path(self) -> str:
        return public_table(self.table_path)

    @property
    def gpus_path(self) -> str:
        return self.text("paths", "gpus") or os.path.join(self.state_dir, "gpus.txt")


def public_table(path: str) -> str:
    """The public table beside the filter's table at `path`: the same without anything about users' jobs."""
    root, extension = os.path.splitext(path)
    return f"{root}.public{extension}"


def _checked(name: str, key: Key, value: object, origin: str) -> Value:
    wanted = type(key.default)
    for earlier, now in key.renamed:
        if value == earlier and type(value) is type(earlier):
            value = now
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < 1e300:  # infinity, NaN, and whole numbers too large for a float
            raise ConfigError(f"{origin}: {name} must be a finite number, like {key.default!r}")
        value = float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ConfigError(f"{origin}: {name} = {value!r} must be a {wanted.__name__}, like {key.default!r}")
    if key.choices and value not in key.choices:
        raise ConfigError(f"{origin}: {name} = {value!r} is not one of {', '.join(key.choices)}")
    if key.minimum is not None and isinstance(value, int | float) and not value >= key.minimum:
        raise ConfigError(f"{origin}: {name} = {value!r} must be at least {key.minimum:g}")
    if key.maximum is not None and isinstance(value, int | float) and not value <= key.maximum:
        raise ConfigError(f"{origin}: {name} = {value!r} must be at most {key.maximum:g}")
    return value


def load(environ: dict[str, str] | None = None) -> Config:
    """Read all layers. Raises ConfigError with file, key and what is allowed."""
    env = dict(os.environ) if environ is None else environ
    config = Config()
    for path in config_files(env):
        _read_file(config, path)
    for section, keys in KEYS.items():
        for name, key in keys.items():
            variable = f"SLURM_PAL_{section}_{name}".upper()
            if variable in env:
                config.set(section, name, _from_text(variable, key, env[variable]), f"${variable}")
    return config


def site_file(env: Mapping[str, str]) -> str:
    """The path of the site's own settings, whether it exists or not."""
    return env.get("SLURM_PAL_CONFIG") or os.path.join(os.path.dirname(slurm_conf()), "pal.toml")


def config_files(env: dict[str, str]) -> list[str]:
    """The configuration files that exist, weakest first."""
    site = site_file(env)
    found = [site] if os.path.exists(site) or env.get("SLURM_PAL_CONFIG") else []
    parts = os.path.join(os.path.dirname(site), "pal.d")
    if os.path.isdir(parts):
        found += [os.path.join(parts, name) for name in sorted(os.listdir(parts)) if name.endswith(".toml")]
    home = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    user = os.path.join(home, "slurm-pal", "config.toml")
    return [*found, user] if os.path.exists(user) else found


def _read_file(config: Config, path: str) -> None:
    try:
        text = read_trusted(path, SMALL_BYTES).decode()
        table: Mapping[str, object] | None = plain_toml(text)
        if table is None:
            import tomllib

            table = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # errors of UTF-8 and of TOML are ValueErrors
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None
    config.files.append(path)
    for section, body in table.items():
        if not isinstance(body, dict):
            allowed = "], [".join((*KEYS, *TABLES))
            raise ConfigError(f"{path}: {section} = {body!r} is outside a section; allowed: [{allowed}]")
        for name, value in body.items():
            if section == "apps":
                config.apps[name] = _app_class(path, name, value)
            elif section == "prices":
                config.prices[name] = _rates(path, name, value)
            elif section == "data":
                config.data[name] = _data_place(path, name, value)
            else:
                config.set(section, name, value, path)


def plain_toml(text: str) -> dict[str, dict[str, Value]] | None:
    """What tomllib would make of a text if each line is a section, a plain value, a comment or empty; else None.

    A plain value is true, false, a decimal number, or a text without a backslash. Settings consist of these,
    and tomllib with all its imports would take a tenth of palsub's time.
    """
    table: dict[str, dict[str, Value]] = {}
    body: dict[str, Value] | None = None
    for line in text.split("\n"):
        words = line.strip(" ")
        if not line.isprintable():  # a tab, or what TOML does not allow
            return None
        if not words or words.startswith("#"):
            continue
        if words.startswith("["):
            name = words.partition("#")[0].strip(" ")[1:-1]
            if not words.startswith(f"[{name}]") or not _is_plain_key(name) or name in table:
                return None
            body = table[name] = {}
            continue
        left, _, right = words.partition("=")
        name, value = _plain_name(left.strip(" ")), _plain_value(right.strip(" "))
        if body is None or value is None or not name or name in body:
            return None
        body[name] = value
    return table


def _plain_name(text: str) -> str:
    """A key, bare or in quotes; "" for one of another form."""
    if text.startswith('"') and text.endswith('"') and not {'"', "\\"}.intersection(text[1:-1]):
        return text[1:-1]
    return text if _is_plain_key(text) else ""


def _is_plain_key(text: str) -> bool:
    return text.isascii() and text.replace("_", "").replace("-", "").isalnum()


def _plain_value(text: str) -> Value | None:
    if text.startswith('"'):
        text, quote, rest = text[1:].partition('"')
        return text if quote and "\\" not in text and rest.strip(" ")[:1] in ("", "#") else None
    text = text.partition("#")[0].strip(" ")
    if text in ("true", "false"):
        return text == "true"
    whole, point, rest = text.partition(".")
    if not (text.isascii() and whole.isdigit() and len(text) < 16) or (whole[0] == "0" and whole != "0"):
        return None
    if point:
        return float(text) if rest.isdigit() else None
    return int(whole)


def _app_class(path: str, name: str, value: object) -> str:
    from slurm_pal.base.jobs import SENSITIVITY_CLASSES

    if value not in SENSITIVITY_CLASSES:
        raise ConfigError(f"{path}: apps.{name} = {value!r} is not one of {', '.join(SENSITIVITY_CLASSES)}")
    return str(value)


def _rates(path: str, name: str, value: object) -> Mapping[str, float]:
    from slurm_pal.base.prices import parse

    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{path}: prices.{name}: {error}") from None


def _data_place(path: str, name: str, value: object) -> DataPlace:
    from slurm_pal.base.data_places import parse

    try:
        return parse(name, value)
    except ValueError as error:
        raise ConfigError(f"{path}: data.{name}: {error}") from None


def _from_text(variable: str, key: Key, text: str) -> Value:
    wanted = type(key.default)
    try:
        if wanted is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        return wanted(text)
    except (KeyError, ValueError):
        raise ConfigError(f"${variable} = {text!r} must be a {wanted.__name__}, like {key.default!r}") from None
