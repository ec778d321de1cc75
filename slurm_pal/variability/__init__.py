# SPDX-License-Identifier: MIT
"""From measurements to variability classes: records -> slowdowns -> classes."""
