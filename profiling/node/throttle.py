# SPDX-License-Identifier: MIT
"""Reasons for a clock below the wanted one, as bits with NVML's values (nvmlClocksEventReason*)."""

from __future__ import annotations

IDLE, APP_CLOCKS, SW_POWER_CAP, HW_SLOWDOWN, SYNC_BOOST = 1, 2, 4, 8, 16
SW_THERMAL, HW_THERMAL, POWER_BRAKE, DISPLAY = 32, 64, 128, 256
