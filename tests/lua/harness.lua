-- SPDX-License-Identifier: MIT
-- Runs a submit filter outside Slurm: lua5.1 harness.lua FILTER < scenario, which is a Lua table.
-- Prints what happened as lines of "index<TAB>key<TAB>value"; "-" is the index of the log.

local scenario = assert(loadstring("return " .. io.read("*a")))()
local clock = 0
local of_fields = os.time
os.time = function(fields) return fields and of_fields(fields) or clock end -- luacheck: ignore 122

local function say(index, key, value) print(("%s\t%s\t%s"):format(index, key, tostring(value))) end

slurm = { SUCCESS = 0, ERROR = -1 }
local index = "-"
for _, level in ipairs({ "error", "info", "debug", "user" }) do
  slurm["log_" .. level] = function(format, ...) say(index, "log_" .. level, format:format(...)) end
end

-- Fields of a job as slurmctld shows them; the access number `fail_at`, reading or writing, fails.
local function proxy(fields, fail_at)
  local accesses = 0
  local function count()
    accesses = accesses + 1
    if accesses == fail_at then error("access " .. accesses) end
  end
  return setmetatable({}, {
    __index = function(_, key)
      count()
      return fields[key]
    end,
    __newindex = function(_, key, value)
      count()
      fields[key] = value
      say(index, "set_" .. key, value)
    end,
  }), function() return accesses end
end

if scenario.before then assert(loadstring(scenario.before))() end
say("-", "loaded", dofile(arg[1]))
for number, step in ipairs(scenario.steps) do
  index, clock = number, step.now or clock
  if step.write then
    local file = assert(io.open(step.write[1], "wb"))
    file:write(step.write[2])
    file:close()
  end
  if step.job then
    local job, accesses = proxy(step.job, step.fail_at)
    say(index, "verdict", slurm_job_submit(job, scenario.partitions, 1000))
    say(index, "accesses", accesses())
    local environment = step.job.environment or {}
    if environment.SLURM_PAL_CLASS then say(index, "env_class", environment.SLURM_PAL_CLASS) end
    if environment.SLURM_PAL_JOB_CLASS then say(index, "env_mark", environment.SLURM_PAL_JOB_CLASS) end
  elseif step.options then
    say(index, "verdict", slurm_cli_pre_submit(proxy(step.options, step.fail_at), step.offset or 0))
  end
end
