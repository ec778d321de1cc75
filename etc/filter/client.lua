-- SPDX-License-Identifier: MIT
-- In sbatch, srun and salloc: a component of a submission, as cli_filter.lua hands it over.

local LONGEST_LIST, LONGEST_WORD, TOO_LONG = texts.LONGEST_LIST, texts.LONGEST_WORD, texts.TOO_LONG
local number, filled, start_of, brief = texts.number, texts.filled, texts.start_of, texts.brief
local open_file, current, counts_of = tables.open_file, tables.current, tables.counts_of
local decide = decisions.decide
local LONGEST_TRES, request_of = requests.LONGEST_TRES, requests.request_of
local SCRIPT_BYTES, appends, pal_lines = scripts.SCRIPT_BYTES, scripts.appends, scripts.pal_lines
local movable_of, avoid_of = scripts.movable_of, scripts.avoid_of
local class_of, own_word = classes.class_of, classes.own_word
local LONGEST_COMMENT, palsub_was_here = marks.LONGEST_COMMENT, marks.palsub_was_here
local palsubs_class, marked, sentence = marks.palsubs_class, marks.marked, marks.sentence

local EVERY_NODE = setmetatable({}, { __index = function() return true end })

-- A time of Slurm's, "1-02:03:04" as the client prints it, in seconds.
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
  if options.exclusive == "exclusive" then return "shape" end -- it may be more than a partition allows on one node
  if options["spread-job"] == "set" then return "network" end
  -- The table knows nothing about a node's sockets, cores and disk.
  for _, key in ipairs({ "tmp", "nodefile", "extra-node-info", "hint", "gres-flags", "core-spec", "thread-spec" }) do
    if filled(options[key]) and options[key] ~= "unset" then return "shape" end
  end
  for _, key in ipairs({ "sockets-per-node", "cores-per-socket", "threads-per-core", "ntasks-per-core",
    "ntasks-per-socket", "ntasks-per-gpu" }) do
    if (number(options[key]) or 0) > 0 then return "shape" end
  end
  return nil
end

-- Whether words state a number of tasks, of which the client shows 1 also where none is stated.
local function states_tasks(words)
  return (words:find("[%s%z]%-n[%s%z=]*%d") or words:find("%-%-ntasks[%s%z=]")) ~= nil
end

-- Whether the command line or the script has several components, whether it states a number of tasks, and the
-- script's text.
local function command_line(options)
  local file = io.open("/proc/self/cmdline", "rb")
  local words = file and file:read(SCRIPT_BYTES) or ""
  if file then file:close() end
  local several, tasks = words:find("%z:%z") ~= nil, states_tasks(words) or filled(os.getenv("SLURM_NTASKS")) ~= nil
  if options.type ~= "sbatch" or filled(options.wrap) then return several, tasks, "" end
  local path = options.argv and options.argv[1]
  local script = filled(path) and open_file(path)
  local text = script and script:read(SCRIPT_BYTES)
  if script then script:close() end
  for line in (text or ""):gmatch("\n#SBATCH([^\n]*)") do
    several, tasks = several or line:find("hetjob", 1, true) ~= nil, tasks or states_tasks(line)
  end
  return several, tasks, text
end

-- What a GPU option asks for, as slurmctld would show it.
local function client_gpus(options, key, head)
  local text = brief(options[key], TOO_LONG, LONGEST_TRES)
  return text and (head or "") .. text
end

