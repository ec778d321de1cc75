# SPDX-License-Identifier: MIT
"""Power limits as groups of like GPUs know them."""

from __future__ import annotations

FINE_BELOW_W = 200.0
FINE_W, COARSE_W = 1.0, 5.0
"""Steps below and from there on. Limits that sites set lie in the middle of one, with the readings that mean them."""


def limit_text(watts: float | None) -> str:
    """A power limit in watts, rounded; "" where it is not known.

    Boards report what they enforce, 299.7 or 300.2 W for a limit of 300 W: as it is, it would make each GPU a
    group of one, and its scores would be forgotten with each new reading.
    """
    if watts is None:
        return ""
    step = FINE_W if watts < FINE_BELOW_W else COARSE_W
    return f"{step * round(watts / step):g}"
