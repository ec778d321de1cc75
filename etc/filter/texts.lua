-- SPDX-License-Identifier: MIT
-- Texts and numbers of users and of Slurm, bounded before anything looks at them.

local NAME = "^[%w_.-]+$"
local LONGEST_WORD = 64
local UNSET = { [65534] = true, [65535] = true, [4294967294] = true, [4294967295] = true }

-- A user's word, when it is a plain name.
local function plain(text)
  return type(text) == "string" and #text <= LONGEST_WORD and text:find(NAME) and text or nil
end

-- A number from Slurm; nil for its several ways to say "not set".
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
-- does not fire inside Lua's own functions. And no pattern here can look at a text twice.
local LONGEST_TEXT = 1024 -- bytes; slurmctld refuses a longer comment, name or constraint
local LONGEST_LIST = 4096
local TOO_LONG = "," -- in place of an option that is: a list, which nothing here takes apart

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

return {
  LONGEST_LIST = LONGEST_LIST, LONGEST_TEXT = LONGEST_TEXT, LONGEST_WORD = LONGEST_WORD, NAME = NAME,
  TOO_LONG = TOO_LONG, plain = plain, number = number, filled = filled, split = split, set_of = set_of,
  start_of = start_of, brief = brief,
}
