# SPDX-License-Identifier: MIT
"""The Lua of the submit filter: what it takes from Python, and the files that a site gets."""
