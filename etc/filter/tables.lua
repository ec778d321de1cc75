-- SPDX-License-Identifier: MIT
-- The table that `pal publish-table` writes, read as data.

local filled, split, set_of = texts.filled, texts.split, texts.set_of

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
-- for its writer, and would block slurmctld for ever. Opened for writing as well, it does not wait, and shows
-- itself by having no end. Where we may not write, whoever could put one there could also change this code.
local function open_file(path)
  local file, why, errno = io.open(path, "r+b")
  if not file and MAY_BE_READ[errno] then file, why = io.open(path, "rb") end
  if not file then return nil, why end
  local size = file:seek("end")
  if size and size > 0 and file:seek("set") then return file, size end
  file:close()
  return nil, size and "it is empty" or "it is not a regular file"
end

-- The records of a table whose first bytes are `start`; nil and the reason when it is unusable.
local function load_table(file, size, start)
  local head = head_of(start)
  if head.schema ~= terms.schema then return nil, "it is not a table of " .. terms.schema end
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
  for key, value in pairs(terms.settings) do t.settings[key] = value end
  for key, value in (record.settings or ""):gmatch("([%w_]+)=([%d.]+)") do
    t.settings[key] = tonumber(value) or t.settings[key]
  end
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
  local file, size = open_file(pal.table_path)
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

-- What is known about the sizes of nodes: { cpus =, mem =, ... } of a record; nil without one.
local function size_of(t, key)
  local text = t.record[key]
  if not t.sets[key] and text then t.sets[key] = parse_node("- " .. text) end
  return t.sets[key]
end

-- What Slurm adds to requests in a partition, as far as slurmctld does not show it: { gpumem =, gpucpus =, ... }.
local function counts_of(t, partition)
  return t and partition and size_of(t, "counts." .. partition) or {}
end

-- The CPUs that a partition may still use on each of its nodes, { name = CPUs }; nil where it has no limit.
local function left_of(t, partition)
  local key = "left." .. partition
  if not t.sets[key] and t.record[key] then
    t.sets[key] = {}
    for name, cpus in t.record[key]:gmatch("([%w_.-]+)=(%d+)") do t.sets[key][name] = tonumber(cpus) end
  end
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

return {
  open_file = open_file, current = current, node_of = node_of, ranking = ranking, names_in = names_in,
  size_of = size_of, spares_of = spares_of, counts_of = counts_of, left_of = left_of,
}
