# SPDX-License-Identifier: MIT
"""Settings: layers, origins, and bad values that say what is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_pal.base import config
from slurm_pal.base.errors import ConfigError


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    return {"XDG_CONFIG_HOME": str(tmp_path / "home")}


def test_defaults_need_no_file(env: dict[str, str]) -> None:
    loaded = config.load(env)
    assert loaded.files == []
    assert loaded.text("placement", "policy") == "class-fit"
    assert loaded.origin("placement", "policy") == "default"
    assert loaded.snapshot_path == "/var/lib/slurm-pal/snapshot"


def test_later_layers_win_and_every_value_knows_its_origin(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pal.toml").write_text('[placement]\npolicy = "pal"\nlocality_penalty = 2\n[apps]\nvasp = "B"\n')
    (tmp_path / "pal.d").mkdir()
    (tmp_path / "pal.d" / "10.toml").write_text('[placement]\npolicy = "packed"\n')
    (tmp_path / "pal.d" / "notes.txt").write_text("not TOML, not read")
    (tmp_path / "home" / "slurm-pal").mkdir(parents=True)
    (tmp_path / "home" / "slurm-pal" / "config.toml").write_text("[submit]\nwatch = true\n")
    loaded = config.load(env | {"SLURM_PAL_SUBMIT_LEASE_MAX_S": "30"})
    assert loaded.text("placement", "policy") == "packed"
    assert loaded.origin("placement", "policy") == str(tmp_path / "pal.d" / "10.toml")
    assert loaded.number("placement", "locality_penalty") == 2.0
    assert loaded.text("submit", "watch") == config.ALWAYS  # an earlier name
    assert loaded.number("submit", "lease_max_s") == 30.0
    assert loaded.origin("submit", "lease_max_s") == "$SLURM_PAL_SUBMIT_LEASE_MAX_S"
    assert loaded.apps == {"vasp": "B"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[placement]\npolicy = "best"', "not one of class-fit"),
        ("[placement]\nlocality_penalty = 0.5", "at least 1"),
        ('[placement]\nlocality_penalty = "2"', "must be a float"),
        ("[submit]\nwatch = 1", "must be a str, like 'auto'"),
        ("[submit]\nwatch = 'sometimes'", "not one of auto, always, never"),
        ("[submit]\nenabled = 1", "must be a bool"),
        ("[profile]\nnice = true", "must be a int"),
        ("[placement]\npolcy = 1", "unknown setting placement.polcy; allowed here: placement.policy"),
        ("[plaecment]\npolicy = 1", "unknown setting plaecment.policy"),
        ("watch = true", "outside a section"),
        ('[apps]\nvasp = "Z"', "not one of A, B, C"),
        ("[placement", "cannot be read as TOML"),
        ("[submit]\nlease_max_s = inf\n", "finite"),
        ("[submit]\nlease_max_s = nan\n", "finite"),
        (f"[submit]\nlease_max_s = 1{'0' * 400}\n", "finite"),
        (f"[submit]\nlease_max_s = 1{'0' * 5000}\n", "cannot be read as TOML"),
        (f"[submit]\nlease_max_s = {'[' * 50_000}\n", "cannot be read as TOML"),
    ],
)
def test_bad_settings_are_one_clear_line(env: dict[str, str], tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "pal.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(env)
    assert complaint in str(caught.value)
    assert str(tmp_path / "pal.toml") in str(caught.value)


@pytest.mark.parametrize("value", ["maybe", "", "2"])
def test_a_bad_variable_names_itself(env: dict[str, str], value: str) -> None:
    with pytest.raises(ConfigError, match=r"\$SLURM_PAL_SUBMIT_WATCH"):
        config.load(env | {"SLURM_PAL_SUBMIT_WATCH": value})


def test_a_named_file_that_is_missing_is_an_error(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(env | {"SLURM_PAL_CONFIG": "/nonexistent/pal.toml"})


def test_a_file_that_everyone_can_write_is_not_believed(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pal.toml").write_text("[submit]\nwatch = true\n")
    (tmp_path / "pal.toml").chmod(0o666)
    with pytest.raises(Exception, match="chmod o-w"):
        config.load(env)


HEAVY = (
    "numpy", "pandas", "pydantic", "click", "rich", "ClusterShell", "sqlite3", "logging", "argparse", "dataclasses",
    "inspect", "pathlib",
)  # fmt: skip


def test_the_submit_path_stays_light(tmp_path: Path) -> None:
    """palsub runs on every submission: no third-party import, and none of the heavy ones of the library."""
    code = f"""
import sys
import slurm_pal.cli.palsub, slurm_pal.decide.decide, slurm_pal.slurm.cli, slurm_pal.store.snapshot
import slurm_pal.placement.class_fit, slurm_pal.placement.plain, slurm_pal.decide.offers
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_every_setting_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    for section, keys in config.KEYS.items():
        for name, key in keys.items():
            assert f"| `{section}.{name}` | " in page, f"{section}.{name} is missing in docs/settings.md"
            assert key.meaning in page


def test_an_earlier_name_of_a_value_is_accepted_and_shown_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "pal.toml").write_text('[rebalance]\nallocation = "pal-share"\n')
    found = config.load({"SLURM_PAL_CONFIG": str(tmp_path / "pal.toml"), "XDG_CONFIG_HOME": str(tmp_path)})
    assert found.text("rebalance", "allocation") == "nonpreemptive-makespan"
    assert found.origin("rebalance", "allocation") == str(tmp_path / "pal.toml")
    also = config.load({"SLURM_PAL_REBALANCE_ALLOCATION": "pal-share", "XDG_CONFIG_HOME": str(tmp_path)})
    assert also.text("rebalance", "allocation") == "nonpreemptive-makespan"
