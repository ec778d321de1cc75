-- slurm-pal: the logic of the submit filters, loaded by job_submit.lua (in slurmctld) and by
-- cli_filter.lua (in sbatch, srun and salloc). For Lua 5.1 and later.
--
-- It decides nothing of its own: `pal publish` ranks the nodes by the placement rule in force and
-- writes the table; here a request is read, the answer looked up, and what was given away since
-- the table was written is remembered. Nothing is executed from the table, no process is started,
-- and one line of the table is read at most once a second. docs/filter.md has the formats.
-- SPDX-License-Identifier: MIT

local M = { table_path = "/etc/slurm/pal_table.lua", now = os.time }

-- == Words ==================================================================================

local NAME = "^[%w_.-]+$"
local LONGEST_WORD = 64
local UNSET = { [65534] = true, [65535] = true, [4294967294] = true, [4294967295] = true }

-- A user's word, when it is a plain name.
local function plain(text)
  return type(text) == "string" and #text <= LONGEST_WORD and text:find(NAME) and text or nil
end

-- A number of Slurm's; nil for its several ways to say "not set".
local function number(value)
  value = tonumber(value)
  if not value or UNSET[value] or value < 0 or value > 2 ^ 53 then return nil end
  return math.floor(value)
end

local function filled(text)
  return type(text) == "string" and text ~= "" and text or nil
end

