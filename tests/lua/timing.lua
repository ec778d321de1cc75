-- SPDX-License-Identifier: MIT
-- How long the submit filter works: lua5.1 timing.lua FILTER NODES UID [PRICED] < script. Prints ms of the first
-- call, which reads the table, and of one of a thousand later ones that are looked up but not pinned; with PRICED
-- partitions these name up to four of them and are sent to one.

local now = os.time()
os.time = function() return now end -- luacheck: ignore 122
slurm = { SUCCESS = 0, log_error = print, log_user = print }
dofile(arg[1])
local script = io.read("*a")

local unset, unset16 = 4294967294, 65534
local partitions = { gpu = { nodes = ("n[0-%d]"):format(arg[2] - 1), flag_default = 1, default_time = unset } }
local named, priced = {}, tonumber(arg[4]) or 0
for number = 0, priced - 1 do
  local inside = {}
  for node = number, arg[2] - 1, priced do inside[#inside + 1] = "n" .. node end
  partitions["p" .. number] = { nodes = table.concat(inside, ","), default_time = unset, max_time = unset }
  if number < 4 then named[number + 1] = "p" .. number end
end

local function submit(number)
  local job = {
    min_nodes = unset, max_nodes = unset, num_tasks = unset, ntasks_per_node = unset16, ntasks_per_gpu = unset16,
    ntasks_per_tres = unset16, cpus_per_task = unset16, pn_min_cpus = unset16, shared = unset16, time_limit = 60,
    begin_time = 0, priority = unset, het_job_offset = unset, req_switch = unset, contiguous = 0,
    array_inx = priced == 0 and "1" or nil, partition = priced > 0 and table.concat(named, ",") or nil,
    script = script, name = ("name"):rep(16), user_id = tonumber(arg[3]), environment = {},
    tres_per_node = "gres:gpu:" .. 1 + number % 4,
  }
  slurm_job_submit(job, partitions, 1000)
  return job
end

local function ms_of(calls)
  local began = os.clock()
  for number = 1, calls do submit(number) end
  return (os.clock() - began) * 1000 / calls
end

local first_ms = ms_of(1)
if priced > 0 then assert(submit(2).partition == "p0", "the goal was not followed") end
print(first_ms, ms_of(1000))
