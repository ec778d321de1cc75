# SPDX-License-Identifier: MIT
"""Run every fuzzer of this folder, one after the other, and print a table: `make fuzz SECONDS=600`.

Each file here with a `main` is one; its contract is in docs/architecture.md. The seconds are shared out evenly. The
exit code is 1 where a fuzzer found something, did not end, or did not print its summary.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GRACE_S = 900.0
"""A fuzzer that starts and ends a Slurm of its own needs more than its share; one that takes this much more hangs."""


def fuzzers(names: list[str]) -> list[Path]:
    """The fuzzers by name; all, where none is named. Raises SystemExit for a name that is none."""
    found = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.name != "run.py" and _has_main(path)}
    unknown = sorted(set(names) - found.keys())
    if unknown:
        raise SystemExit(f"{unknown[0]} is no fuzzer: there are {', '.join(found)}")
    return [found[name] for name in names or found]


def _has_main(path: Path) -> bool:
    return "\ndef main(" in path.read_text()


def run(path: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run one fuzzer: its summary, with its exit code as `code` and, where something went wrong, `trouble`."""
    # Programs of the environment that runs this are the ones that are fuzzed.
    environment = os.environ | {"PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"}
    argv = [sys.executable, str(path), "--seconds", f"{seconds:g}", "--seed", str(seed)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=seconds + GRACE_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM if isinstance(error, KeyboardInterrupt) else signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return {"code": -1, "trouble": f"did not end {GRACE_S:.0f} s after its time"}
    *others, last = out.splitlines() or [""]
    print("".join(f"{line}\n" for line in others), end="")
    try:
        summary = json.loads(last)
        summary = {"inputs": int(summary["inputs"]), "violations": int(summary["violations"]), **summary}
    except (ValueError, TypeError, KeyError):
        return {"code": process.returncode, "trouble": f"ended with {process.returncode} and {last[:80]!r}"}
    if bool(process.returncode) != bool(summary["violations"]):
        summary["trouble"] = f"ended with {process.returncode} after {summary['violations']} violations"
    return {"code": process.returncode, **summary}


def line(name: str, summary: dict[str, Any]) -> str:
    """One row of the table; what a fuzzer tells beside the common figures stands at its end."""
    figures = {"fuzzer", "inputs", "seconds", "violations", "memory_mib", "code", "trouble"}
    more = summary.get("trouble") or " ".join(f"{key}={summary[key]}" for key in summary if key not in figures)
    columns = [str(summary.get(key, "-")) for key in ("inputs", "seconds", "violations", "memory_mib")]
    return f"{name:<14} {columns[0]:>9} {columns[1]:>8} {columns[2]:>10} {columns[3]:>10}  {more}"


def main() -> int:
    parser = argparse.ArgumentParser("run.py", description="Run all fuzzers.")
    parser.add_argument("--seconds", type=float, default=600.0, help="of all together (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="another one at every run, where not given")
    parser.add_argument("fuzzer", nargs="*", help="only these")
    given = parser.parse_args()
    chosen = fuzzers(given.fuzzer)
    print(f"{len(chosen)} fuzzers, {given.seconds / len(chosen):g} s each, seed {given.seed}", flush=True)
    results = {}
    for path in chosen:
        results[path.stem] = run(path, given.seconds / len(chosen), given.seed)
        print(line(path.stem, results[path.stem]), flush=True)
    print(f"\n{'FUZZER':<14} {'INPUTS':>9} {'SECONDS':>8} {'VIOLATIONS':>10} {'MEMORY_MIB':>10}")
    for name, summary in results.items():
        print(line(name, summary))
    print(f"{sum(summary.get('inputs', 0) for summary in results.values())} inputs with seed {given.seed}")
    return int(any(summary["code"] != 0 or "trouble" in summary for summary in results.values()))


if __name__ == "__main__":
    sys.exit(main())
