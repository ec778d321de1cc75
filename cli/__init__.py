# SPDX-License-Identifier: MIT
"""The commands: parse, call, print."""
