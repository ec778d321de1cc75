# SPDX-License-Identifier: MIT
"""The Lua of the submit filter: what it has from Python, and the files that a site gets."""
