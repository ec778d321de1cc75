-- slurm-pal: client filter (CliFilterPlugins=lua), for sites that cannot touch slurmctld.
-- Logic: pal.lua beside this file. Runs in sbatch, srun and salloc as the user; any failure here
-- leaves the submission as it was written.
-- At the end of a site's own filter, one line: pcall(dofile, "/etc/slurm/slurm-pal/cli_filter.lua")
-- SPDX-License-Identifier: MIT

local HERE = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local MOST_INSTRUCTIONS = 2e7

local function guarded(fn, ...)
  debug.sethook(function() error("stopped: it ran for too long", 0) end, "", MOST_INSTRUCTIONS)
  local ok, result = pcall(fn, ...)
  debug.sethook()
  if ok then return result end
  slurm.log_debug("slurm-pal: %s", tostring(result))
  return nil
end

local pal = guarded(dofile, HERE .. "pal.lua")
if type(pal) ~= "table" then pal = {} end
pal.table_path = HERE .. "pal_table.public.lua" -- without what only slurmctld may know about users' jobs

-- The functions of the site's own filter, if it called this file.
local site_defaults, site_pre, site_post = slurm_cli_setup_defaults, slurm_cli_pre_submit, slurm_cli_post_submit

function slurm_cli_setup_defaults(options, early)
  return site_defaults and site_defaults(options, early) or slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  local verdict = site_pre and site_pre(options, offset) or slurm.SUCCESS
  if verdict == slurm.SUCCESS and pal.client then guarded(pal.client, options, offset) end
  return verdict
end

function slurm_cli_post_submit(offset, jobid, stepid)
  return site_post and site_post(offset, jobid, stepid) or slurm.SUCCESS
end

return slurm.SUCCESS
