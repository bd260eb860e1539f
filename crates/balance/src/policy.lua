
end
-- The frame around a policy: it is put behind the policy's text, whose lines keep their numbers that way. What it needs
-- of the libraries it takes before the policy runs, which may change any global.
local nacre, objclass, string, table, math = nacre, objclass, string, table, math
local type, pairs, tostring, error, pcall, select = type, pairs, tostring, error, pcall, select
local rawget, setmetatable, env = rawget, setmetatable, _G
local STATE_BYTES_MAX = 4096

-- Returns the part of the input at a place, which begins with its length, and the place behind it.
local function section(bytes, at)
  local length, start = string.unpack("<I4", bytes, at)
  return string.sub(bytes, start, start + length - 1), start + length
end

-- Returns a load or a target that a policy has computed.
local function checked(value, what, rank)
  if type(value) ~= "number" then
    error("the " .. what .. " of rank " .. rank .. " is a " .. type(value) .. ", not a number", 0)
  end
  if value ~= value or value < 0 or value == math.huge then
    error("the " .. what .. " of rank " .. rank .. " is " .. tostring(value) .. "; it must be finite and not negative", 0)
  end
  return value + 0.0
end

local function rank_of(key)
  local rank = nil
  if type(key) == "number" then rank = math.tointeger(key) end
  if rank == nil then error("the key " .. tostring(key) .. " of its targets is not the number of a rank", 0) end
  return rank
end

-- Returns the targets of a policy in Ceph's form: by ranks, or in the older form one for each rank, the first for rank 0.
local function returned_targets(result, count)
  if type(result) ~= "table" then error("it returned a " .. type(result) .. ", not a table of targets", 0) end
  local found, number = {}, 0
  for key, value in pairs(result) do
    local rank = rank_of(key)
    found[rank] = checked(value, "target", rank)
    number = number + 1
  end
  local first = 0
  if number == count and found[0] == nil and found[count] ~= nil then first = 1 end
  local targets = {}
  for key, value in pairs(found) do
    local rank = key - first
    if rank < 0 or rank >= count then
      error("it returned a target for rank " .. rank .. ", and the last rank is " .. (count - 1), 0)
    end
    targets[rank] = value
  end
  return targets
end

-- Returns the targets of a policy in the paper's form, in which a rank beyond the last one is no target.
local function filled_targets(filled, count)
  if type(filled) ~= "table" then error("targets is a " .. type(filled) .. ", not a table", 0) end
  local targets = {}
  for key, value in pairs(filled) do
    local rank = rank_of(key)
    if rank >= 0 and rank < count then targets[rank] = checked(value, "target", rank) end
  end
  return targets
end

