-- SPDX-License-Identifier: MIT
-- In which of its partitions a new job belongs: by what the tick has published (decide/steering.py in Lua), or by the
-- goal of its user (goals.lua).

local plain, number, filled, split, brief = texts.plain, texts.number, texts.filled, texts.split, texts.brief
local choose = answers.choose
local view_of, enough_others = decisions.view_of, decisions.enough_others

local MOST_PARTITIONS = 16
local RESTRICTED = { "allow_accounts", "deny_accounts", "allow_qos", "deny_qos", "qos", "allow_alloc_nodes" }
local UP, ROOT_ONLY, NEEDS_RESERVATION = 3, 8, 16 -- of slurm.h: PARTITION_UP, PART_FLAG_ROOT_ONLY, PART_FLAG_REQ_RESV

-- What the tick has published and is still believed, { from, till, every, room }; nil without it.
local function market_of(t, now_s)
  local found = {}
  for key, value in (t.record.market or ""):gmatch("(%w+)=([%d.]+)") do found[key] = tonumber(value) end
  if not (found.from and found.till and found.every and found.room) then return nil end
  return now_s >= found.from and now_s <= found.till and found or nil
end

-- GPUs of a partition up to a variability class, as { A =, B =, C =, price =, load = } each.
local function priced(t, partition)
  local found = {}
  for _, text in ipairs(split(t.record["priced." .. partition], "[^|]+")) do
    local one = {}
    for key, value in text:gmatch("(%w+)=([%w.+-]+)") do one[key] = tonumber(value) end
    if not (one.price and one.load) then return {} end
    found[#found + 1] = one
  end
  return found
end

-- Partition -> { speed =, error = } of an application on so many GPUs.
local function speeds_of(t, app, gpus)
  local found, name = {}, brief(app, nil, texts.LONGEST_WORD)
  name = plain(name and name:lower():match("^%s*(.-)%s*$"))
  for _, size in ipairs(split(name and t.record["speed." .. name], "[^ ]+")) do
    local count, rest = size:match("^(%d+):(.*)$")
    if tonumber(count) == gpus then
      for partition, speed, error in rest:gmatch("([%w_.-]+)=([%w.+-]+)@([%w.+-]+)") do
        found[partition] = { speed = tonumber(speed) or 0, error = tonumber(error) or 0 }
      end
    end
  end
  return found
end

-- By how much sooner so much work is done here, s; the logarithm of the ratio is shrunk by its errors.
local function gained_s(work, here, other)
  local ratio, doubt = math.log(here.speed / other.speed), here.error ^ 2 + other.error ^ 2
  local sure = ratio == 0 and 0 or ratio ^ 3 / (ratio ^ 2 + doubt)
  return work / here.speed * (math.exp(sure) - 1)
end

-- Where the job belongs of `own`, nil where that is not known or waiting cannot pay. `room` has the partitions with
-- free GPUs for it now.
local function steered(t, market, job, own, room)
  local known, slowest, best, best_s = speeds_of(t, job.app, job.gpus), math.huge, nil, math.huge
  for _, name in ipairs(own) do
    if not known[name] or known[name].speed <= 0 then return nil end
    slowest = math.min(slowest, known[name].speed)
  end
  for _, name in ipairs(own) do
    local run_s, wait = job.run_s * slowest / known[name].speed, room[name] and market.room or 1
    local until_s = math.huge
    for _, some in ipairs(priced(t, name)) do
      until_s = math.min(until_s, run_s * (some[job.class] or 1) * (1 + job.gpus * some.price) + wait * some.load)
    end
    if until_s == math.huge then return nil end
    if until_s < best_s then best, best_s = name, until_s end
  end
  local gain = math.huge
  for _, name in ipairs(own) do
    if name ~= best then gain = math.min(gain, gained_s(job.run_s * slowest, known[best], known[name])) end
  end
  if not (room[best] or t.settings.wait_share * gain >= market.every) then return nil end
  return best
end

-- Whether a submission could be refused in this partition where it would be taken in another: we cannot ask again.
local function may_refuse(part, limit_min, nodes)
  for _, key in ipairs(RESTRICTED) do
    if filled(part[key]) and part[key] ~= "ALL" then return true end
  end
  local flags, longest, most = number(part.flags) or 0, number(part.max_time), number(part.max_nodes)
  if math.floor(flags / ROOT_ONLY) % 2 == 1 or math.floor(flags / NEEDS_RESERVATION) % 2 == 1 then return true end
  if (number(part.state_up) or UP) ~= UP then return true end
  if nodes < (number(part.min_nodes) or 0) or (most and nodes > most) then return true end
  return not limit_min or (longest ~= nil and longest > 0 and limit_min > longest)
end

-- Of a job of several partitions: its own list, those of them that could take it, which have free GPUs for it now,
-- and its request in each; nil where that is not known. `asked(name)` is its request as if it named this one only.
local function open_to(job, t, partitions, now_s, request, asked)
  local text = t and now_s - t.written_s <= t.max_age_s and filled(job.partition)
  if not text or #text > MOST_PARTITIONS * texts.LONGEST_WORD or filled(job.clusters) then return nil end
  local own, room, requests = {}, {}, {}
  local every = split(text, "[^,]+")
  if #every < 2 or #every > MOST_PARTITIONS then return nil end
  for _, name in ipairs(every) do
    local part = plain(name) and partitions and partitions[name]
    local one = part and asked(name)
    if not one or one.leave or one.soft or one.nodes_min ~= one.nodes_max or one.count == "x" then return nil end
    if may_refuse(part, number(job.time_limit), one.nodes_min) then return nil end
    one.class, one.measured = request.class, request.measured
    local view = view_of(one, t, now_s)
    local found = view.pool and choose(view)
    if found or view.pool and enough_others(view, {}) then
      own[#own + 1], room[name], requests[name] = name, found and true or nil, one
    end
  end
  if #own < 2 then return nil end
  return every, own, room, requests, number(job.time_limit) * 60 * t.settings.run_share
end

-- The request of such a job in the partition where it belongs, the words that note its own list, and the partition;
-- nil where Slurm chooses.
local function belongs(job, t, partitions, now_s, request, asked)
  local market = t and t.clears and market_of(t, now_s)
  if not market then return nil end
  local every, own, room, requests, run_s = open_to(job, t, partitions, now_s, request, asked)
  if not every then return nil end
  local one = requests[own[1]]
  local class, gpus = request.class == "?" and "A" or request.class, one.least_gpus * one.nodes_min
  local best = steered(t, market, { app = job.name, gpus = gpus, class = class, run_s = run_s }, own, room)
  if not best then return nil end
  local lease_s = 2 * market.every + t.settings.pass_s
  local words = ("pal:part=%d;own=%s;set=%s"):format(math.floor(lease_s + 0.5), table.concat(every, ","), best)
  return requests[best], words, best
end

return { belongs = belongs, open_to = open_to, speeds_of = speeds_of }
