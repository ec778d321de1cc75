# SPDX-License-Identifier: MIT
"""On the controller: which nodes are measured when, and what comes back."""
