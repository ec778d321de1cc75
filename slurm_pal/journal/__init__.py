# SPDX-License-Identifier: MIT
"""What the tick has begun and what it has told: its journal, its log, the words on jobs."""
