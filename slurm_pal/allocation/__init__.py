# SPDX-License-Identifier: MIT
"""Shares of jobs over columns (partitions, GPU types, classes of GPUs): the Gavel family, exact (gavel.md).

Pure: arrays in, arrays out; no I/O, no clock, no random numbers of its own.
"""
