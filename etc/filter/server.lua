-- SPDX-License-Identifier: MIT
-- In slurmctld: a submission, as job_submit.lua hands it over.

local LONGEST_LIST, LONGEST_WORD, TOO_LONG = texts.LONGEST_LIST, texts.LONGEST_WORD, texts.TOO_LONG
local number, filled, set_of, start_of, brief = texts.number, texts.filled, texts.set_of, texts.start_of, texts.brief
local expand = hosts.expand
local current, counts_of = tables.current, tables.counts_of
local decide, remember = decisions.decide, decisions.remember
local LONGEST_TRES, gpus_of, request_of = requests.LONGEST_TRES, requests.gpus_of, requests.request_of
local appends, pal_lines, movable_of = scripts.appends, scripts.pal_lines, scripts.movable_of
local avoid_of = scripts.avoid_of
local class_of, own_word = classes.class_of, classes.own_word
local LONGEST_MARK, palsub_was_here, palsubs_class = marks.LONGEST_MARK, marks.palsub_was_here, marks.palsubs_class
local beside, marked, sentence = marks.beside, marks.marked, marks.sentence
local belongs = steering.belongs
local stated, chosen = goals.stated, goals.chosen

local OPTION = "_SLURM_SPANK_OPTION_pal_pal_"
local MOST_OPTIONS, MOST_NAMES = 256, 100000

