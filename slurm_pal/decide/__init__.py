# SPDX-License-Identifier: MIT
"""Where one job should go: pure; used by submission, publisher, tick and simulator alike."""
