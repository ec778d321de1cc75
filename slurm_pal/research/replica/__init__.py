# SPDX-License-Identifier: MIT
"""Replica mode: the published simulator of PAL (SC'24; artefact blox-pal) with its rounds, baselines and quirks.

It exists for comparison with the paper. Jobs advance in rounds, moves are free, and only
the prefix of the queue that fits runs; the scenario settings take these away one by one.
"""
