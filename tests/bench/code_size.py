# SPDX-License-Identifier: MIT
"""How large the product's code is, and how many of its class names have two meanings.

python tests/bench/code_size.py [TREE]      TREE: a checkout; this one unless given
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from pathlib import Path

MOST = 40  # lines of a function


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    texts = {f: f.read_text() for top in ("slurm_pal", "cli", "profiling") for f in (root / top).rglob("*.py")}
    trees = {f: ast.parse(text) for f, text in texts.items()}
    lines = {str(f.relative_to(root)): text.count("\n") for f, text in texts.items()}
    functions = {
        f"{f.relative_to(root)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for f, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }  # fmt: skip
    classes = Counter(
        node.name for tree in trees.values() for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    for what, sizes in (("modules", lines), ("functions", functions)):
        name = max(sizes, key=lambda one: sizes[one])
        print(
            f"{what}: {len(sizes)}; median {statistics.median(sizes.values()):g} lines; longest {name}, {sizes[name]}"
        )
    print(f"lines: {sum(lines.values())}; functions of more than {MOST}: {sum(n > MOST for n in functions.values())}")
    print(f"public class names: {len(classes)}; in two modules {sum(n == 2 for n in classes.values())}, "
          f"in more {sum(n > 2 for n in classes.values())}")  # fmt: skip


if __name__ == "__main__":
    main()
