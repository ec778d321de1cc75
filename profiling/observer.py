# SPDX-License-Identifier: MIT
"""Where jobs submitted by release 0.1 look for the observer; the code is in node/observer.py."""

import sys

from slurm_pal.profiling.node.observer import main

if __name__ == "__main__":
    sys.exit(main())
