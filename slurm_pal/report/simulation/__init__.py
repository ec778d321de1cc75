# SPDX-License-Identifier: MIT
"""What `pal simulate` shows: tables, files, pictures and one HTML page; read only."""
