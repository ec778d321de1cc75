-- SPDX-License-Identifier: MIT
-- The sensitivity class of a job, and where it comes from.

local plain, filled, brief = texts.plain, texts.filled, texts.brief
local work_of = scripts.work_of

local CLASSES = { A = true, B = true, C = true }

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

-- A variable of whoever submits, nil for one that our plug-in has set in the job from which they submit: there a mark
-- beside it holds the same value.
local function own_word(value, mark)
  return filled(value) and value ~= filled(mark) and value or nil
end

local MODULI, ROUNDS = terms.checksum.moduli, terms.checksum.rounds

-- x * x modulo m, of numbers below 2^32 and in steps that stay below 2^53.
local function squared(x, m)
  local high = math.floor(x / 65536)
  return (x * high % m * 65536 + x * (x - high * 65536)) % m
end

-- The checksum of keys.py: remainders of the number whose digits in base 256 are 1 and these bytes, mixed.
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

-- The class measured for the user's earlier jobs with this script, or of this name; nil where the table has
-- none that is sure. Of the two, the surer one, which is the less mixed.
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

-- The user's word against what was measured: whichever counts by the site's rule (sensitivity.trust). Class, where
-- it comes from, a warning, and whether the class was measured: only such a class C sends a job to slow GPUs.
local function class_of(t, sources, ...)
  local class, origin, warning = stated(t, sources)
  local trust = t and t.record.trust or "user"
  if trust == "user" and (class == "A" or class == "B") then return class, origin, warning, false end
  local seen = measured(t, ...)
  local counts = class == "?" or trust == "measured" or (trust == "more-sensitive" and seen and seen < class)
  if seen and counts and seen ~= class then return seen, "history", warning, true end
  return class, origin, warning, seen ~= nil and seen == class
end

return { class_of = class_of, own_word = own_word }