local function split(text, pattern)
  local parts = {}
  for part in (text or ""):gmatch(pattern) do parts[#parts + 1] = part end
  return parts
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

-- Whatever a user writes is bounded in bytes before a pattern or a loop sees it: the guard against loops
-- does not fire inside Lua's own functions. Nor is there a pattern that can look at a text twice.
local LONGEST_TEXT = 1024 -- bytes; slurmctld refuses a longer comment, name or constraint
local LONGEST_LIST, LONGEST_HOST, MOST_BRACKETS = 4096, 255, 3
local MOST_EXCLUDED, MOST_NAMES = 512, 100000

-- A text that may be looked at: its first bytes; "" for none.
local function start_of(text, most)
  return type(text) == "string" and text:sub(1, most or LONGEST_TEXT) or ""
end

-- A text as it is, nil for none, and `instead` for one that is too long to be looked at.
local function brief(text, instead, most)
  text = filled(text)
  if text and #text > (most or LONGEST_TEXT) then return instead end
  return text
end

-- The first and last number, with all their digits, of one range of a host list; nil when it is not one.
local function range_of(text)
  if #text > 19 then return nil end
  local low, high = text:match("^(%d+)%-(%d+)$")
  low = low or text:match("^%d+$")
  high = high or low
  if not low or #low > 9 or #high > 9 or tonumber(high) < tonumber(low) then return nil end
  return low, high
end

-- Append the names of one part of a host list, like "n[1-3,07]-ib"; false when it is not one, or there would be
-- more than `most` names in all.
local function expand_part(text, names, most, brackets)
  local open = text:find("[", 1, true)
  if not open then
    names[#names + 1] = text
    return #text <= LONGEST_HOST and text:find(NAME) ~= nil and #names <= most
  end
  local close = text:find("]", open, true)
  if not close or brackets == 0 or open > LONGEST_HOST then return false end
  local head, tail, at = text:sub(1, open - 1), text:sub(close + 1), open + 1
  while at <= close do
    local stop = text:find(",", at, true)
    stop = stop and stop < close and stop or close
    local low, high = range_of(text:sub(at, stop - 1))
    if not low or high - low > most - #names then return false end
    local form = "%0" .. #low .. "d"
    for count = tonumber(low), tonumber(high) do
      if not expand_part(head .. form:format(count) .. tail, names, most, brackets - 1) then return false end
    end
    at = stop + 1
  end
  return true
end

-- The names of a host list; nil when it is written in a way that is not known here, or has more than `most`.
local function expand(text, most)
  local names, start, at, inside = {}, 1, 1, false
  while true do
    local stop = text:find("[%[%],]", at) or #text + 1
    local char = text:sub(stop, stop)
    if char == "[" or char == "]" then
      if inside == (char == "[") then return nil end
      inside = char == "["
    elseif not inside then
      if stop > start and not expand_part(text:sub(start, stop - 1), names, most, MOST_BRACKETS) then return nil end
      start = stop + 1
    elseif char == "" then
      return nil
    end
    if char == "" then return names end
    at = stop + 1
  end
end

-- == The table ==============================================================================

local SCHEMA = "pal.table/1"
local HEAD_BYTES, MOST_BYTES = 512, 16 * 1024 * 1024
local known = { trouble = "it was not read yet" }

local function head_of(start)
  local head = {}
  local line = start:match("^return {([^\n]*),\r?\n")
  for key, value in (line or ""):gmatch('%["([%w_]+)"%] = "([%w_./-]*)"') do head[key] = value end
  return head
end

local MAY_BE_READ = { [1] = true, [13] = true, [30] = true } -- EPERM, EACCES, EROFS: it is not ours to write

-- A file of which any part can be read at once, and its size in bytes; nil and the reason. Opening a FIFO waits
-- for who writes into it, and would hold slurmctld for ever. Opened for writing, too, it does not wait, and shows
-- itself by having no end. Where we may not write, whoever could put one there could as well change this code.
local function open_file(path)
  local file, why, errno = io.open(path, "r+b")
  if not file and MAY_BE_READ[errno] then file, why = io.open(path, "rb") end
  if not file then return nil, why end
  local size = file:seek("end")
  if size and size > 0 and file:seek("set") then return file, size end
  file:close()
  return nil, size and "it is empty" or "it is not a regular file"
end

-- The records of a table whose first bytes are `start`; nil and the reason when it is no good.
local function load_table(file, size, start)
  local head = head_of(start)
  if head.schema ~= SCHEMA then return nil, "it is not a table of " .. SCHEMA end
  if size > MOST_BYTES then return nil, "it is larger than " .. MOST_BYTES .. " bytes" end
  file:seek("set")
  local text = file:read(size) or ""
  local record = {}
  for key, value in text:gmatch('\n%["([%w_.-]+)"%] = "([%w_.,:|=+@ -]*)"') do record[key] = value end
  local t = {
    record = record,
    epoch = head.epoch,
    clears = filled(head.clears),
    written_s = tonumber(head.written_s),
    max_age_s = tonumber(head.max_age_s),
    settings = {},
    nodes = {},
    numbers = {}, -- node name -> its numbers in the table (several, where a node has GPUs of several types)
    lists = {},
    sets = {},
    spares = {},
  }
  for key, value in (record.settings or ""):gmatch("([%w_]+)=([%d.]+)") do t.settings[key] = tonumber(value) end
  if not t.epoch or record["end"] ~= t.epoch then return nil, "it is cut short" end
  local i, node = 1, record["node.1"]
  while node do
    local name = node:match("^[%w_.-]+")
    if name then
      t.numbers[name] = t.numbers[name] or {}
      table.insert(t.numbers[name], i)
    end
    i = i + 1
    node = record["node." .. i]
  end
  if not (t.written_s and t.max_age_s) then return nil, "its first line lacks written_s or max_age_s" end
  return t
end

-- The table in force, read again when its first line has changed; nil and the reason without one.
local function current(now_s)
  if known.checked_s == now_s then return known.table, known.trouble end
  known.checked_s = now_s
  local file, size = open_file(M.table_path)
  local start = file and file:read(HEAD_BYTES)
  if not start then
    known.start, known.table, known.trouble = nil, nil, file and "it cannot be read" or size
  elseif start ~= known.start or not known.table then
    known.start = start
    known.table, known.trouble = load_table(file, size, start)
  end
  if file then file:close() end
  return known.table, known.trouble
end

-- Name and numbers of a node, or numbers alone of a size: "n1 cpus=2 mem=4 feat=a,b A=1.01,1".
local function parse_node(text)
  local found = { name = text:match("^([%w_.-]+)"), slowdown = {}, features = {} }
  if not found.name then return false end
  for key, value in text:gmatch(" (%w+)=([%w_.,:|+@-]*)") do
    if key == "A" or key == "B" or key == "C" then
      local row = split(value, "[^,]+")
      for position, slowdown in ipairs(row) do row[position] = tonumber(slowdown) or 1 end
      found.slowdown[key] = row
    elseif key == "feat" then
      found.features = set_of(split(value, "[^,]+"))
    else
      found[key] = tonumber(value)
    end
  end
  return found
end

local function node_of(t, i)
  if t.nodes[i] == nil then
    local text = t.record["node." .. i]
    local node = text and parse_node(text)
    t.nodes[i] = node and node.gpus and node or false -- a record that lost a word says nothing
  end
  return t.nodes[i]
end

-- The ranking of one pool, class, preference and count, as nodes untouched since the table was
-- written (`fresh`: { i, rank }, best first) and the ranks of those that have given GPUs away
-- (`later`: entry -> rank). Empty when it was not published.
local function ranking(t, ...)
  local key = table.concat({ "list", ... }, ".")
  local found = t.lists[key]
  if found then return found end
  found = { fresh = {}, later = {} }
  local rank = 0
  for digits in (t.record[key] or ""):gmatch("%d+") do
    local entry = tonumber(digits)
    rank = rank + 1
    if entry % 64 == 0 then
      found.fresh[#found.fresh + 1] = { i = math.floor(entry / 64), rank = rank }
    else
      found.later[entry] = rank
    end
  end
  t.lists[key] = found
  return found
end

-- The names in a record, as a set.
local function names_in(t, key)
  t.sets[key] = t.sets[key] or set_of(split(t.record[key], "[^,]+"))
  return t.sets[key]
end

-- What is known of the sizes of nodes: { cpus =, mem =, ... } of a record; nil without one.
local function size_of(t, key)
  local text = t.record[key]
  if not t.sets[key] and text then t.sets[key] = parse_node("- " .. text) end
  return t.sets[key]
end

-- Nodes of a pool that will have GPUs worth waiting for: { name, fast (GPUs), size }.
local function spares_of(t, pool, class)
  local key = ("spare.%s.%s"):format(pool, class)
  if not t.spares[key] then
    t.spares[key] = {}
    for size, name, fast in (t.record[key] or ""):gmatch("(%d+):([%w_.-]+)=(%d+)") do
      table.insert(t.spares[key], { name = name, fast = tonumber(fast), size = size_of(t, "size." .. size) })
    end
  end
  return t.spares[key]
end

-- == What was given away since the table was written =========================================

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

-- == Looking up the answer ===================================================================

local MOST_PREFERENCES = 8
local NOT_RANKED = "0" -- in the place of a pool
local NOTHING = { gpus = 0, cpus = 0, mem = 0 }

-- CPUs and MiB that `gpus` GPUs of a job need on one node, which has `all_cpus`.
local function share(request, gpus, all_cpus)
  local cpus = math.max(request.tasks_on_node * request.cpus_per_task, request.cpus_per_gpu * gpus, request.min_cpus)
  local counted = request.count == "x" and all_cpus or math.max(1, cpus)
  local mem = math.max(request.mem_per_node, request.mem_per_cpu * counted, request.mem_per_gpu * gpus)
  if request.most_mem_per_cpu then cpus = math.max(cpus, math.ceil(mem / request.most_mem_per_cpu)) end
  return cpus, mem
end

-- Whether Slurm would ever give `gpus` GPUs of a node of this size to the job, so that naming the node, or leaving
-- no others than such, cannot be why the job is refused. A partition's defaults of CPUs and memory for each GPU
-- are not known here; they do not ask for more than the richest node of the pool has for each of its GPUs.
local function takes(view, size, gpus)
  local richest, request = size_of(view.t, "most." .. view.pool), view.request
  if not richest or not size or not size.allcpus or size.gpus < request.least_gpus then return false end
  local cpus, mem = share(request, gpus, size.allcpus)
  if request.cpus_per_gpu == 0 then cpus = math.max(cpus, gpus * richest.cpusgpu) end
  if not request.mem_stated then mem = math.max(mem, gpus * richest.memgpu) end
  -- A CPU of a core with two threads counts, and costs memory, twice; which nodes have such is not known.
  local asked = request.mem_per_cpu * (request.count == "x" and size.allcpus or 2 * math.max(1, cpus))
  if request.mem_per_cpu > 0 and size.allmem < asked then return false end
  if size.allcpus < math.min(cpus, richest.allcpus) then return false end
  if request.largest_only and (size.allcpus < richest.allcpus or size.allmem < richest.allmem) then return false end
  return size.allmem >= math.min(mem, richest.allmem)
end

-- Whether a node of the table may take the job now.
local function fits(view, node, gpus)
  local request, gone = view.request, view.promised[node.name] or NOTHING
  if not view.partition[node.name] or request.excluded[node.name] then return false end
  if node.gpus < request.least_gpus then return false end
  if request.constraint and not request.constraint(node.features) then return false end
  local cpus, mem = share(request, gpus, node.allcpus or 0)
  return cpus <= (node.cpus or 0) - gone.cpus and mem <= (node.mem or 0) - gone.mem
end

-- The nodes that can give `count` GPUs ("x": all of their own), best first, each once and one more than may be used.
local function candidates(view, preference)
  local found, most, count = {}, view.request.nodes_max + 1, view.request.count
  if view.found[preference] then return view.found[preference] end
  local ranks = ranking(view.t, view.pool, view.class, preference, count)
  local function look(i, rank)
    local node, last = node_of(view.t, i), found[most]
    if not node or last and last.rank < rank then return end
    if not fits(view, node, count == "x" and node.gpus or count) then return end
    local place = #found + 1
    while place > 1 and found[place - 1].rank > rank do place = place - 1 end
    table.insert(found, place, { node = node, rank = rank })
    found[most + 1] = nil
  end
  for _, entry in ipairs(ranks.fresh) do
    local node = node_of(view.t, entry.i)
    if node and not view.promised[node.name] then look(entry.i, entry.rank) end
  end
  for name, gone in pairs(next(ranks.later) and view.promised or {}) do
    for _, i in ipairs(view.t.numbers[name] or {}) do
      local rank = ranks.later[i * 64 + gone.gpus]
      if rank then look(i, rank) end
    end
  end
  local names, once = {}, {}
  for _, entry in ipairs(found) do
    if not names[entry.node.name] then once[#once + 1] = entry.node end
    names[entry.node.name] = true
  end
  view.found[preference] = once
  return once
end

-- Of a range of node counts as many as there are, as Slurm takes them: the best ones, also as a set of names.
local function choose(view)
  local count = view.request.count
  for nodes = view.request.nodes_max, view.request.nodes_min, -1 do
    for preference = 1, MOST_PREFERENCES do
      local liked = candidates(view, preference)
      if #liked >= nodes then
        local chosen, used = {}, {}
        for place = 1, nodes do
          local node = liked[place]
          chosen[place] = { node = node, count = count == "x" and node.gpus or count }
          used[node.name] = true
        end
        return chosen, used
      end
    end
  end
  return nil
end

-- Whether Slurm might choose another node than those in `used`.
local function others(view, used)
  for preference = 1, MOST_PREFERENCES do
    for _, node in ipairs(candidates(view, preference)) do
      if not used[node.name] then return true end
    end
  end
  return false
end

-- The slowest GPU of those that Slurm will hand out, lowest free index first.
local function slowest(view, chosen)
  local worst = 0
  for _, pick in ipairs(chosen) do
    local row = pick.node.slowdown[view.class] or {}
    local given = (view.promised[pick.node.name] or NOTHING).gpus
    for position = given + 1, given + pick.count do worst = math.max(worst, row[position] or 1) end
  end
  return worst
end

-- == The decision ===========================================================================

-- What each code in a mark means; `pal explain` has the same words.
local WHY = {
  best = "the GPUs that suit it best of those that are free",
  slow = "only slow GPUs are free: kept off them while waiting for others can pay",
  ["slow-all"] = "only slow GPUs are free, and no better ones will become free for this job",
  soft = "asked softly for good GPUs, since nobody would take a node list back",
  size = "nodes of several sizes may take it, and the best might be too small for what Slurm adds to its request",
  long = "some of its options are longer than what is looked at here",
  same = "no other GPUs that are free suit the request",
  busy = "the GPUs are not free now, so the job queues, and a node list could only delay it",
  off = "switched off by the user",
  palsub = "palsub has decided",
  het = "the parts of a heterogeneous job are placed together by Slurm",
  array = "an array has one node list for all its tasks",
  open = "its number of nodes is open, and a node list could split it",
  own = "the user named the nodes",
  prefer = "the user's own --prefer stands",
  immediate = "it starts at once or not at all",
  comment = "the user's own comment stands, so there is no place for the mark of a lease",
  stdin = "the script came through a pipe, which can be read only once",
  later = "the job does not start now",
  constraint = "Slurm weighs the constraint",
  network = "Slurm weighs the network",
  shape = "Slurm derives the number of GPUs or nodes",
  models = "the GPUs that it may get are of several models, which scores do not compare",
  partition = "more than one partition may take the job",
  reservation = "the reservation names the nodes",
  table = "there is no table of free GPUs",
  stale = "the table of free GPUs is too old",
  nobody = "nobody would take a node list back",
}
M.WHY = WHY

local function text_of(chosen)
  local names = {}
  for _, pick in ipairs(chosen) do names[#names + 1] = pick.node.name end
  return table.concat(names, ",")
end

-- The class whose scores stand for the job's: one that is not known is treated as A.
local function scores_of(request)
  return request.class == "?" and "A" or request.class
end

-- No hard words: a soft preference where the site publishes class features, else nothing.
local function softly(t, request, why)
  local wanted = t and not request.constraint and t.record["prefer." .. scores_of(request)]
  if wanted then return { act = "prefer", set = wanted, why = "soft" } end
  return { act = "none", why = why }
end

-- How long a wait for time factor `here` can pay against `there`, which is free, s.
local function patience_s(t, request, there, here, portion)
  local settings = t.settings
  local run_s = request.limit_s and request.limit_s * (settings.run_share or 0.5) or settings.run_s or 3600
  local pays_s = portion * math.max(0, there - here) * run_s
  return math.max(settings.pass_s or 3, math.min(pays_s, settings.lease_max_s or 600))
end

-- Whether, without the nodes in `slow`, enough are left that Slurm could give the job and that are worth waiting for.
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

-- Only barred GPUs are free: exclude their nodes for as long as waiting for others can pay.
local function keep_off(view, slowdown, locality)
  local request = view.request
  local key = ("slow.%s.%s.%s"):format(view.pool, view.class, request.count)
  local slow = view.t.record[key]
  if not slow or not enough_others(view, names_in(view.t, key)) then
    return { act = "none", why = "slow-all", slow = slowdown * locality }
  end
  if request.soft then return softly(view.t, request, request.soft) end
  local portion = view.t.settings.wait_share or 0.5
  return {
    act = "exclude",
    set = slow,
    why = "slow",
    slow = slowdown * locality,
    lease_s = patience_s(view.t, request, slowdown * locality, locality, portion),
  }
end

local function decide(request, t, now_s)
  if request.leave then return { act = "none", why = request.leave } end
  if not t then return { act = "none", why = "table" } end
  local pool = t.record[("pool.%s.%s"):format(request.partition, request.gpu_type)]
  if pool == NOT_RANKED then return { act = "none", why = "models" } end
  local age_s = now_s - t.written_s
  if age_s > t.max_age_s or age_s < -t.max_age_s then return softly(t, request, "stale") end
  if not t.clears then return softly(t, request, "nobody") end
  local view = { t = t, request = request, promised = promised(t, now_s), found = {} }
  view.partition = request.partition_nodes
  view.pool, view.class = pool, scores_of(request)
  local chosen, used
  if view.pool then chosen, used = choose(view) end
  if not chosen then return { act = "none", why = "busy" } end
  local slowdown = slowest(view, chosen)
  local locality = #chosen > 1 and (t.settings.locality or 1) or 1
  if view.class ~= "C" and slowdown > (t.settings.barred or math.huge) then
    return keep_off(view, slowdown, locality)
  end
  if not others(view, used) then return { act = "none", why = "same", slow = slowdown * locality, chosen = chosen } end
  if request.soft then return softly(t, request, request.soft) end
  for _, pick in ipairs(chosen) do
    if not takes(view, pick.node, pick.count) then return { act = "none", why = "size", slow = slowdown * locality } end
  end
  local plain_slowdown = tonumber(t.record[("plain.%s.%s.%s"):format(view.pool, view.class, request.count)]) or 1
  return {
    act = "nodelist",
    set = text_of(chosen),
    why = "best",
    slow = slowdown * locality,
    lease_s = patience_s(t, request, plain_slowdown * locality, slowdown * locality, 1),
    chosen = chosen,
  }
end

-- The GPUs of a job that will start are no longer free for the next submission.
local function remember(request, decision, now_s)
  for _, pick in ipairs(decision.chosen or {}) do
    local cpus, mem = share(request, pick.count, pick.node.allcpus or 0)
    promise(pick.node.name, pick.count, cpus, mem, now_s)
  end
end

-- == What a job asks for =====================================================================

local MOST_NODES = 64
local LONGEST_TRES, MOST_FEATURES = 256, 16

-- Type ("-" for any) and number of the GPUs in a text like "gres:gpu:v100:2", "gpu:2" or, of an
-- option that speaks of nothing but GPUs, "v100:2"; nil for what cannot be mapped.
local function gpus_of(text, bare)
  if not filled(text) then return "-", 0 end
  if #text > LONGEST_TRES or text:find(",", 1, true) then return nil end
  local words = split(text:gsub("^gres[:/]", ""), "[^:=]+")
  if words[1] == "gpu" then
    table.remove(words, 1)
  elseif not bare then
    return nil
  end
  local count = 1
  local last = words[#words]
  if last and #last <= 9 and last:find("^%d+$") then count = tonumber(table.remove(words)) end
  if #words > 1 or not plain(words[1] or "-") then return nil end
  return words[1] or "-", count
end

-- A test of a node's features for names joined by & or by |; nil when the text says more.
local function constraint_of(text)
  local joint = text:match("[&|]") or "&"
  local names = split(text, "[^" .. joint .. "]+")
  if #names == 0 or #names > MOST_FEATURES then return nil end
  for _, name in ipairs(names) do
    if not plain(name) then return nil end
  end
  return function(features)
    for _, name in ipairs(names) do
      if (features[name] ~= nil) == (joint == "|") then return joint == "|" end
    end
    return joint == "&"
  end
end

-- The shape of a request: GPUs on each node and the range of nodes. nil: it asks for no GPU;
-- false: Slurm derives it from what we do not know.
local function shape_of(ask)
  local kind, per_node = gpus_of(ask.gpus_per_node)
  local kind_of_total, total = gpus_of(ask.gpus, true)
  local kind_of_task, per_task = gpus_of(ask.gpus_per_task, true)
  if not (kind and kind_of_total and kind_of_task) or (total > 0 and per_task > 0) then return false end
  if per_node + total + per_task == 0 then return nil end
  local low, high, tasks = ask.nodes_min or 1, ask.nodes_max, ask.tasks
  if not high and tasks and ask.tasks_per_node then
    low = math.ceil(tasks / ask.tasks_per_node)
    high = low
  end
  if per_task > 0 and ask.tasks_per_node and high then
    per_node = per_task * ask.tasks_per_node
  elseif per_task > 0 then
    total = per_task * (tasks or 1)
  end
  if per_node > 0 and total > 0 then
    if total % per_node ~= 0 then return false end
    low = math.floor(total / per_node)
    high = low
  elseif total > 0 then
    if low > 1 or (high or 1) > 1 then return false end
    per_node = total
  end
  -- With a part of the GPUs on the node named, Slurm would take the others elsewhere.
  local open = not high and total > 1
  if not high and low > 1 then return false end
  high = high or 1
  if low ~= high then open = true end -- a limit on nodes that is not known here may allow fewer than are free
  if low < 1 or high < low or high > MOST_NODES or per_node >= 64 then return false end
  for _, other in ipairs({ kind_of_total, kind_of_task }) do
    if kind == "-" then kind = other end
    if other ~= "-" and other ~= kind then return false end
  end
  -- More tasks than the nodes may hold: Slurm refuses that, but takes it where a node is named.
  if ask.tasks_per_node and ask.tasks and ask.tasks > high * ask.tasks_per_node then return false end
  return { kind = kind, per_node = per_node, low = low, high = high, tasks = tasks, open = open }
end

-- The request that is decided on, from what an adapter has read (`ask`); nil when it is not for us.
local function request_of(ask)
  local shape = shape_of(ask)
  if shape == nil then return nil end
  local request = { class = "?", leave = ask.leave, soft = ask.soft, limit_s = ask.limit_s, partition = ask.partition }
  if not shape then
    request.leave = request.leave or "shape"
    return request
  end
  if shape.open then request.soft = request.soft or "open" end
  request.gpu_type, request.least_gpus = shape.kind, shape.per_node
  request.count = ask.exclusive and "x" or shape.per_node
  request.nodes_min, request.nodes_max = shape.low, shape.high
  request.tasks_on_node = ask.tasks_per_node or math.ceil((shape.tasks or shape.low) / shape.low)
  request.cpus_per_task = ask.cpus_per_task or 1
  request.cpus_per_gpu, request.min_cpus = ask.cpus_per_gpu or 0, ask.min_cpus or 0
  request.mem_per_node = ask.mem_per_node or 0
  request.mem_per_cpu, request.mem_per_gpu = ask.mem_per_cpu or 0, ask.mem_per_gpu or 0
  request.mem_stated, request.most_mem_per_cpu = ask.mem_stated, ask.most_mem_per_cpu
  request.largest_only = ask.largest_only
  -- Of more CPUs than it allows for the GPUs or on a node, Slurm makes one thing or another.
  local tasks_cpus, gpus_cpus = request.tasks_on_node * request.cpus_per_task, request.cpus_per_gpu * shape.per_node
  local most = math.min(ask.most_cpus or math.huge, gpus_cpus > 0 and gpus_cpus or math.huge)
  if math.max(tasks_cpus, request.min_cpus) > most or gpus_cpus > (ask.most_cpus or math.huge) then
    request.leave = request.leave or "shape"
  end
  if ask.mem_per_node == 0 and not ask.exclusive then request.leave = request.leave or "shape" end
  if ask.constraint then
    request.constraint = constraint_of(ask.constraint)
    if not request.constraint then request.leave = request.leave or "constraint" end
  end
  local excluded = expand(ask.exclude or "", MOST_EXCLUDED)
  if not excluded then request.leave = request.leave or "own" end
  request.exclude, request.excluded = ask.exclude or "", set_of(excluded or {})
  request.partition_nodes = ask.partition_nodes
  if not plain(request.partition) then request.leave = request.leave or "partition" end
  return request
end

-- == The sensitivity class ===================================================================

local CLASSES = { A = true, B = true, C = true }
local SCRIPT_BYTES, MOST_COMMENTS, MOST_OURS = 65536, 512, 32
local SHARP, NEWLINE = 35, 10

-- What one #PAL line says, put into `found`. A word that is cut in two says nothing.
local function pal_line(text, found)
  if #text > LONGEST_TEXT then text = text:sub(1, LONGEST_TEXT):match("^.*%s") or "" end
  if not text:find("^%s") then return end
  text = text:sub(1, (text:find("%scheckpoint=") or 0) - 1)
  text = text:sub(1, (text:find("#", 1, true) or 0) - 1)
  for word in text:gmatch("%S+") do
    local key, value = word:match("^(%w+)=([%w_.-]+)")
    if key then found[key] = value end
    if word == "movable" then found.movable = "" end
  end
end

-- Of --open-mode only the first letter counts, as for sbatch: "1" where output is appended to, "0" where not.
local function appends(mode)
  local letter = (mode or ""):sub(1, 1):lower()
  return letter == "a" and "1" or letter == "t" and "0" or nil
end

local function open_mode_of(text)
  text = text:sub(1, (text:find("#", 1, true) or 0) - 1)
  return text:find("^%s") and text:match("%s%-%-open%-mode[=%s](%a)")
end

-- key -> value of the `#PAL` lines before the first command of a script; movable alone has the value "", and
-- open_mode is what an #SBATCH line says of it.
-- A checkpoint command goes on to the end of its line, and is palsub's: a filter cannot wrap a script.
local function pal_lines(script)
  local found, at, ours = {}, 1, 0
  script = start_of(script, SCRIPT_BYTES)
  for _ = 1, MOST_COMMENTS do
    local first = script:find("%S", at)
    if not first or script:byte(first) ~= SHARP then break end
    local stop = script:find("\n", first, true) or #script + 1
    local begins = first == 1 or script:byte(first - 1) == NEWLINE
    local word = begins and script:sub(first, first + 6) or ""
    if word:sub(1, 4) == "#PAL" and ours < MOST_OURS then
      ours = ours + 1
      pal_line(script:sub(first + 4, stop - 1), found)
    elseif word == "#SBATCH" then
      local text = script:sub(first + 7, math.min(stop - 1, first + 6 + LONGEST_TEXT))
      found.open_mode = open_mode_of(text) or found.open_mode
    end
    at = stop + 1
  end
  return found
end

-- Whether palsub has looked at the job: its word, or the mark of its lease, is in the comment. Users who write
-- the word themselves do not say where the class comes from.
local function palsub_was_here(comment)
  comment = " " .. start_of(comment)
  return comment:find("pal:lease=", 1, true) or comment:find(" pal:job=[ABC?];from=")
end

-- The class that palsub has found, in its word on the job; it looked at more than we can.
local function palsubs_class(comment)
  return (" " .. start_of(comment)):match(" pal:job=([ABC]);")
end

-- Class, where it comes from, and a warning: the first source that says something counts.
local function stated(t, sources)
  local warning
  for _, source in ipairs(sources) do
    local origin, class, app = source[1], filled(source[2]), filled(source[3])
    if class and CLASSES[class] then return class, origin, warning end
    local known_app = plain(app) and t and t.record["app." .. app:lower()]
    if known_app then return known_app, origin .. ":" .. app, warning end
    local wrong = class or app
    if wrong then
      warning = ("%s: %s is not %s; treated as not stated"):format(
        origin, plain(wrong) or "the value", class and "one of A, B, C" or "an application known here"
      )
    end
  end
  return "?", "default", warning
end

-- The script of a batch job by what it does, as slurm_pal/sensitivity/keys.py has it: without comments
-- and blank lines. nil for one that is too long to be looked at here.
local LONGEST_SCRIPT, MOST_LINES = 16384, 1024

local function work_of(script)
  if not script or #script > LONGEST_SCRIPT then return nil end
  local lines, at = {}, 1
  for _ = 1, MOST_LINES do
    local first = script:find("%S", at)
    if not first then return #lines > 0 and table.concat(lines, "\n") or nil end
    local stop = script:find("\n", first, true) or #script + 1
    if script:byte(first) ~= SHARP then lines[#lines + 1] = script:sub(first, stop - 1):match("^.*%S") end
    at = stop + 1
  end
  return nil
end

local MODULI, ROUNDS = { 4053239669, 3144134291 }, 3

-- x * x modulo m, of numbers below 2^32 and in steps that stay below 2^53.
local function squared(x, m)
  local high = math.floor(x / 65536)
  return (x * high % m * 65536 + x * (x - high * 65536)) % m
end

-- The checksum of keys.py: remainders of the number whose digits to the base 256 are 1 and these bytes, mixed.
local function checksum(text)
  local one, two, m, n = 1, 1, MODULI[1], MODULI[2]
  for at = 1, #text - 3, 4 do
    local a, b, c, d = text:byte(at, at + 3)
    local high, low = a * 256 + b, c * 256 + d
    one = ((one * 65536 + high) % m * 65536 + low) % m
    two = ((two * 65536 + high) % n * 65536 + low) % n
  end
  for at = #text - #text % 4 + 1, #text do
    one, two = (one * 256 + text:byte(at)) % m, (two * 256 + text:byte(at)) % n
  end
  for _ = 1, ROUNDS do
    one = (squared(one, m) + two) % m
    two = (squared(two, n) + one) % n
  end
  return ("%08x%08x"):format(one, two)
end

-- What the user's earlier jobs with this script, or of this name, were measured to be; nil where the table
-- has nothing sure of them. Of the two the surer one, which is the less mixed.
local function measured(t, uid, name, script)
  local entries = t and uid and t.record[("label.%d"):format(uid)]
  if not entries then return nil end
  entries = " " .. entries
  local function look(head, text)
    if not text then return nil, -1 end
    local class, sure = entries:match((" %s%s=([ABC]):([%%d.]+)"):format(head, checksum(text)))
    return class, tonumber(sure) or -1
  end
  name = brief(name, "") or ""
  local by_script, script_sure = look("s", work_of(script))
  local by_name, name_sure = look("n", name:match("^.*%S", name:find("%S")))
  if script_sure >= name_sure then return by_script end
  return by_name
end

-- The user's word against what was measured: whichever counts by the site's rule (sensitivity.trust).
local function class_of(t, sources, ...)
  local class, origin, warning = stated(t, sources)
  local trust = t and t.record.trust or "user"
  if class ~= "?" and trust == "user" then return class, origin, warning end
  local seen = measured(t, ...)
  if seen and (class == "?" or trust == "measured" or seen < class) and seen ~= class then
    return seen, "history", warning
  end
  return class, origin, warning
end

local LONGEST_SECONDS = 9

-- Whether the job may be moved while it runs: nil, or the seconds of work that this may cost it ("" unknown).
local function movable_of(lines, variable, several)
  if several or variable == "0" then return nil end
  local lost = lines.movable
  if lost and #lost <= LONGEST_SECONDS and not lost:find("%D") then return lost end
  return variable == "1" and "" or nil
end

-- == The mark on the job ====================================================================

-- One word that tells the lease to whoever takes it back, and the decision to `pal explain`.
local function mark_of(request, decision, origin, t)
  local fields = {}
  if decision.lease_s then
    fields[#fields + 1] = ("lease=%d"):format(math.floor(decision.lease_s + 0.5))
    fields[#fields + 1] = "req="
    fields[#fields + 1] = "exc=" .. request.exclude
  end
  fields[#fields + 1] = "class=" .. request.class
  fields[#fields + 1] = "from=" .. origin
  if request.movable then fields[#fields + 1] = "mov=1" end
  if filled(request.movable) then fields[#fields + 1] = "lost=" .. request.movable end
  if request.app then fields[#fields + 1] = "app=" .. request.app end
  fields[#fields + 1] = "act=" .. decision.act
  if decision.set then fields[#fields + 1] = "set=" .. decision.set end
  fields[#fields + 1] = "why=" .. decision.why
  if decision.slow then fields[#fields + 1] = ("slow=%.3f"):format(decision.slow) end
  fields[#fields + 1] = "epoch=" .. (t and t.epoch or "-")
  return "pal:" .. table.concat(fields, ";")
end

-- Bytes; slurmctld refuses a job whose own comment has more than 1024.
local LONGEST_COMMENT, LONGEST_MARK = 1000, 8192

-- The text with the mark behind it; nil where that would be too long.
local function beside(text, mark, most)
  text = filled(text)
  if #mark + (text and #text + 1 or 0) > most then return nil end
  return text and text .. " " .. mark or mark
end

-- A decision that can be kept, and the text with its mark. Nobody could take a list back that no mark tells of.
local function marked(text, request, decision, origin, t, most)
  local mark = beside(text, mark_of(request, decision, origin, t), most)
  if mark or not decision.lease_s then return decision, mark end
  decision = { act = "none", why = "long", slow = decision.slow }
  return decision, beside(text, mark_of(request, decision, origin, t), most)
end

local function sentence(request, decision, origin)
  local did = { nodelist = "sent to ", exclude = "kept off ", prefer = "asked softly for " }
  local what = did[decision.act] and did[decision.act] .. decision.set or "left to Slurm"
  local factor = decision.slow and (", predicted at %.3f of a median GPU's time"):format(decision.slow) or ""
  local lease = decision.lease_s and ("; for %d s at most"):format(math.floor(decision.lease_s + 0.5)) or ""
  return ("class %s (%s): %s: %s%s%s"):format(request.class, origin, what, WHY[decision.why], factor, lease)
end

-- == In slurmctld ===========================================================================

local OPTION = "_SLURM_SPANK_OPTION_pal_pal_"
local MOST_OPTIONS = 256

-- The options of our SPANK plug-in, as slurmctld shows them: { class =, app =, off =, explain = }.
local function spank_options(job)
  local found, seen, environment = {}, 0, job.spank_job_env
  for _, pair in pairs(type(environment) == "table" and environment or {}) do
    seen = seen + 1
    if seen > MOST_OPTIONS then break end
    pair = start_of(pair, 2 * #OPTION + LONGEST_WORD)
    if pair:sub(1, #OPTION) == OPTION then
      local name, value = pair:sub(#OPTION + 1):match("^(%w+)=?(.*)$")
      if name then found[name] = value end
    end
  end
  return found
end

-- The names of a partition's nodes as Slurm has them now: the admin's text, looked at once for each partition.
local function nodes_of(name, text)
  known.names = known.names or {}
  local seen = known.names[name]
  if not seen or seen.text ~= text then
    seen = { text = text, set = set_of(expand(text or "", MOST_NAMES) or {}) }
    known.names[name] = seen
  end
  return seen.set
end

-- The one partition of a job, and its name.
local function partition_of(job_partition, partitions)
  local name = filled(job_partition)
  if name and #name > LONGEST_WORD then return nil end
  for key, part in pairs(partitions or {}) do
    if not name and part.flag_default == 1 then name = key end
  end
  local part = name and partitions and partitions[name]
  if part then return part, name end
  return nil
end

local function flagged(bits, flag)
  return bits and flag and math.floor(bits / flag) % 2 == 1
end

-- Why the choice of nodes is not ours, by the fields of a submission; nil when it may be.
local function reason_to_leave(job, now_s)
  if palsub_was_here(job.comment) then return "palsub" end
  if number(job.het_job_offset) then return "het" end
  if (number(job.begin_time) or 0) > now_s or filled(job.dependency) then return "later" end
  if number(job.priority) == 0 or filled(job.burst_buffer) or number(job.reboot) == 1 then return "later" end
  if filled(job.reservation) then return "reservation" end
  if filled(job.req_nodes) then return "own" end
  if filled(job.prefer) then return "prefer" end
  if (number(job.immediate) or 0) > 0 then return "immediate" end
  if number(job.req_switch) or number(job.contiguous) == 1 then return "network" end
  local bits = number(job.bitflags)
  if flagged(bits, slurm.SPREAD_JOB) then return "network" end
  if flagged(bits, slurm.GRES_ENFORCE_BIND) then return "shape" end
  if filled(job.clusters) then return "partition" end
  if filled(job.tres_per_socket) or number(job.ntasks_per_gpu) or number(job.ntasks_per_tres) then return "shape" end
  if (number(job.shared) or 1) > 1 or filled(job.batch_features) then return "shape" end
  -- The table knows nothing of a node's sockets, cores and disk.
  if (number(job.pn_min_tmp_disk) or 0) > 0 or (number(job.ntasks_per_core) or 0) > 0 then return "shape" end
  for _, key in ipairs({ "sockets_per_node", "cores_per_socket", "threads_per_core", "ntasks_per_socket" }) do
    if (number(job[key]) or 0) > 0 then return "shape" end
  end
  return nil
end

-- The lesser of two limits, of which 0 and nil are none.
local function lesser(one, other)
  if (one or 0) == 0 or (other or 0) == 0 then return (one or 0) ~= 0 and one or (other or 0) ~= 0 and other or nil end
  return math.min(one, other)
end

local TOO_LONG = ","

local function ask_of(job, t, partitions, now_s)
  local asked_partition = brief(job.partition, TOO_LONG, LONGEST_WORD)
  local part, name = partition_of(asked_partition, partitions)
  local leave = reason_to_leave(job, now_s)
  if asked_partition and asked_partition:find(",", 1, true) then leave = leave or "partition" end
  local _, cpus_per_gpu = gpus_of(job.cpus_per_tres)
  local _, mem_per_gpu = gpus_of(job.mem_per_tres)
  if not cpus_per_gpu or not mem_per_gpu then leave = leave or "shape" end
  -- A whole node may be more than a partition allows of one.
  local exclusive = number(job.shared) == 0 or part and number(part.max_share) == 0
  local limited = part and (number(part.max_cpus_per_node) or (number(part.max_mem_per_node) or 0) > 0)
  if exclusive and limited then leave = leave or "shape" end
  local limit_min = number(job.time_limit) or part and number(part.default_time)
  local per_node, per_cpu = number(job.min_mem_per_node), number(job.min_mem_per_cpu)
  local mem_stated = per_node or per_cpu or (mem_per_gpu or 0) > 0
  local settings = t and t.settings or {}
  if part and not mem_stated then
    per_node, per_cpu = number(part.def_mem_per_node), number(part.def_mem_per_cpu)
    if (per_node or 0) == 0 and (per_cpu or 0) == 0 then per_node, per_cpu = settings.mem_node, settings.mem_cpu end
    if per_node == 0 then per_node = nil end -- no default, which is not --mem=0
  end
  local total = brief(job.tres_per_job, TOO_LONG, LONGEST_TRES)
  local per_task = brief(job.tres_per_task, TOO_LONG, LONGEST_TRES)
  return {
    leave = leave,
    soft = filled(job.array_inx) and "array",
    gpus_per_node = brief(job.tres_per_node, TOO_LONG, LONGEST_TRES),
    gpus = total and total:gsub("^gres[:/]gpu[:/]?", ""),
    gpus_per_task = per_task and per_task:gsub("^gres[:/]gpu[:/]?", ""),
    nodes_min = number(job.min_nodes),
    nodes_max = number(job.max_nodes),
    tasks = number(job.num_tasks),
    tasks_per_node = number(job.ntasks_per_node),
    cpus_per_task = number(job.cpus_per_task),
    cpus_per_gpu = cpus_per_gpu,
    min_cpus = number(job.pn_min_cpus),
    mem_per_node = per_node,
    mem_per_cpu = per_cpu,
    mem_per_gpu = mem_per_gpu,
    mem_stated = mem_stated,
    most_mem_per_cpu = lesser(part and number(part.max_mem_per_cpu), settings.most_mem_cpu),
    exclusive = exclusive,
    most_cpus = part and number(part.max_cpus_per_node),
    limit_s = limit_min and limit_min * 60,
    exclude = brief(job.exc_nodes, "[", LONGEST_LIST),
    constraint = brief(job.features, TOO_LONG),
    partition = name,
    partition_nodes = part and nodes_of(name, part.nodes),
  }
end

-- The trouble with the table is told once, not with every submission.
local function report(trouble)
  if trouble and trouble ~= known.told then slurm.log_error("slurm-pal: %s: %s", M.table_path, trouble) end
  known.told = trouble
end

-- One submission: decide, write the node lists and the mark. The caller guards against errors;
-- what is written last is what makes the decision count, so an error before it leaves the job alone.
function M.submit(job, partitions)
  local now_s = M.now()
  local t, trouble = current(now_s)
  report(trouble)
  local request = request_of(ask_of(job, t, partitions, now_s))
  if not request then return end
  local script = filled(job.script) -- slurmctld copies all of it, each time
  local options, lines = spank_options(job), pal_lines(script)
  -- Only a batch job has an environment here; slurmctld logs an error for others.
  local environment = script and job.environment or {}
  local several = filled(job.array_inx) or number(job.het_job_offset)
  local class, origin, warning = class_of(t, {
    { "palsub", palsubs_class(job.comment) },
    { "--pal", options.class, options.app },
    { "SLURM_PAL_CLASS", environment.SLURM_PAL_CLASS },
    { "#PAL", lines.class, lines.app },
  }, tonumber(job.user_id), job.name, script)
  request.class = class
  request.movable = movable_of(lines, environment.SLURM_PAL_MOVABLE, several)
  -- Slurm does not show what the command line says of it, so whoever reads the mark takes nil for "emptied".
  request.app = appends(filled(environment.SBATCH_OPEN_MODE) or lines.open_mode)
  if options.off or environment.SLURM_PAL_OFF == "1" then request.leave = "off" end
  local decision, mark = marked(job.admin_comment, request, decide(request, t, now_s), origin, t, LONGEST_MARK)
  -- The plug-in knows its own options; what the script says, or an application's name, it learns from us. Not
  -- what was measured: jobs that are submitted from inside this one would take it for their user's word.
  if class ~= "?" and origin ~= "history" and script and class ~= options.class then
    environment.SLURM_PAL_CLASS = class
  end
  if warning then slurm.log_user("pal: %s", warning) end
  if options.explain then slurm.log_user("pal: %s", sentence(request, decision, origin)) end
  remember(request, decision, now_s)
  if mark then job.admin_comment = mark end
  if decision.act == "nodelist" then
    job.req_nodes = decision.set
  elseif decision.act == "exclude" then
    job.exc_nodes = filled(request.exclude) and request.exclude .. "," .. decision.set or decision.set
  elseif decision.act == "prefer" then
    job.prefer = decision.set
  end
end

-- == In sbatch, srun and salloc ==============================================================

local EVERY_NODE = setmetatable({}, { __index = function() return true end })

-- Slurm's words for a time, "1-02:03:04" as the client prints them, in seconds.
local function seconds_of(text)
  text = start_of(text, LONGEST_WORD)
  local days, hours, minutes, seconds = text:match("^(%d-)%-?(%d+):(%d+):(%d+)$")
  days = tonumber(days) or 0
  if not hours or days > 36500 then return nil end
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
end

local UNITS = { K = 1 / 1024, M = 1, G = 1024, T = 1024 * 1024 }

local function mib_of(text)
  local count, unit = start_of(text, LONGEST_WORD):match("^(%d+)([KMGT]?)$")
  return count and math.ceil(tonumber(count) * UNITS[unit ~= "" and unit or "M"])
end

local function client_reason(options, offset)
  if palsub_was_here(options.comment) then return "palsub" end
  if offset > 0 then return "het" end
  if options.begin ~= "Unknown" and filled(options.begin) then return "later" end
  if filled(options.dependency) or options.hold == "set" then return "later" end
  if filled(options.reservation) then return "reservation" end
  if filled(options.nodelist) then return "own" end
  if filled(options.prefer) then return "prefer" end
  if options.immediate and options.immediate ~= "unset" and options.immediate ~= "0" then return "immediate" end
  if options.switches ~= "unset" and filled(options.switches) or options.contiguous == "set" then return "network" end
  if filled(options.clusters) or start_of(options.partition):find(",", 1, true) then return "partition" end
  if options.exclusive ~= "unset" and options.exclusive ~= "exclusive" and options.exclusive ~= "oversubscribe" then
    return "shape"
  end
  if options.exclusive == "exclusive" then return "shape" end -- it may be more than a partition allows of one node
  if options["spread-job"] == "set" then return "network" end
  -- The table knows nothing of a node's sockets, cores and disk.
  for _, key in ipairs({ "tmp", "nodefile", "extra-node-info", "hint", "gres-flags", "core-spec", "thread-spec" }) do
    if filled(options[key]) and options[key] ~= "unset" then return "shape" end
  end
  for _, key in ipairs({ "sockets-per-node", "cores-per-socket", "threads-per-core", "ntasks-per-core",
    "ntasks-per-socket", "ntasks-per-gpu" }) do
    if (number(options[key]) or 0) > 0 then return "shape" end
  end
  return nil
end

-- Whether the command line or the script has several components, and the script's text.
local function command_line(options)
  local file = io.open("/proc/self/cmdline", "rb")
  local words = file and file:read(SCRIPT_BYTES) or ""
  if file then file:close() end
  local several = words:find("%z:%z") ~= nil
  if options.type ~= "sbatch" or filled(options.wrap) then return several, "" end
  local path = options.argv and options.argv[1]
  local script = filled(path) and open_file(path)
  local text = script and script:read(SCRIPT_BYTES)
  if script then script:close() end
  return several or (text or ""):find("\n#SBATCH[^\n]*hetjob") ~= nil, text
end

-- What a GPU option asks for, as slurmctld would show it.
local function client_gpus(options, key, head)
  local text = brief(options[key], TOO_LONG, LONGEST_TRES)
  return text and (head or "") .. text
end

local function client_ask(t, options, offset, script)
  local low, high = start_of(options.nodes, 24):match("^(%d+)%-?(%d*)$")
  if high == "" then high = low end
  local soft
  if filled(options.array) and options.array ~= "invalid-context" then soft = "array" end
  -- palsub's word on the job is no obstacle: the mark stands beside it.
  if start_of(options.comment):gsub("pal:job=%S*", ""):find("%S") then soft = "comment" end
  if not script then soft = "stdin" end
  local tasks, settings = number(options.ntasks), t and t.settings or {}
  local per_node, per_cpu = mib_of(start_of(options.mem, 24):gsub("%?$", "")), mib_of(options["mem-per-cpu"])
  local per_gpu = mib_of(options["mem-per-gpu"])
  local mem_stated = per_node or per_cpu or per_gpu
  if not mem_stated then per_node, per_cpu = settings.mem_node, settings.mem_cpu end
  return {
    leave = client_reason(options, offset),
    soft = soft,
    gpus_per_node = client_gpus(options, "gres") or client_gpus(options, "gpus-per-node", "gpu:"),
    gpus = client_gpus(options, "gpus"),
    gpus_per_task = client_gpus(options, "gpus-per-task"),
    nodes_min = high ~= "0" and number(low) or nil,
    nodes_max = high ~= "0" and number(high) or nil,
    tasks = tasks ~= 1 and tasks or nil,
    tasks_per_node = number(options["ntasks-per-node"]),
    cpus_per_task = math.max(1, number(options["cpus-per-task"]) or 1),
    cpus_per_gpu = number(options["cpus-per-gpu"]),
    min_cpus = number(options.mincpus),
    mem_per_node = per_node,
    mem_per_cpu = per_cpu,
    mem_per_gpu = per_gpu,
    mem_stated = mem_stated,
    most_mem_per_cpu = settings.most_mem_cpu,
    largest_only = true, -- a partition may have defaults and limits of its own, which are not known here
    exclusive = options.exclusive == "exclusive",
    limit_s = seconds_of(options.time),
    exclude = brief(options.exclude, "[", LONGEST_LIST),
    constraint = brief(options.constraint, TOO_LONG),
    partition = brief(options.partition, TOO_LONG, LONGEST_WORD) or t and t.record.default,
    partition_nodes = EVERY_NODE,
  }
end

-- One component of a submission, in the client: the mark goes into the job's comment, since a user
-- may not write the other one. Nothing is told unless asked for.
function M.client(options, offset)
  local now_s = M.now()
  local t = current(now_s)
  local several, script = command_line(options)
  local request = request_of(client_ask(t, options, several and 1 or tonumber(offset) or 0, script))
  if not request then return end
  local ours = options.spank and options.spank.pal or {}
  local lines = pal_lines(script)
  local class, origin, warning = class_of(t, {
    { "palsub", palsubs_class(options.comment) },
    { "--pal", ours["pal-class"], ours["pal-app"] },
    { "SLURM_PAL_CLASS", os.getenv("SLURM_PAL_CLASS") },
    { "#PAL", lines.class, lines.app },
  }) -- what was measured is not in the clients' table
  request.class = class
  local variable = options.type == "sbatch" and os.getenv("SLURM_PAL_MOVABLE")
  request.movable = movable_of(lines, variable, several or request.soft)
  request.app = appends(options["open-mode"]) -- by command line, environment and script
  local keep = request.movable and not request.app
  if keep then request.app = "1" end
  if ours["pal-off"] or os.getenv("SLURM_PAL_OFF") == "1" then request.leave = "off" end
  local own = options.comment
  local decision, comment = marked(own, request, decide(request, t, now_s), origin, t, LONGEST_COMMENT)
  if warning then slurm.log_info("pal: %s", warning) end
  if ours["pal-explain"] then slurm.log_info("pal: %s", sentence(request, decision, origin)) end
  if decision.act == "none" and not request.movable then return end
  if keep then options["open-mode"] = "append" end -- or a move would empty what the job has written
  if comment and not request.soft then options.comment = comment end
  if decision.act == "nodelist" then
    options.nodelist = decision.set
  elseif decision.act == "exclude" then
    options.exclude = filled(request.exclude) and request.exclude .. "," .. decision.set or decision.set
  elseif decision.act == "prefer" then
    options.prefer = decision.set
  end
end

return M
