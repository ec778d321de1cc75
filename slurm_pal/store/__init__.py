# SPDX-License-Identifier: MIT
"""SQLite with one writer, and the published snapshot, which everybody reads."""
