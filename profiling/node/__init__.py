# SPDX-License-Identifier: MIT
"""On a node: devices, sensors and benchmarks, and the observer beside a job."""
