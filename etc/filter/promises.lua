-- SPDX-License-Identifier: MIT
-- What was given away since the table was written.

local MOST_PROMISES = 1024
local promises = {}
local summed = {} -- what the promises come to, for one table and one second

local function add(sums, promise)
  local sum = sums[promise.node] or { gpus = 0, cpus = 0, mem = 0 }
  for what in pairs(sum) do sum[what] = sum[what] + promise[what] end
  sums[promise.node] = sum
end

-- Node name -> GPUs, CPUs and MiB promised to jobs that the table does not know of yet. A table
-- that was written in a later second has seen the job, running or waiting with its node list.
local function promised(t, now_s)
  if summed.epoch ~= t.epoch or summed.now_s ~= now_s then
    local kept, sums = {}, {}
    for _, promise in ipairs(promises) do
      if promise.at_s >= t.written_s and now_s - promise.at_s <= t.max_age_s then
        kept[#kept + 1] = promise
        add(sums, promise)
      end
    end
    promises, summed = kept, { epoch = t.epoch, now_s = now_s, sums = sums }
  end
  return summed.sums
end

local function promise(name, gpus, cpus, mem, now_s)
  if #promises < MOST_PROMISES then
    promises[#promises + 1] = { node = name, gpus = gpus, cpus = cpus, mem = mem, at_s = now_s }
    add(summed.sums, promises[#promises])
  end
end

return { promised = promised, promise = promise }
