# SPDX-License-Identifier: MIT
"""The emulated GPU: used by the lab, by profiling and by the simulator."""
