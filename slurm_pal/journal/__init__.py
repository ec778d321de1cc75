# SPDX-License-Identifier: MIT
"""What the tick has begun and reported: its journal, its log, the words on jobs."""
