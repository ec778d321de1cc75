# SPDX-License-Identifier: MIT
"""pal simulate and pal trace."""
