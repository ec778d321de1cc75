-- SPDX-License-Identifier: MIT
-- What the script of a batch job says, and how it is recognised.

local LONGEST_TEXT, start_of = texts.LONGEST_TEXT, texts.start_of

local SCRIPT_BYTES, MOST_COMMENTS, MOST_OURS = 65536, 512, 32
local SHARP, NEWLINE = 35, 10

-- Put what one #PAL line says into `found`. A word cut in two says nothing.
local function pal_line(text, found)
  if #text > LONGEST_TEXT then text = text:sub(1, LONGEST_TEXT):match("^.*%s") or "" end
  if not text:find("^%s") then return end
  text = text:sub(1, (text:find("%scheckpoint=") or 0) - 1)
  text = text:sub(1, (text:find("%selastic%-hook=") or 0) - 1)
  text = text:sub(1, (text:find("#", 1, true) or 0) - 1)
  for word in text:gmatch("%S+") do
    local key, value = word:match("^(%w+)=([%w_.-]+)")
    if key then found[key] = value end
    found.goal = word:match("^goal=([%w:+=-]+)$") or found.goal
    if word == "movable" then found.movable = "" end
    if word == "avoid-slow" then found.avoid_slow = "" end
    found.avoid_slow = word:match("^avoid%-slow=([%d.]+)$") or found.avoid_slow
  end
end

-- Only the first letter of --open-mode counts, as for sbatch: "1" where output is appended to, "0" where not.
local function appends(mode)
  local letter = (mode or ""):sub(1, 1):lower()
  return letter == "a" and "1" or letter == "t" and "0" or nil
end

local function open_mode_of(text)
  text = text:sub(1, (text:find("#", 1, true) or 0) - 1)
  return text:find("^%s") and text:match("%s%-%-open%-mode[=%s](%a)")
end

-- key -> value of the `#PAL` lines before the first command of a script; movable alone has the value "", and
-- open_mode is what an #SBATCH line says about it.
-- A command (checkpoint, elastic-hook) extends to the end of its line, and is for palsub: no filter wraps a script.
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

-- The script of a batch job by what it does, as slurm_pal/sensitivity/keys.py has it: without comments
-- and blank lines. nil for one that is too long to look at here.
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

local LONGEST_SECONDS = 9

-- Whether the job may be moved while it runs: nil, or the seconds of work that a move may cost it ("" unknown).
local function movable_of(lines, variable, several)
  if several or variable == "0" then return nil end
  local lost = lines.movable
  if lost and #lost <= LONGEST_SECONDS and not lost:find("%D") then return lost end
  return variable == "1" and "" or nil
end

-- The bound beyond which GPUs are to be avoided; nil where nobody asks, or for what is no bound. Slurm shows an option
-- without a value as "(null)".
local function avoid_of(option, lines, variable, t)
  local said = option == "(null)" and "" or option or lines.avoid_slow
  if not said and variable and variable ~= "" and variable ~= "0" then said = variable == "1" and "" or variable end
  if not said then return nil end
  local bound = said == "" and t and t.settings.avoid or tonumber(said)
  return bound and bound > 1 and bound < 10 and bound or nil
end

return {
  avoid_of = avoid_of,
  SCRIPT_BYTES = SCRIPT_BYTES, appends = appends, pal_lines = pal_lines, work_of = work_of, movable_of = movable_of,
}
