# SPDX-License-Identifier: MIT
"""tests/place.sh: where make test puts its files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_where_memory_cannot_be_written_it_is_a_directory_on_disk(tmp_path: Path) -> None:
    programs, disk = tmp_path / "bin", tmp_path / "disk"
    programs.mkdir()
    disk.mkdir()
    (programs / "df").write_text("#!/bin/sh\nprintf 'Avail\\n99999999\\n'\n")
    (programs / "mktemp").write_text(
        '#!/bin/sh\ncase $* in */dev/shm*) echo "read-only" >&2; exit 1 ;; esac\nexec /usr/bin/mktemp "$@"\n'
    )
    for name in ("df", "mktemp"):
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(disk)}
    done = subprocess.run([ROOT / "tests/place.sh"], env=environment, capture_output=True, text=True, check=False)
    (made,) = disk.iterdir()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{made}\n", "")
    assert made.stat().st_mode & 0o777 == 0o711
