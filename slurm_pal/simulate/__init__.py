# SPDX-License-Identifier: MIT
"""Replay a trace on a virtual cluster, with the placement code that palsub uses and a clock of its own."""
