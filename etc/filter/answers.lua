-- SPDX-License-Identifier: MIT
-- Looking up the answer in the table.

local node_of, ranking, size_of = tables.node_of, tables.ranking, tables.size_of

local MOST_PREFERENCES = 16
local NOTHING = { gpus = 0, cpus = 0, mem = 0 }

-- CPUs and MiB that `gpus` GPUs of a job need on one node. A core goes to one job, with all its threads.
local function share(request, gpus, node)
  local threads, each, tasks = node.threads or 1, request.cpus_per_task, request.tasks_on_node
  local own = each > 1 or request.one_task_per_core
  local cores = own and tasks * math.ceil(each / threads) or math.ceil(tasks * each / threads)
  local more = math.max(request.cpus_per_gpu * gpus, request.min_cpus)
  local cpus = math.max(cores, math.ceil(more / threads)) * threads
  local counted = request.count == "x" and (node.allcpus or 0) or math.max(1, cpus)
  local mem = math.max(request.mem_per_node, request.mem_per_cpu * counted, request.mem_per_gpu * gpus)
  if request.most_mem_per_cpu then cpus = math.max(cpus, math.ceil(mem / request.most_mem_per_cpu)) end
  return cpus, mem
end

-- Whether Slurm would ever give `gpus` GPUs of a node of this size to the job, so that naming the node, or leaving
-- only such nodes, cannot be why the job is refused. A partition's default CPUs and memory per GPU are not known
-- here; they ask for no more than the richest node of the pool has for each of its GPUs.
local function takes(view, size, gpus)
  local richest, request = size_of(view.t, "most." .. view.pool), view.request
  if not richest or not size or not size.allcpus or size.gpus < request.least_gpus then return false end
  local cpus, mem = share(request, gpus, size)
  if request.cpus_per_gpu == 0 then cpus = math.max(cpus, gpus * richest.cpusgpu) end
  if not request.mem_stated then mem = math.max(mem, gpus * richest.memgpu) end
  local asked = request.mem_per_cpu * (request.count == "x" and size.allcpus or math.max(1, cpus))
  if request.mem_per_cpu > 0 and size.allmem < asked then return false end
  if size.allcpus < math.min(cpus, richest.allcpus) then return false end
  if request.largest_only and (size.allcpus < richest.allcpus or size.allmem < richest.allmem) then return false end
  return size.allmem >= math.min(mem, richest.allmem)
end

-- Whether a node of the table may take the job now.
local function fits(view, node, gpus)
  local request, gone = view.request, view.claimed[node.name] or NOTHING
  if not view.partition[node.name] or request.excluded[node.name] then return false end
  if node.gpus < request.least_gpus then return false end
  if request.constraint and not request.constraint(node.features) then return false end
  local cpus, mem = share(request, gpus, node)
  local free = math.min(node.cpus or 0, view.left and (view.left[node.name] or 0) or math.huge)
  return cpus <= free - gone.cpus and mem <= (node.mem or 0) - gone.mem
end

-- Nodes that can give `count` GPUs ("x": all that they have), best first, each once, one more than may be used.
local function candidates(view, preference)
  local found, most, count = {}, view.request.nodes_max + 1, view.request.count
  if view.found[preference] then return view.found[preference] end
  local ranks = ranking(view.t, view.pool, view.list, preference, count)
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
    if node and not view.claimed[node.name] then look(entry.i, entry.rank) end
  end
  for name, gone in pairs(next(ranks.later) and view.claimed or {}) do
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

-- The best nodes, also as a set of names: of a range of node counts the most that there are, as Slurm does.
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
    local given = (view.claimed[pick.node.name] or NOTHING).gpus
    for position = given + 1, given + pick.count do worst = math.max(worst, row[position] or 1) end
  end
  return worst
end

return { share = share, takes = takes, choose = choose, others = others, slowest = slowest }
