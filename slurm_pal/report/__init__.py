# SPDX-License-Identifier: MIT
"""Tables for people; read only."""
