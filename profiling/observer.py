# SPDX-License-Identifier: MIT
"""Where jobs that 0.1 has submitted look for the observer; the code is in node/observer.py."""

import sys

from slurm_pal.profiling.node.observer import main

if __name__ == "__main__":
    sys.exit(main())
