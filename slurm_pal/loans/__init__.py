# SPDX-License-Identifier: MIT
"""Owners and guests: which nodes of owners are open to guests, who leaves them, how many workers elastic jobs have."""
