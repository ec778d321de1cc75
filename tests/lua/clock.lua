-- SPDX-License-Identifier: MIT
-- Hostile submissions to the submit filter outside Slurm, made here by a seed: how much it works on each.
--     lua5.1 clock.lua PAL.LUA NODES MODE SEED COUNT SECONDS
-- MODE count: instructions. MODE bytes: bytes looked at or made by the functions of the string library, whose work
-- the guard against loops does not see, and the longest text before a pattern that repeats. MODE clock: milliseconds
-- and KiB. MODE attacks: these of a few known submissions. Prints lines of "key<TAB>value": the most of each, and
-- over what.

local NODES, MODE, SEED, COUNT, SECONDS = tonumber(arg[2]), arg[3], tonumber(arg[4]), tonumber(arg[5]), tonumber(arg[6])
local time = os.time
local now_s = time()
os.time = function() return now_s end -- luacheck: ignore 122
slurm = { SUCCESS = 0, SPREAD_JOB = 256, GRES_ENFORCE_BIND = 16, log_error = function() end, log_user = function() end }
math.randomseed(SEED)

local UNSET, UNSET16 = 4294967294, 65534
local NUMBERS = {
  "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "cpus_per_task", "pn_min_cpus", "shared", "time_limit",
  "min_mem_per_node", "min_mem_per_cpu",
}
local TEXTS = {
  "script", "script", "script", "comment", "name", "exc_nodes", "exc_nodes", "features", "partition", "tres_per_node",
  "tres_per_job", "tres_per_task", "cpus_per_tres", "mem_per_tres", "admin_comment", "dependency", "array_inx",
  "req_nodes", "reservation", "prefer", "clusters",
}
local PIECES = {
  "a", "a=", "=", "#", "\n", "#\n", " ", " \n", "\t \r", "#PAL a", "#PAL a=b\n", "#PAL a=b ", "#PAL class=A\n", "a=b ",
  "#PAL movable checkpoint=", " checkpoint=", "n[1-60000]", "n[1-10000]", "n[1-9][1-9][1-9][1-9]", "n[1,2,3]", "[",
  "]",
  ",", "a,", "n1,", "n[1-9],", "0", "00-", "%", "%s", "a&", "a|b&", "&", "|", ":", "gres:gpu:", "gpu:1,", "pal:job=A;",
  "pal:lease=", " pal:job=", "x\n", "x \n", "1-", "1,", "\\", '"', "\255", "srun ./a.out --with some=words\n",
}
local HEADS = { "", "", "", "#!/bin/sh\n", "#PAL ", "n[", "#", " ", "gres:gpu:", "a" }
local LENGTHS = { 10, 100, 1000, 1024, 4096, 4097, 16384, 16385, 65000, 65536, 300000, 4194304 }