-- Runs the policy for one rank. Returns what the input says of the rank, the targets, the lines of its log, the packed
-- state that is to be kept if there is a new one, and the place behind the metrics in the input.
local function evaluate(bytes, has_rank_beyond)
  local head, state, at
  head, at = section(bytes, 1)
  state, at = section(bytes, at)
  local me, count, now, tick, names = nacre.unpack(head)
  local width, format = #names, "<" .. string.rep("d", #names)
  local mds, server, beyond = {}, {}, { load = math.huge }
  for j = 1, width do beyond[names[j]] = math.huge end
  for rank = 0, count - 1 do
    local values, row = { string.unpack(format, bytes, at) }, { load = 0.0 }
    for j = 1, width do row[names[j]] = values[j] end
    at = values[width + 1]
    mds[rank], server[rank] = row, row
  end
  local neighbours = { __index = function(_, key) if type(key) == "number" then return beyond end end }
  setmetatable(server, neighbours)
  if has_rank_beyond then setmetatable(mds, neighbours) end

  local lines, kept, is_new
  local function begin()
    lines, kept, is_new = {}, nil, false
    if #state > 0 then kept = nacre.unpack(state) end
    env.targets, env.i, env.whoami = {}, me, me
  end
  env.mds, env.server, env.now, env.tick = mds, server, now, tick
  env.RDstate = function() return kept end
  env.WRstate = function(value) kept, is_new = value, true end
  env.BAL_LOG = function(level, ...)
    local words = { ... }
    for k = 1, select("#", ...) do words[k] = tostring(words[k]) end
    lines[#lines + 1] = tostring(level) .. " " .. table.concat(words, " ")
  end

  begin()
  local result, targets = policy_text(), nil
  if result ~= nil then
    targets = returned_targets(result, count)
  else
    local load, when, where = rawget(env, "load"), rawget(env, "when"), rawget(env, "where")
    if type(where) ~= "function" then where = rawget(env, "targets") end
    local has_functions = type(load) == "function" or type(where) == "function"
    -- What counts as a rank's load comes first, as the rest is about that.
    local loads = {}
    for rank = 0, count - 1 do
      local own
      env.i = rank
      if type(load) == "function" then
        own = load(rank)
      elseif not has_functions then
        env.load, env.targets = nil, {}
        policy_text()
        own = rawget(env, "load")
      end
      if own == nil then own = server[rank]["all.meta_load"] end
      loads[rank] = checked(own, "load", rank)
    end
    for rank = 0, count - 1 do server[rank].load = loads[rank] end
    env.targets, env.i = {}, me
    if not has_functions then
      begin()
      policy_text()
    elseif type(when) ~= "function" or when() then
      local given = nil
      if type(where) == "function" then given = where() end
      if given ~= nil then env.targets = given end
    end
    targets = filled_targets(env.targets, count)
  end
  local packed = ""
  if is_new then
    packed = nacre.pack(kept)
    if #packed > STATE_BYTES_MAX then
      error("WRstate was given a value of " .. #packed .. " bytes; the limit is " .. STATE_BYTES_MAX, 0)
    end
  end
  return me, count, targets, lines, packed, at
end

-- Has the policy choose resources for each of its targets. Returns the choices: each a rank and numbers of resources.
local function chosen(howmuch, resources, targets, me, count)
  local choices, is_taken = {}, {}
  for rank = 0, count - 1 do
    local amount = targets[rank] or 0
    if amount > 0 and rank ~= me then
      local offered, numbers = {}, {}
      for number = 1, #resources do
        if not is_taken[number] then
          local resource = resources[number]
          offered[#offered + 1] = { kind = resource[1], name = resource[2], load = resource[3] }
          numbers[#numbers + 1] = number
        end
      end
      local given, choice = howmuch(offered, amount, rank), { rank }
      if type(given) ~= "table" then error("howmuch returned a " .. type(given) .. ", not a table", 0) end
      for k = 1, #given do
        local number = type(given[k]) == "number" and numbers[given[k]] or nil
        if number == nil or is_taken[number] then
          error("howmuch chose " .. tostring(given[k]) .. ", which is not one of the resources, or twice the same", 0)
        end
        is_taken[number] = true
        choice[#choice + 1] = number
      end
      choices[#choices + 1] = choice
    end
  end
  return choices
end

function run_policy(input, output)
  local bytes = input:str()
  local ok, me, count, targets, lines, packed, at = pcall(evaluate, bytes, false)
  if not ok then
    -- Older policies for Ceph look at the rank after the last one, which is not there. For them, and only then, it is one
    -- with infinite load, to which nothing moves.
    -- A failed operation of a library has a number in front of its text.
    local failure = type(count) == "string" and count or me
    me, count = nacre.unpack((section(bytes, 1)))
    if me ~= count - 1 then error(failure, 0) end
    me, count, targets, lines, packed, at = evaluate(bytes, true)
  end
  local list = {}
  for rank = 0, count - 1 do
    if (targets[rank] or 0) > 0 then list[#list + 1] = { rank, targets[rank] } end
  end
  local selector, choices = rawget(env, "howmuch"), nil
  if type(selector) == "function" then
    if at <= #bytes then
      choices = chosen(selector, nacre.unpack((section(bytes, at))), targets, me, count)
    end
    selector = true
  elseif selector ~= nil and type(selector) ~= "string" then
    error("howmuch is a " .. type(selector) .. "; it must be a function, or the name of a selector", 0)
  end
  for k = 1, #lines do objclass.log(lines[k]) end
  output:append(string.pack("<I4", #packed) .. packed .. nacre.pack(list, selector, choices))
end
objclass.register(run_policy, { writes = false })
