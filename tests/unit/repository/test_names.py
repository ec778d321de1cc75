# SPDX-License-Identifier: MIT
"""A name means one thing: no public class name in more than two modules, no module name in more than three folders."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = [path for top in ("slurm_pal", "cli", "profiling") for path in (ROOT / top).rglob("*.py")]
CLASS_MODULES, MODULE_FOLDERS = 2, 3


def classes() -> dict[str, list[str]]:
    """Public class name -> the modules that define it."""
    found = defaultdict[str, list[str]](list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_class_name_means_many_things() -> None:
    many = {name: modules for name, modules in classes().items() if len(modules) > CLASS_MODULES}
    assert not many


def test_no_module_name_is_in_many_rooms() -> None:
    folders = defaultdict[str, list[str]](list)
    for path in FILES:
        folders[path.stem].append(str(path.parent.relative_to(ROOT)))
    assert not {name: rooms for name, rooms in folders.items() if len(rooms) > MODULE_FOLDERS and name != "__init__"}