-- What our SPANK plug-in was given, as slurmctld shows it: { class =, app =, off =, explain =, avoid_slow =, note = },
-- by options and, as a second result, by variables.
local function spank_options(job)
  local given, variables, seen, environment = {}, {}, 0, job.spank_job_env
  for _, pair in pairs(type(environment) == "table" and environment or {}) do
    seen = seen + 1
    if seen > MOST_OPTIONS then break end
    pair = start_of(pair, 2 * #OPTION + LONGEST_WORD)
    if pair:sub(1, #OPTION) == OPTION then
      local name, value = pair:sub(#OPTION + 1):match("^([%w_]+)=?(.*)$")
      if name then given[name] = value end
    else
      local name, value = pair:match("^SLURM_PAL_([%u_]+)=(.*)$")
      if name then variables[name:lower()] = value end
    end
  end
  return given, variables
end

local nodes_seen = {} -- partition -> its text and the set of its names

-- The names of a partition's nodes as Slurm has them now: the admin's text, looked at once for each partition.
local function nodes_of(name, text)
  local seen = nodes_seen[name]
  if not seen or seen.text ~= text then
    seen = { text = text, set = set_of(expand(text or "", MOST_NAMES) or {}) }
    nodes_seen[name] = seen
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
  -- The table knows nothing about a node's sockets, cores and disk.
  if (number(job.pn_min_tmp_disk) or 0) > 0 or (number(job.ntasks_per_core) or 0) > 0 then return "shape" end
  for _, key in ipairs({ "sockets_per_node", "cores_per_socket", "threads_per_core", "ntasks_per_socket" }) do
    if (number(job[key]) or 0) > 0 then return "shape" end
  end
  return nil
end

-- The lesser of two limits, where 0 and nil mean none.
local function lesser(one, other)
  if (one or 0) == 0 or (other or 0) == 0 then return (one or 0) ~= 0 and one or (other or 0) ~= 0 and other or nil end
  return math.min(one, other)
end

-- What a job asks for; with `only` as if it named this partition only.
local function ask_of(job, t, partitions, now_s, only)
  local asked_partition = only or brief(job.partition, TOO_LONG, LONGEST_WORD)
  local part, name = partition_of(asked_partition, partitions)
  local leave = reason_to_leave(job, now_s)
  if asked_partition and asked_partition:find(",", 1, true) then leave = leave or "partition" end
  local _, cpus_per_gpu = gpus_of(job.cpus_per_tres)
  local _, mem_per_gpu = gpus_of(job.mem_per_tres)
  if not cpus_per_gpu or not mem_per_gpu then leave = leave or "shape" end
  -- A whole node may be more than a partition allows on one.
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
    if per_node == 0 then per_node = nil end -- no default, unlike --mem=0
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
    counts = counts_of(t, name),
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

-- Guests whose partition has fewer nodes for now wait in another one as well, which is down: slurmctld refuses jobs
-- that no node of their partitions fits. Parts of a heterogeneous job have one partition each.
local function wait_too(job, t, partitions)
  local asked = filled(job.partition)
  local _, name = partition_of(asked, partitions)
  local waits = t and name and t.record["waits." .. name]
  if waits and partitions[waits] and not number(job.het_job_offset) then job.partition = name .. "," .. waits end
end

local told

-- Trouble with the table is reported once, not with every submission.
local function report(trouble)
  if trouble and trouble ~= told then slurm.log_error("slurm-pal: %s: %s", pal.table_path, trouble) end
  told = trouble
end

-- One submission: decide, write the node lists and the mark. The caller guards against errors;
-- only what is written last makes the decision count, so an error before it leaves the job alone.
local function submit(job, partitions)
  local now_s = pal.now()
  local t, trouble = current(now_s)
  report(trouble)
  local request = request_of(ask_of(job, t, partitions, now_s))
  wait_too(job, t, partitions)
  if not request then return end
  local script = filled(job.script) -- slurmctld copies all of it, each time
  local options, variables = spank_options(job)
  local lines = pal_lines(script)
  -- Only a batch job has an environment here; slurmctld logs an error for others.
  local environment = script and job.environment or {}
  local function variable(name)
    return own_word(environment["SLURM_PAL_" .. name], environment["SLURM_PAL_JOB_" .. name])
  end
  local class_variable = variables.class or variable("CLASS")
  local several = filled(job.array_inx) or number(job.het_job_offset) or marks.is_companion(job.comment)
  local class, origin, warning, seen = class_of(t, {
    { "palsub", palsubs_class(job.comment) },
    { "--pal", options.class, options.app },
    { "#PAL", lines.class, lines.app },
    { "SLURM_PAL_CLASS", class_variable },
    { "SLURM_PAL_APP", nil, variables.app or environment.SLURM_PAL_APP },
  }, tonumber(job.user_id), job.name, script)
  request.class, request.measured = class, seen
  request.movable = movable_of(lines, environment.SLURM_PAL_MOVABLE, several)
  -- Slurm does not show what the command line says about it, so whoever reads the mark takes nil for "emptied".
  request.app = appends(filled(environment.SBATCH_OPEN_MODE) or lines.open_mode)
  request.avoid = avoid_of(options.avoid_slow, lines, variables.avoid_slow or variable("AVOID_SLOW"), t)
  if options.off or (variables.off or variable("OFF")) == "1" then request.leave = "off" end
  local text, partition = job.admin_comment, nil
  if request.leave == "partition" and not several then
    local function in_one(only) return request_of(ask_of(job, t, partitions, now_s, only)) end
    local goal, wrong = stated(now_s, lines.goal or "", variable("GOAL") or "", t and t.record.goal or "")
    local by_goal = goal and goal.kind ~= "time"
    local one, words, name
    if by_goal then
      one, words, name = chosen(goal, job, t, partitions, now_s, request, in_one)
    else
      one, words, name = belongs(job, t, partitions, now_s, request, in_one)
    end
    warning = warning or wrong
    local noted = words and beside(text, words, LONGEST_MARK)
    if noted then -- else nobody would know the user's own list
      one.avoid = request.avoid
      one.movable, one.app, one.own_nodes = request.movable, request.app, request.own_nodes
      request, text, partition = one, noted, name
    end
  end
  local decision, mark = marked(text, request, decide(request, t, now_s), origin, t, LONGEST_MARK)
  -- The plug-in knows its own options, and learns the class from us; the mark says that it is no word of the user's.
  if script and class ~= "?" and class ~= options.class and class ~= class_variable then
    environment.SLURM_PAL_CLASS, environment.SLURM_PAL_JOB_CLASS = class, class
  elseif script and filled(environment.SLURM_PAL_JOB_CLASS) then -- of the job in which this one was submitted
    if not class_variable then environment.SLURM_PAL_CLASS = "" end
    environment.SLURM_PAL_JOB_CLASS = ""
  end
  if warning then slurm.log_user("pal: %s", warning) end
  local avoid = decision.avoid
  if avoid and avoid.why then
    slurm.log_user("pal: avoid-slow: submitted as written, since %s", terms.why[avoid.why])
  end
  if options.explain then
    local where = partition and ("; partition %s of %s"):format(partition, job.partition) or ""
    slurm.log_user("pal: %s%s", sentence(request, decision, origin), where)
  end
  remember(request, decision, now_s)
  if mark then job.admin_comment = mark end
  if mark and partition then job.partition = partition end
  if decision.act == "nodelist" then
    job.req_nodes = decision.set
    if avoid and avoid.set then
      job.exc_nodes = filled(request.exclude) and request.exclude .. "," .. avoid.set or avoid.set
    end
  elseif decision.act == "exclude" then
    job.exc_nodes = filled(request.exclude) and request.exclude .. "," .. decision.set or decision.set
  elseif decision.act == "prefer" then
    job.prefer = decision.set
  end
end

return { submit = submit }
