# SPDX-License-Identifier: MIT
"""The Ansible role: what can be said of it without Ansible."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "packaging" / "ansible" / "roles" / "slurm_pal"


def tasks(name: str) -> list[dict[str, Any]]:
    """The tasks of one file."""
    return yaml.safe_load((ROLE / "tasks" / f"{name}.yml").read_text())


def render(settings: dict[str, dict[str, Any]]) -> str:
    """pal.toml as Ansible writes it, by its settings of Jinja2."""
    engine = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
    engine.filters["to_json"] = json.dumps
    text = (ROLE / "templates" / "pal.toml.j2").read_text()
    return engine.from_string(text).render(slurm_pal_settings=settings, ansible_managed="by Ansible")


def test_settings_become_toml() -> None:
    settings = {
        "submit": {"watch": "never", "enabled": True, "lease_max_s": 300.0},
        "paths": {"spool": 'a "quoted" \\ place, µ😀\n'},
    }
    assert tomllib.loads(render(settings)) == settings


def test_pal_toml_is_read_before_it_counts_and_only_root_may_change_it() -> None:
    (template,) = [task["ansible.builtin.template"] for task in tasks("present") if "ansible.builtin.template" in task]
    assert (template["owner"], template["mode"]) == ("root", "0644")
    assert "SLURM_PAL_CONFIG=%s" in template["validate"] and "load()" in template["validate"]


def test_every_variable_has_a_default_and_is_used() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    files = [*(ROLE / "tasks").iterdir(), *(ROLE / "templates").iterdir()]
    text = "".join(path.read_text() for path in files)
    made = {name for name in re.findall(r"register: (\w+)", text)} | {"slurm_pal_bin", "slurm_pal_words"}
    made.add("slurm_pal_wanted")
    assert defaults.keys() <= {*re.findall(r"\bslurm_pal_\w+", text)}
    assert {*re.findall(r"\bslurm_pal_\w+", text)} - made == defaults.keys()


@pytest.mark.parametrize("name", ["present", "absent"])
def test_pal_setup_has_the_options_that_are_given(name: str) -> None:
    from slurm_pal.cli.pal import pal

    command = pal.commands["setup"]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    (task,) = [one for one in tasks(name) if "ansible.builtin.command" in one]
    given = re.findall(r"(?<!\w)--[a-z-]+", yaml.safe_dump(task))
    assert {"--yes", "--json", "--dry-run"} <= {*given} <= known
