# SPDX-License-Identifier: MIT
"""Power limits of like GPUs are one limit, whatever each board reports."""

from __future__ import annotations

import pytest

from slurm_pal.variability.power_limit import limit_text


@pytest.mark.parametrize(
    ("watts", "text"),
    [
        (None, ""), (300.0, "300"), (299.7, "300"), (302.4, "300"), (302.6, "305"), (700.0, "700"), (698.9, "700"),
        (72.0, "72"), (71.8, "72"), (70.3, "70"), (165.2, "165"), (199.6, "200"), (201.0, "200"), (225.3, "225"),
    ],
)  # fmt: skip
def test_a_limit_is_rounded_to_what_was_meant(watts: float | None, text: str) -> None:
    assert limit_text(watts) == text