local function client_ask(t, options, offset, tasks_stated, script)
  local low, high = start_of(options.nodes, 24):match("^(%d+)%-?(%d*)$")
  if high == "" then high = low end
  local soft
  if filled(options.array) and options.array ~= "invalid-context" then soft = "array" end
  -- palsub's word on the job is no obstacle: the mark goes beside it.
  if start_of(options.comment):gsub("pal:job=%S*", ""):find("%S") then soft = "comment" end
  if not script then soft = "stdin" end
  local leave = client_reason(options, offset)
  local least = number(options.ntasks) or 1
  -- sbatch lowers the number of nodes to that of the tasks after this, and drops names of a longer list.
  if least < (number(high) or 1) and (least > 1 or tasks_stated) then leave = leave or "shape" end
  local tasks, settings = number(options.ntasks), t and t.settings or {}
  local per_node, per_cpu = mib_of(start_of(options.mem, 24):gsub("%?$", "")), mib_of(options["mem-per-cpu"])
  local per_gpu = mib_of(options["mem-per-gpu"])
  local partition = brief(options.partition, TOO_LONG, LONGEST_WORD) or t and t.record.default
  local mem_stated = per_node or per_cpu or per_gpu
  if not mem_stated then per_node, per_cpu = settings.mem_node, settings.mem_cpu end
  return {
    leave = leave,
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
    partition = partition,
    counts = counts_of(t, partition),
    partition_nodes = EVERY_NODE,
  }
end

-- One component of a submission, in the client: the mark goes into the job's comment, since a user
-- may not write the admin comment. Nothing is printed unless asked for.
local function submit(options, offset)
  local now_s = pal.now()
  local t = current(now_s)
  local several, tasks_stated, script = command_line(options)
  local request = request_of(client_ask(t, options, several and 1 or tonumber(offset) or 0, tasks_stated, script))
  if not request then return end
  local ours = options.spank and options.spank.pal or {}
  local lines = pal_lines(script)
  local class, origin, warning, seen = class_of(t, {
    { "palsub", palsubs_class(options.comment) },
    { "--pal", ours["pal-class"], ours["pal-app"] },
    { "#PAL", lines.class, lines.app },
    { "SLURM_PAL_CLASS", own_word(os.getenv("SLURM_PAL_CLASS"), os.getenv("SLURM_PAL_JOB_CLASS")) },
    { "SLURM_PAL_APP", nil, os.getenv("SLURM_PAL_APP") },
  }) -- what was measured is not in the clients' table
  request.class, request.measured = class, seen
  local variable = options.type == "sbatch" and os.getenv("SLURM_PAL_MOVABLE")
  local unmarked = request.soft ~= "open" and request.soft -- no mark can be left on it
  request.movable = movable_of(lines, variable, several or unmarked or marks.is_companion(options.comment))
  request.app = appends(options["open-mode"]) -- by command line, environment and script
  local keep = request.movable and not request.app
  if keep then request.app = "1" end
  local avoids = own_word(os.getenv("SLURM_PAL_AVOID_SLOW"), os.getenv("SLURM_PAL_JOB_AVOID_SLOW"))
  request.avoid = avoid_of(ours["pal-avoid-slow"], lines, avoids, t)
  local off = own_word(os.getenv("SLURM_PAL_OFF"), os.getenv("SLURM_PAL_JOB_OFF"))
  if ours["pal-off"] or off == "1" then request.leave = "off" end
  local own = options.comment
  local decision, comment = marked(own, request, decide(request, t, now_s), origin, t, LONGEST_COMMENT)
  if warning then slurm.log_info("pal: %s", warning) end
  local avoid = decision.avoid
  if avoid and avoid.why then
    slurm.log_info("pal: avoid-slow: submitted as written, since %s", terms.why[avoid.why])
  end
  if ours["pal-explain"] then slurm.log_info("pal: %s", sentence(request, decision, origin)) end
  if decision.act == "none" and not request.movable then return end
  if keep then options["open-mode"] = "append" end -- or a move would empty what the job has written
  if comment and not unmarked then options.comment = comment end
  if decision.act == "nodelist" then
    options.nodelist = decision.set
    if avoid and avoid.set then
      options.exclude = filled(request.exclude) and request.exclude .. "," .. avoid.set or avoid.set
    end
  elseif decision.act == "exclude" then
    options.exclude = filled(request.exclude) and request.exclude .. "," .. decision.set or decision.set
  elseif decision.act == "prefer" then
    options.prefer = decision.set
  end
end

return { submit = submit }
