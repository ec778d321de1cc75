# SPDX-License-Identifier: MIT
"""Where jobs submitted by release 0.1 look for the bench; the code is in node/bench.py."""

import sys

from slurm_pal.profiling.node.bench import main

if __name__ == "__main__":
    sys.exit(main())
