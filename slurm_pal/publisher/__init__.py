# SPDX-License-Identifier: MIT
"""What the submit filter reads: standing answers, written every few seconds."""