local function one_of(list) return list[math.random(#list)] end

local function text(most)
  local length = math.min(most, one_of(LENGTHS))
  local piece = one_of(PIECES)
  if math.random(4) == 1 then piece = piece .. one_of(PIECES) end
  return one_of(HEADS) .. piece:rep(math.ceil(length / #piece))
end

-- Host lists that are nearly as long as may be looked at.
local function hosts()
  local parts = {}
  for _ = 1, math.random(60) do
    local low = math.random(0, NODES)
    parts[#parts + 1] = ("n[%d-%d]"):format(low, low + math.random(0, 40))
  end
  return table.concat(parts, ",")
end

-- Scripts that are nearly as long as may be looked at.
local function script()
  local lines = { "# a comment line\n", "#\n", "x\n", "  x  y \n", ("y"):rep(200) .. " \n", "#PAL app=a class=B\n" }
  local line = one_of(lines)
  return "#!/bin/sh\n" .. line:rep(math.random(0, math.floor(17000 / #line)))
end

local function submission()
  local job = {
    begin_time = 0, priority = UNSET, het_job_offset = UNSET, req_switch = UNSET, contiguous = 0, environment = {},
    ntasks_per_gpu = UNSET16, ntasks_per_tres = UNSET16, user_id = 0, name = "train", script = "#!/bin/sh\ntrue\n",
    tres_per_node = "gres:gpu:" .. math.random(8), bitflags = 0,
  }
  for _, key in ipairs(NUMBERS) do job[key] = UNSET end
  job.shared, job.time_limit = UNSET16, 60
  for _ = 1, math.random(0, 3) do
    job[one_of(NUMBERS)] = one_of({ 0, 1, 2, 4, 16, 63, 64, 65, 100000, 2 ^ 31, 2 ^ 53 })
  end
  for _ = 1, math.random(0, 3) do job[one_of(TEXTS)] = text(4194304) end
  if math.random(3) == 1 then job.exc_nodes = hosts() end
  if math.random(3) == 1 then job.script = script() end
  if math.random(3) == 1 then job.features = ("ib&"):rep(math.random(0, 20)) .. one_of({ "ib", "none", "" }) end
  if math.random(8) == 1 then
    job.spank_job_env = {}
    for i = 1, one_of({ 1, 300, 5000 }) do job.spank_job_env[i] = "_SLURM_SPANK_OPTION_pal_pal_" .. text(2000) end
  end
  if math.random(8) == 1 then job.environment.SLURM_PAL_CLASS = text(4194304) end
  if math.random(8) == 1 then job.environment.SLURM_PAL_MOVABLE = text(4194304) end
  return job
end

-- What was given to string functions: bytes looked at in all, and the longest text before a pattern that repeats.
local looked, patterned = 0, 0

local function count_bytes()
  local find, plain_sub = string.find, string.sub
  local function repeats(pattern) return find(pattern, "[*+-]") and not find(pattern, "^%[.[^]]*%]$") end
  local function note(subject, pattern, from, found)
    local bytes = found and found - from + 1 or #subject - from + 1
    looked = looked + math.max(0, bytes)
    if repeats(pattern) then patterned = math.max(patterned, #subject) end
  end
  string.find = function(subject, pattern, from, plain)
    local results = { find(subject, pattern, from, plain) }
    note(subject, plain and "" or pattern, from or 1, results[2])
    return unpack(results)
  end
  for _, name in ipairs({ "match", "gmatch", "gsub" }) do
    local inner = string[name]
    string[name] = function(subject, pattern, ...)
      note(subject, pattern, 1)
      return inner(subject, pattern, ...)
    end
  end
  for _, name in ipairs({ "format", "rep" }) do
    local inner = string[name]
    string[name] = function(...)
      local made = inner(...)
      looked = looked + #made
      return made
    end
  end
  string.sub = function(subject, from, to)
    local made = plain_sub(subject, from, to)
    looked = looked + #made
    return made
  end
  local concat = table.concat
  table.concat = function(...)
    local made = concat(...)
    looked = looked + #made
    return made
  end
end

local jobs = submission
if MODE == "bytes" then count_bytes() end
local pal = dofile(arg[1])
pal.table_path = arg[1]:gsub("pal%.lua$", "pal_table.lua")
local partitions = { gpu = { nodes = ("n[0-%d]"):format(NODES - 1), flag_default = 1, default_time = UNSET } }
local worst = { ms = 0, kib = 0, instructions = 0, looked = 0, patterned = 0 }
local over, acts = {}, {}

local function keep(what, value, job)
  if value > worst[what] then
    worst[what] = value
    local words = {}
    for key, field in pairs(job) do
      if type(field) == "string" then
        words[#words + 1] = ("%s=%d:%q"):format(key, #field, field:sub(1, 24)):gsub("%s+", " ")
      end
    end
    over[what] = #words .. " " .. table.concat(words, " ")
  end
end

pal.submit({ tres_per_node = "gres:gpu:1", script = "", environment = {} }, partitions) -- reads table and partition

local function measured(job)
  collectgarbage("stop")
  local before_kib, before_s = collectgarbage("count"), os.clock()
  if MODE == "attacks" then pcall(pal.submit, job, partitions) else pal.submit(job, partitions) end
  local ms = (os.clock() - before_s) * 1000
  local kib = collectgarbage("count") - before_kib
  collectgarbage("restart")
  return ms, kib
end

local ATTACKS = {
  { "nothing of note", "name", "train" },
  { "a script of `#PAL ` and 65,000 `a`", "script", "#PAL " .. ("a"):rep(65000) },
  { "--exclude=n[1-60000], 300 times", "exc_nodes", ("n[1-60000],"):rep(300) },
  { "--exclude=n[1-10000], 40,000 times", "exc_nodes", ("n[1-10000]"):rep(40000) },
  { "a script of 4 MiB of empty comments", "script", ("#\n"):rep(2097152) },
  { "a script of 16 KiB, 745 lines", "script", "#!/bin/sh\n" .. ("srun ./step --in a.dat\n"):rep(700) },
}
for _, attack in ipairs(MODE == "attacks" and ATTACKS or {}) do
  local job = submission()
  for _, key in ipairs(NUMBERS) do job[key] = UNSET end
  for _, key in ipairs(TEXTS) do job[key] = nil end
  job.shared, job.spank_job_env, job.environment = UNSET16, nil, {}
  job.script, job.name, job.tres_per_node = "#!/bin/sh\ntrue\n", "train", "gres:gpu:1"
  job[attack[2]] = attack[3]
  print(attack[1], ("%.2f ms, %.0f KiB"):format(measured(job)))
end
if MODE == "attacks" then os.exit(0) end

local began_s, done = time(), 0
while done < COUNT and time() - began_s < SECONDS do
  done = done + 1
  local job = jobs()
  looked, patterned = 0, 0
  local steps = 0
  if MODE == "count" then
    debug.sethook(function() steps = steps + 1 end, "", 100)
    pal.submit(job, partitions)
    debug.sethook()
  elseif MODE == "bytes" then
    pal.submit(job, partitions)
  else
    local ms, kib = measured(job)
    keep("kib", kib, job)
    keep("ms", ms, job)
  end
  local why = type(job.admin_comment) == "string" and job.admin_comment:sub(-9000):match("act=%w+.*why=[%w-]+")
  why = why and why:gsub(";.*;why=", ";why=") or "untouched"
  acts[why] = (acts[why] or 0) + 1
  keep("instructions", steps * 100, job)
  keep("looked", looked, job)
  keep("patterned", patterned, job)
end
print("inputs", done)
for what, value in pairs(worst) do print("most_" .. what, value) end
for what, words in pairs(over) do print("over_" .. what, (words:gsub("[%c\128-\255]", "?"))) end
for what, times in pairs(acts) do print("act_" .. what, times) end
