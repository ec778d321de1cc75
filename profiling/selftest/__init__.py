# SPDX-License-Identifier: MIT
"""One card, checked: `pal-profile selftest`."""
