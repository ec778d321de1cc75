-- SPDX-License-Identifier: MIT
-- The decision on a request: which nodes, by which means, for how long.

local names_in, spares_of, left_of = tables.names_in, tables.spares_of, tables.left_of
local claimed, claim = claims.claimed, claims.claim
local share, takes, choose = answers.share, answers.takes, answers.choose
local others, slowest = answers.others, answers.slowest

local NOT_RANKED = "0" -- in place of a pool
local UNMEASURED = "c" -- in place of class C: it was stated or guessed, not measured

local function text_of(chosen)
  local names = {}
  for _, pick in ipairs(chosen) do names[#names + 1] = pick.node.name end
  return table.concat(names, ",")
end

-- The class whose scores are used for the job: an unknown one is treated as A.
local function scores_of(request)
  return request.class == "?" and "A" or request.class
end

-- No hard list: a soft preference where the site publishes class features, else nothing.
local function softly(t, request, why)
  local wanted = t and not request.constraint and t.record["prefer." .. scores_of(request)]
  if wanted then return { act = "prefer", set = wanted, why = "soft" } end
  return { act = "none", why = why }
end

-- How long a wait for time factor `here` can pay against `there`, which is free, s.
local function pays_s(t, request, there, here)
  local settings = t.settings
  local run_s = request.limit_s and request.limit_s * settings.run_share or settings.run_s
  return math.max(0, there - here) * run_s
end

-- How long a list may stay for it, s.
local function patience_s(t, seconds)
  return math.max(t.settings.pass_s, math.min(seconds, t.settings.lease_max_s))
end

-- The slowdown where plain Slurm would put the job if others took the GPUs of the nodes in `used`.
local function elsewhere(view, used)
  local text = view.t.record[("plain.%s.%s.%s"):format(view.pool, view.class, view.request.count)] or ""
  local there, name, otherwise = text:match("^([%d.]+):([%w_.-]+):([%d.]+)$")
  return tonumber(used[name] and otherwise or there) or 1
end

-- Whether, without the nodes in `slow`, enough are left that Slurm could give to the job and that are worth a wait.
local function enough_others(view, slow)
  local request, found = view.request, 0
  for name in pairs(slow) do
    if not view.partition[name] then return false end
  end
  for _, spare in ipairs(spares_of(view.t, view.pool, view.class)) do
    local size, gpus = spare.size, request.count
    if size and gpus == "x" then gpus = size.gpus end
    if size and spare.fast >= gpus and not slow[spare.name] and not request.excluded[spare.name]
      and view.partition[spare.name] and takes(view, size, gpus)
      and (not request.constraint or request.constraint(size.features)) then
      found = found + 1
      if found >= request.nodes_min then return true end
    end
  end
  return false
end

local SLOW = { why = "slow", all = { why = "slow-all" } }
local FAULTY = { why = "faulty", all = { why = "faulty-all" } }

-- Only barred or faulty GPUs are free: exclude their nodes for as long as waiting for others can pay.
local function keep_off(view, slowdown, locality)
  local request, reason, factor = view.request, SLOW, slowdown * locality
  if slowdown >= view.t.settings.faulty then reason, factor = FAULTY, nil end
  local key = ("slow.%s.%s.%s"):format(view.pool, view.class, request.count)
  local slow = view.t.record[key]
  if not slow or not enough_others(view, names_in(view.t, key)) then
    return { act = "none", why = reason.all.why, slow = factor }
  end
  local pays = pays_s(view.t, request, slowdown * locality, locality)
  local ends_per_h = tonumber(view.t.record[("ends.%s.%s"):format(view.pool, view.class)]) or 0
  if reason == SLOW and pays * ends_per_h <= 3600 then return { act = "none", why = "slow-rare", slow = factor } end
  if request.soft then return softly(view.t, request, request.soft) end
  return {
    act = "exclude",
    set = slow,
    why = reason.why,
    slow = factor,
    lease_s = patience_s(view.t, view.t.settings.wait_share * pays),
  }
end

-- The pool of a request, and what of its nodes is gone.
local function view_of(request, t, now_s)
  local pool = t.record[("pool.%s.%s"):format(request.partition, request.gpu_type)]
  local view = { t = t, request = request, claimed = claimed(t, now_s), found = {} }
  view.partition, view.left = request.partition_nodes, left_of(t, request.partition)
  view.pool, view.class = pool ~= NOT_RANKED and pool or nil, scores_of(request)
  view.list = view.class == "C" and not request.measured and UNMEASURED or view.class
  return view
end

-- The decision on a request that may be placed.
local function weigh(view, request, t)
  local chosen, used
  if view.pool then chosen, used = choose(view) end
  if not chosen then return { act = "none", why = "busy" } end
  if #chosen > 1 and t.record.network then return { act = "none", why = "network" } end
  local slowdown = slowest(view, chosen)
  local locality = #chosen > 1 and (t.settings.locality or 1) or 1
  local plain = t.record[("plain.%s.%s.%s"):format(view.pool, view.class, request.count)] or ""
  view.alone = tonumber(plain:match("^[%d.]+"))
  local plain_slowdown = view.alone or 1
  local faulty = t.settings.faulty
  local most = view.class == "C" and faulty or t.settings.barred or math.huge
  -- Once a list is taken back, Slurm picks: rather start on a slow GPU than wait and then get a faulty one.
  local spared = plain_slowdown >= faulty and slowdown < faulty
  if slowdown >= faulty or slowdown > most and not spared then return keep_off(view, slowdown, locality) end
  if t.record[("alike.%s.%s"):format(view.pool, view.list)] then
    return { act = "none", why = "alike", slow = slowdown * locality, chosen = chosen }
  end
  if not others(view, used) then return { act = "none", why = "same", slow = slowdown * locality, chosen = chosen } end
  if request.soft then return softly(t, request, request.soft) end
  for _, pick in ipairs(chosen) do
    if not takes(view, pick.node, pick.count) then return { act = "none", why = "size", slow = slowdown * locality } end
  end
  return {
    act = "nodelist",
    set = text_of(chosen),
    why = "best",
    slow = slowdown * locality,
    lease_s = patience_s(t, pays_s(t, request, elsewhere(view, used) * locality, slowdown * locality)),
    chosen = chosen,
  }
end

-- The nodes of a job's partition with GPUs slower than its user wants, as a list, and the slowest of them.
local function slow_nodes(view, bound)
  local names, worst = {}, 0
  for name, slowdown in (view.t.record["avoid." .. view.class] or ""):gmatch("([%w_.-]+)=([%d.]+)") do
    slowdown = tonumber(slowdown) or 0
    if slowdown > bound and view.partition[name] and not view.request.excluded[name] then
      names[#names + 1], worst = name, math.max(worst, slowdown)
    end
  end
  return names, worst
end

-- The decision of a job that is to be kept off slow GPUs: among the other nodes, which it is kept to for no longer than
-- a slow GPU would cost it. Without enough others, or free GPUs to know that by, it is decided as if nobody had asked.
local function keep_to_others(view, request, t)
  local names, worst = slow_nodes(view, request.avoid)
  if #names == 0 then return weigh(view, request, t) end
  local slow = {}
  for _, name in ipairs(names) do slow[name] = true end
  if request.soft or not view.pool or not enough_others(view, slow) then
    local decision = weigh(view, request, t)
    decision.avoid = { why = request.soft or "slow-all" }
    return decision
  end
  for _, name in ipairs(names) do request.excluded[name] = true end
  local decision = weigh(view, request, t)
  local lease_s = t.settings.lease_max_s
  if worst < t.settings.faulty then lease_s = patience_s(t, pays_s(t, request, worst, 1)) end
  local set = table.concat(names, ",")
  if decision.act == "nodelist" then
    decision.avoid = { set = set, lease_s = lease_s }
    return decision
  end
  local also = decision.act == "exclude" and "," .. decision.set or ""
  return {
    act = "exclude",
    set = set .. also,
    why = "avoid",
    slow = decision.slow,
    lease_s = math.max(lease_s, decision.lease_s or 0),
    chosen = decision.chosen,
    avoid = {},
  }
end

-- The decision, and what was looked at for it.
local function judged(request, t, now_s)
  if request.leave then return { act = "none", why = request.leave } end
  if not t then return { act = "none", why = "table" } end
  local pool = t.record[("pool.%s.%s"):format(request.partition, request.gpu_type)]
  if pool == NOT_RANKED then return { act = "none", why = "models" } end
  local age_s = now_s - t.written_s
  if age_s > t.max_age_s or age_s < -t.max_age_s then return softly(t, request, "stale") end
  if not t.clears then return softly(t, request, "nobody") end
  local view = view_of(request, t, now_s)
  if request.avoid then return keep_to_others(view, request, t), view end
  return weigh(view, request, t), view
end

local function decide(request, t, now_s)
  local decision, view = judged(request, t, now_s)
  if view and decision.lease_s then decision.alone = view.alone end
  return decision
end

-- The GPUs of a job that will start are no longer free for the next submission.
local function remember(request, decision, now_s)
  for _, pick in ipairs(decision.chosen or {}) do
    local cpus, mem = share(request, pick.count, pick.node)
    claim(pick.node.name, pick.count, cpus, mem, now_s)
  end
end

return { decide = decide, remember = remember, view_of = view_of, enough_others = enough_others }
