# SPDX-License-Identifier: MIT
"""Who takes lists of ours back: the promise, the lease guard, and what stands on jobs."""
