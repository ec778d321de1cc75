# SPDX-License-Identifier: MIT
"""The nouns, and what every package needs: errors, files, settings, host lists."""
