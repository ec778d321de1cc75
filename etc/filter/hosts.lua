-- SPDX-License-Identifier: MIT
-- Host lists, as far as they are written in the common way.

local NAME = texts.NAME

local LONGEST_HOST, MOST_BRACKETS = 255, 3

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

-- The names of a host list; nil when it is written in a way unknown here, or has more than `most`.
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

return { expand = expand }
