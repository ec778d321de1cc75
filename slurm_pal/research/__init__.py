# SPDX-License-Identifier: MIT
"""What only a study can do: published simulators and policies. Only the commands import it."""
