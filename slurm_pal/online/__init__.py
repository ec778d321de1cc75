# SPDX-License-Identifier: MIT
"""Which GPU the others of a job wait for, from what jobs write while they run, and what a site does about it."""
