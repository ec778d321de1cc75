-- SPDX-License-Identifier: MIT
-- Which of its partitions a new job takes by the goal of its user: decide/alternatives.py in Lua, as far as this is
-- known here. How long a job would wait is not: it starts at once where GPUs are free for it, or nobody knows when.

local filled = texts.filled
local open_to, speeds_of = steering.open_to, steering.speeds_of

local TIME, COST, DEADLINE = "time", "cost", "deadline"
local UNITS = { s = 1, second = 1, m = 60, minute = 60, h = 3600, hour = 3600, d = 86400, day = 86400, week = 604800 }
local LONGEST_NUMBER = 9
local CLOCK = "^(%d%d?):(%d%d?)$"

-- Unix seconds of a day and a time of day; nil where there is none such.
local function unix_s(day, clock)
  local seconds = clock:match(":%d%d?:(%d%d?)$")
  local hour, minute = (seconds and clock:match("^(.*):%d+$") or clock):match(CLOCK)
  if not hour or tonumber(hour) > 23 or tonumber(minute) > 59 or tonumber(seconds or 0) > 59 then return nil end
  local at = { year = day.year, month = day.month, day = day.day, hour = hour, min = minute, sec = seconds or 0 }
  local found = os.time(at)
  local back = found and os.date("*t", found)
  return back and back.month == tonumber(day.month) and back.day == tonumber(day.day) and found or nil
end

-- Unix seconds of 2026-12-01T18:00, 18:00 or now+8hours, as sbatch(1) has it for --begin; nil for anything else.
local function moment_s(text, now_s)
  local count, unit = text:match("^now%+(%d+)(%l*)$")
  if count then
    local factor = unit == "" and 1 or UNITS[unit] or UNITS[unit:match("^(.*)s$") or ""]
    return factor and #count <= LONGEST_NUMBER and now_s + count * factor or nil
  end
  local year, month, day, clock = text:match("^(%d%d%d%d)-(%d%d)-(%d%d)T?(.*)$")
  if year then return unix_s({ year = year, month = month, day = day }, filled(clock) or "00:00") end
  local found = unix_s(os.date("*t", now_s), text)
  return found and (found > now_s and found or found + 86400)
end

-- The goal in the user's words, as { kind =, until_s = }; nil and what is wrong with it.
local function goal_of(text, now_s)
  if text == TIME or text == COST then return { kind = text } end
  local when = text:match("^deadline=(.+)$")
  local until_s = when and moment_s(when, now_s)
  if not until_s then return nil, "is not time, cost or deadline=WHEN" end
  if until_s <= now_s then return nil, "has passed" end
  return { kind = DEADLINE, until_s = until_s }
end

-- Money for an hour of the request in a partition; nil where no price is known.
local function per_hour(t, partition, request)
  local text = t.record["price." .. partition]
  if not text then return nil end
  local rates = {}
  for key, value in text:gmatch("([%w_.:-]+)=([%w.+-]+)") do rates[key] = tonumber(value) end
  local nodes = request.nodes_min
  local gpus = request.least_gpus * nodes
  local cpus = math.max(nodes * request.tasks_on_node * request.cpus_per_task, gpus * request.cpus_per_gpu)
  local mib = math.max(request.mem_per_node * nodes, request.mem_per_cpu * cpus, request.mem_per_gpu * gpus)
  local of_type = rates["gpu:" .. request.gpu_type:lower()] or rates.gpu or 0
  return gpus * of_type + cpus * (rates.cpu or 0) + mib / 1024 * (rates.mem or 0) + nodes * (rates.node or 0)
end

-- The place that costs least: of a goal with a deadline, of those that hold it; of equal ones the one that ends
-- sooner, then the first. nil where no such place has a price.
local function best(places, goal, now_s)
  local found
  for _, place in ipairs(places) do
    local in_time = goal.kind == COST or now_s + place.end_s <= goal.until_s
    local less = not found or place.cost < found.cost or place.cost == found.cost and place.end_s < found.end_s
    if in_time and less then found = place end
  end
  return found and found.cost < math.huge and found or nil
end

-- The mark by which a tick chooses again: decide/place_mark.py.
local function mark_of(chosen, goal, places, cpus, now_s)
  local fields = { "pal:alt=" .. chosen, "goal=" .. goal.kind }
  if goal.kind == DEADLINE then fields[#fields + 1] = ("until=%d"):format(goal.until_s) end
  fields[#fields + 1] = ("at=%d"):format(now_s)
  fields[#fields + 1] = ("cpus=%d"):format(cpus)
  for number, place in ipairs(places) do
    fields[#fields + 1] = ("p%d=%s|%s||0||%d"):format(number - 1, place.name, place.name, place.run_s)
  end
  return table.concat(fields, ";")
end

-- The request of a job of several partitions in the one that its goal chooses, the mark, and the partition; nil where
-- Slurm chooses.
local function chosen(goal, job, t, partitions, now_s, request, asked)
  if goal.kind == TIME then return nil end -- Slurm starts it where it can first
  local every, own, room, requests, run_s = open_to(job, t, partitions, now_s, request, asked)
  if not every or #own > terms.places then return nil end
  local first = requests[own[1]]
  local speeds, slowest = speeds_of(t, job.name, first.least_gpus * first.nodes_min), math.huge
  for _, name in ipairs(own) do
    local known = speeds[name]
    if known and known.speed > 0 then slowest = math.min(slowest, known.speed) end
  end
  local places = {}
  for _, name in ipairs(own) do
    local known, hourly = speeds[name], per_hour(t, name, requests[name])
    local place = { name = name, run_s = run_s }
    if known and known.speed > 0 then place.run_s = run_s * slowest / known.speed end
    place.end_s = (room[name] and 0 or math.huge) + place.run_s
    place.cost = hourly and hourly * place.run_s / 3600 or math.huge
    places[#places + 1] = place
  end
  local found = best(places, goal, now_s)
  if not found then return nil end
  return requests[found.name], mark_of(found.name, goal, places, first.cpus_per_task, now_s), found.name
end

-- The goal in force, of what the script, the environment and the site say, the first first; and a warning.
local function stated(now_s, ...)
  for _, text in ipairs({ ... }) do
    if filled(text) then
      local goal, wrong = goal_of(texts.start_of(text, texts.LONGEST_WORD), now_s)
      return goal, wrong and "the goal " .. wrong .. ": ignored"
    end
  end
  return nil
end

return { stated = stated, chosen = chosen }
