#!/bin/sh
# SPDX-License-Identifier: MIT
# Of slurm-pal-submit: palsub tries a Python that is newer than itself before each job, so it is tried here, whenever
# the distribution installs another one (packaging/deb.py, TRIGGERS; packaging/slurm-pal.spec).
set -eu

if /usr/lib/slurm-pal/bin/python3 -I -S -c '' 2>/dev/null; then
    touch /usr/lib/slurm-pal/bin/palsub
fi
