# SPDX-License-Identifier: MIT
"""What runs on a node: devices, benchmarks, and the sweep that brings them there."""
