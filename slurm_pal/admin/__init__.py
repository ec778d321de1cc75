# SPDX-License-Identifier: MIT
"""Installing the filters and the plug-in beside a slurm.conf: plan, apply, undo, status.

Pure functions make the plan from the texts of the files (`changes`); `site_files` reads them,
`apply` writes, `check` asks Slurm's own parser about a candidate.
"""
