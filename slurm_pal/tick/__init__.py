# SPDX-License-Identifier: MIT
"""One tick: look once, decide, order."""
