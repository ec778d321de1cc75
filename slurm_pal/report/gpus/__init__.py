# SPDX-License-Identifier: MIT
"""Every GPU of a site in one picture, one page, one table: how fast it is, and how that is known."""
