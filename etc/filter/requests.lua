-- SPDX-License-Identifier: MIT
-- What a job asks for, from what an adapter (server, client) has read.

local plain, filled, split, set_of = texts.plain, texts.filled, texts.split, texts.set_of
local expand = hosts.expand

local MOST_NODES = 64
local LONGEST_TRES, MOST_FEATURES, MOST_EXCLUDED = 256, 16, 512

-- Type ("-" for any) and number of the GPUs in a text like "gres:gpu:v100:2", "gpu:2" or, for an
-- option that is about GPUs alone, "v100:2"; nil for what cannot be mapped.
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

-- The user's own range of nodes for a total of GPUs, "1-4", or "1-" where it is open: once the job has started, Slurm
-- shows only how many it has. nil where the request fixes the GPUs of each node, or is not understood.
local function own_nodes(ask)
  local _, per_node = gpus_of(ask.gpus_per_node)
  local _, total = gpus_of(ask.gpus, true)
  local _, per_task = gpus_of(ask.gpus_per_task, true)
  if per_node ~= 0 or not total or not per_task or ask.tasks_per_node then return nil end
  if total == 0 then total = per_task * (ask.tasks or 1) end
  local low, high = ask.nodes_min or 1, ask.nodes_max
  if total < 2 or low < 1 or (high and high < low) then return nil end
  return ("%d-%s"):format(low, high and ("%d"):format(high) or "")
end

-- The request that is decided on, from what an adapter has read (`ask`); nil when it is not for us.
local function request_of(ask)
  local shape = shape_of(ask)
  if shape == nil then return nil end
  local request = { class = "?", leave = ask.leave, soft = ask.soft, limit_s = ask.limit_s, partition = ask.partition }
  request.own_nodes = own_nodes(ask)
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
  local counts = ask.counts
  request.cpus_per_gpu, request.min_cpus = ask.cpus_per_gpu or 0, ask.min_cpus or 0
  if request.cpus_per_gpu == 0 and request.cpus_per_task == 1 then request.cpus_per_gpu = counts.gpucpus or 0 end
  request.one_task_per_core = counts.onetask == 1
  if not ask.mem_stated and counts.gpumem then ask.mem_per_gpu = counts.gpumem end
  -- Without any default a job takes all the memory of its nodes.
  local memory = ask.mem_stated or ask.mem_per_node or (ask.mem_per_cpu or 0) > 0 or (ask.mem_per_gpu or 0) > 0
  if counts.memory == 1 and not memory then request.leave = request.leave or "memory" end
  request.mem_per_node = ask.mem_per_node or 0
  request.mem_per_cpu, request.mem_per_gpu = ask.mem_per_cpu or 0, ask.mem_per_gpu or 0
  request.mem_stated, request.most_mem_per_cpu = ask.mem_stated, ask.most_mem_per_cpu
  request.largest_only = ask.largest_only
  -- What Slurm does about more CPUs than it allows for the GPUs or on a node varies.
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

return { LONGEST_TRES = LONGEST_TRES, gpus_of = gpus_of, request_of = request_of }
