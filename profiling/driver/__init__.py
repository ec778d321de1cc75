# SPDX-License-Identifier: MIT
"""Backend that needs nothing but the NVIDIA driver (docs/driver-backend.md)."""

from slurm_pal.profiling.driver.backend import DriverBackend, available, open_backend

__all__ = ["DriverBackend", "available", "open_backend"]
