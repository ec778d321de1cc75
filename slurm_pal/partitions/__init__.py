# SPDX-License-Identifier: MIT
"""Unequal partitions: in which of its user's partitions a job should wait, by effective throughput."""
