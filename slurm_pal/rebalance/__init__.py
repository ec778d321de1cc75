# SPDX-License-Identifier: MIT
"""What the tick decides: which pending job goes first where the queue leaves a choice, and which running job moves."""
