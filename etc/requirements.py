# SPDX-License-Identifier: MIT
"""Print requirements of pyproject.toml, one per line, for pip and for `make lock`.

Usage: requirements.py [extra ...]; without arguments, what the tests need. `build`: only what builds the package;
`run`: only what it needs to run.
"""

from __future__ import annotations

import sys
import tomllib

with open("pyproject.toml", "rb") as stream:
    table = tomllib.load(stream)
project = table["project"]
extras = sys.argv[1:] or ["test", "lint"]
if extras == ["build"]:
    wanted = table["build-system"]["requires"]
elif extras == ["run"]:
    wanted = project["dependencies"]
else:
    wanted = [*project["dependencies"], *(r for name in extras for r in project["optional-dependencies"][name])]
for requirement in wanted:
    print(requirement)
