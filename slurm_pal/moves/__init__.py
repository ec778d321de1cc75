# SPDX-License-Identifier: MIT
"""Running jobs: which to move where, whether that pays, and each move step by step."""
