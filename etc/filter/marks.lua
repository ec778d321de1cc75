-- SPDX-License-Identifier: MIT
-- Words on the job: what palsub has left there, and the mark that we leave.

local filled, start_of = texts.filled, texts.start_of

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

-- Whether palsub has submitted the job to join another: it is not moved by itself, whatever its script says.
local function is_companion(comment)
  return (" " .. start_of(comment)):find(" pal:companion=%d")
end

-- One word: the lease for whoever takes it back, and the decision for `pal explain`.
local function mark_of(request, decision, origin, t)
  local fields = {}
  if decision.lease_s then
    fields[#fields + 1] = ("lease=%d"):format(math.floor(decision.lease_s + 0.5))
    fields[#fields + 1] = "req="
    fields[#fields + 1] = "exc=" .. request.exclude
  end
  fields[#fields + 1] = "class=" .. request.class
  fields[#fields + 1] = "from=" .. origin
  if request.measured and origin ~= "history" then fields[#fields + 1] = "mea=1" end
  if request.movable then fields[#fields + 1] = "mov=1" end
  if filled(request.movable) then fields[#fields + 1] = "lost=" .. request.movable end
  if request.app then fields[#fields + 1] = "app=" .. request.app end
  if request.own_nodes then fields[#fields + 1] = "n=" .. request.own_nodes end
  fields[#fields + 1] = "act=" .. decision.act
  if decision.set then fields[#fields + 1] = "set=" .. decision.set end
  fields[#fields + 1] = "why=" .. decision.why
  if decision.slow then fields[#fields + 1] = ("slow=%.3f"):format(decision.slow) end
  if decision.alone then fields[#fields + 1] = ("alone=%.3f"):format(decision.alone) end
  local avoid = decision.avoid
  if avoid then fields[#fields + 1] = ("avoid=%.4g%s"):format(request.avoid, avoid.why and ":" .. avoid.why or "") end
  fields[#fields + 1] = "epoch=" .. (t and t.epoch or "-")
  local mark = "pal:" .. table.concat(fields, ";")
  if not (avoid and avoid.set) then return mark end
  local lease_s = math.floor(avoid.lease_s + 0.5) -- the exclusion beside a node list has a time of its own
  return ("%s pal:lease=%d;req=;exc=%s;act=exclude;set=%s"):format(mark, lease_s, request.exclude, avoid.set)
end

-- Bytes; slurmctld refuses a job whose own comment has more than 1024.
local LONGEST_COMMENT, LONGEST_MARK = 1000, 8192

-- The text with the mark after it; nil where that would be too long.
local function beside(text, mark, most)
  text = filled(text)
  if #mark + (text and #text + 1 or 0) > most then return nil end
  return text and text .. " " .. mark or mark
end

-- A decision that can be kept, and the text with its mark. Nobody could take back a list that no mark names.
local function marked(text, request, decision, origin, t, most)
  local mark = beside(text, mark_of(request, decision, origin, t), most)
  if mark or not decision.lease_s then return decision, mark end
  decision = { act = "none", why = "long", slow = decision.slow, avoid = decision.avoid and { why = "long" } }
  return decision, beside(text, mark_of(request, decision, origin, t), most)
end

local function sentence(request, decision, origin)
  local did = terms.acts[decision.act]
  local what = did and did .. " " .. decision.set or terms.left
  local factor = decision.slow and (", predicted at %.3f of a median GPU's time"):format(decision.slow) or ""
  local lease = decision.lease_s and ("; for %d s at most"):format(math.floor(decision.lease_s + 0.5)) or ""
  return ("class %s (%s): %s: %s%s%s"):format(request.class, origin, what, terms.why[decision.why], factor, lease)
end

return {
  LONGEST_COMMENT = LONGEST_COMMENT, LONGEST_MARK = LONGEST_MARK, palsub_was_here = palsub_was_here,
  palsubs_class = palsubs_class, is_companion = is_companion, beside = beside, marked = marked, sentence = sentence,
}
