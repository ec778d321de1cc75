-- SPDX-License-Identifier: MIT
-- What was given away since the table was written.

local MOST_CLAIMS = 1024
local claims = {}
local summed = {} -- the sums of the claims, for one table and one second

local function add(sums, claim)
  local sum = sums[claim.node] or { gpus = 0, cpus = 0, mem = 0 }
  for what in pairs(sum) do sum[what] = sum[what] + claim[what] end
  sums[claim.node] = sum
end

-- Node name -> GPUs, CPUs and MiB claimed by jobs that the table does not know yet. A table
-- that was written in a later second has seen the job, running or waiting with its node list.
local function claimed(t, now_s)
  if summed.epoch ~= t.epoch or summed.now_s ~= now_s then
    local kept, sums = {}, {}
    for _, claim in ipairs(claims) do
      if claim.at_s >= t.written_s and now_s - claim.at_s <= t.max_age_s then
        kept[#kept + 1] = claim
        add(sums, claim)
      end
    end
    claims, summed = kept, { epoch = t.epoch, now_s = now_s, sums = sums }
  end
  return summed.sums
end

local function claim(name, gpus, cpus, mem, now_s)
  if #claims < MOST_CLAIMS then
    claims[#claims + 1] = { node = name, gpus = gpus, cpus = cpus, mem = mem, at_s = now_s }
    add(summed.sums, claims[#claims])
  end
end

return { claimed = claimed, claim = claim }
