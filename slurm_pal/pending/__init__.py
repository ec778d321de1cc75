# SPDX-License-Identifier: MIT
"""Pending jobs: which node lists they should bear until the next tick."""
