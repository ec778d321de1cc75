# SPDX-License-Identifier: MIT
"""Which sensitivity class a job belongs to."""
