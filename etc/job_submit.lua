-- slurm-pal: submit filter of slurmctld (JobSubmitPlugins=lua). Logic: pal.lua beside this file.
-- Keep this file small: slurmctld does not start if it has a syntax error. It is read again
-- when its own time changes, so `touch` it after changing pal.lua.
-- At the end of a site's own filter, one line: pcall(dofile, "/etc/slurm/slurm-pal/job_submit.lua")
-- SPDX-License-Identifier: MIT

local HERE = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local MOST_INSTRUCTIONS = 2e7 -- a few tenths of a second: slurmctld has no guard against a loop

-- Call fn; any failure is one line in the log, and nil.
local function guarded(fn, ...)
  debug.sethook(function() error("stopped: it ran for too long", 0) end, "", MOST_INSTRUCTIONS)
  local ok, result = pcall(fn, ...)
  debug.sethook()
  if ok then return result end
  slurm.log_error("slurm-pal: %s", tostring(result))
  return nil
end

local pal = guarded(dofile, HERE .. "pal.lua")
if type(pal) ~= "table" then pal = {} end
pal.table_path = HERE .. "pal_table.lua"

-- The functions of the site's own filter, if it called this file.
local site_submit, site_modify = slurm_job_submit, slurm_job_modify

function slurm_job_submit(job, partitions, uid)
  local verdict = site_submit and site_submit(job, partitions, uid) or slurm.SUCCESS
  if verdict == slurm.SUCCESS and pal.submit then guarded(pal.submit, job, partitions) end
  return verdict
end

function slurm_job_modify(job, record, partitions, uid)
  return site_modify and site_modify(job, record, partitions, uid) or slurm.SUCCESS
end

return slurm.SUCCESS
