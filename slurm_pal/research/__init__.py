# SPDX-License-Identifier: MIT
"""What only a study can do: published simulators and policies. Nobody but the commands imports it."""
