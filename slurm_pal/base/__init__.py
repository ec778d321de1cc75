# SPDX-License-Identifier: MIT
"""The nouns, and what every room needs: errors, files, settings, host lists."""
