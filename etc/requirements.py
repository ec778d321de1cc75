"""Print the requirements of pyproject.toml, one a line, for pip.

Usage: requirements.py [extra ...]; without arguments what the tests need.
"""

from __future__ import annotations

import sys
import tomllib

with open("pyproject.toml", "rb") as stream:
    project = tomllib.load(stream)["project"]
extras = sys.argv[1:] or ["test", "lint"]
for requirement in [*project["dependencies"], *(r for name in extras for r in project["optional-dependencies"][name])]:
    print(requirement)
