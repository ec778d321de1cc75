# SPDX-License-Identifier: MIT
"""Clocks of several machines, and clocks that are set back."""

CLOCK_SKEW_S = 5.0
"""A time may be this far in the future: login nodes and controller have their own clocks."""
