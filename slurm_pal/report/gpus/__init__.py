# SPDX-License-Identifier: MIT
"""Every GPU of a site in one picture, one page, one table: what it is worth, and how that is known."""
