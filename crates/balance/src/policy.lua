
end
-- The frame around a policy: it is put behind the policy's text, whose lines keep their numbers that way. What it needs
-- of the libraries it takes before the policy runs, which may change any global.
local nacre, objclass, string, table, math = nacre, objclass, string, table, math
local type, pairs, tostring, error, pcall, select = type, pairs, tostring, error, pcall, select
local next, rawget, rawset, setmetatable, env = next, rawget, rawset, setmetatable, _G
local unpack, unpack_table = string.unpack, table.unpack
local tointeger, math_type, huge = math.tointeger, math.type, math.huge
local STATE_BYTES_MAX = 4096
-- The kinds of resources, by their numbers in the input.
local KINDS = { [0] = "subtree", "sequencer", "group" }
-- The number of pairs that are packed at a time: what comes of them needs no buffer of its own.
local PAIRS_MAX = 64

-- Returns the part of the input at a place, which begins with its length, and the place behind it.
local function section(bytes, at)
  local length, start = unpack("<I4", bytes, at)
  return string.sub(bytes, start, start + length - 1), start + length
end

-- Returns pairs of numbers, which follow each other in a list, in a format: their number comes first.
local function packed_pairs(format, list)
  local parts = { string.pack("<I4", #list // 2) }
  for first = 1, #list, 2 * PAIRS_MAX do
    local last = math.min(first + 2 * PAIRS_MAX - 1, #list)
    local formats = "<" .. string.rep(format, (last - first + 1) // 2)
    parts[#parts + 1] = string.pack(formats, unpack_table(list, first, last))
  end
  return table.concat(parts)
end

-- Returns the metrics of each rank in a table of its own. The names that all ranks have come first, in the order of `NAMES` in
-- metric.rs: a table that is made with its names need not grow.
local function read_rows(bytes, at, count, names)
  local rows = {}
  for rank = 0, count - 1 do
    local a, b, c, d, e, f, g, h, i, j, k, rest = unpack("<ddddddddddd", bytes, at)
    local row = {
      req_rate = a, queue_len = b, cpu_load_avg = c, cpu_load_inst = d, mem = e, ["auth.meta_load"] = f,
      ["all.meta_load"] = g, ["load.subtree"] = h, ["load.sequencer"] = i, ["load.group"] = j, resources = k,
    }
    for number = 12, #names do row[names[number]], rest = unpack("<d", bytes, rest) end
    at, rows[rank] = rest, row
  end
  return rows
end

-- Shows the metrics of ranks to the policy for one rank. What counts as the load of a rank is worked out when it is first looked at,
-- by `view.load_of`, and is 0 before there is such a function. `view.rows` returns the metrics, `view.set_load` sets a load, and
-- `view.forget_loads` takes out those that the policy itself has set.
local function show_once(view, read)
  local rows
  view.rows = function()
    local numbers = {}
    rows = read()
    local shared = {
      __index = function(row, key)
        if key ~= "load" then return nil end
        if view.load_of == nil then return 0.0 end
        row.load = view.load_of(numbers[row])
        return row.load
      end,
      __pairs = function(row)
        local together = { load = row.load }
        local key, value = next(row)
        while key ~= nil do
          together[key] = value
          key, value = next(row, key)
        end
        return pairs(together)
      end,
      __metatable = false,
    }
    for rank = 0, view.count - 1 do
      local row = rows[rank]
      numbers[row] = rank
      setmetatable(row, shared)
    end
    return rows
  end
  view.set_load = function(rank, value) rows[rank].load = value end
  view.forget_loads = function()
    for rank = 0, view.count - 1 do rows[rank].load = nil end
  end
end

-- Shows the metrics of ranks to the policy for one rank after the other, as `show_once` does, in the same tables. What the policy
-- writes is in front of the metrics, and is taken out before the next rank has its turn.
local function show_often(view, read)
  local all, shown, written, worked_out = read(), {}, {}, {}
  local function write(row, key, value)
    -- First, as there are keys with which it fails.
    rawset(row, key, value)
    written[#written + 1], written[#written + 2] = row, key
  end
  for rank = 0, view.count - 1 do
    local metrics, row = all[rank], {}
    setmetatable(metrics, {
      __index = function(_, key)
        if key ~= "load" then return nil end
        if view.load_of == nil then return 0.0 end
        local load = view.load_of(rank)
        metrics.load = load
        worked_out[#worked_out + 1] = metrics
        return load
      end,
    })
    local function merged()
      local load, together = row.load, {}
      for key, value in pairs(metrics) do together[key] = value end
      for k = 1, #written, 2 do
        if written[k] == row then together[written[k + 1]] = rawget(row, written[k + 1]) end
      end
      together.load = load
      return pairs(together)
    end
    shown[rank] = setmetatable(row, { __index = metrics, __newindex = write, __pairs = merged, __metatable = false })
  end
  view.rows = function()
    for k = #written - 1, 1, -2 do
      rawset(written[k], written[k + 1], nil)
      written[k], written[k + 1] = nil, nil
    end
    for k = #worked_out, 1, -1 do worked_out[k].load, worked_out[k] = nil, nil end
    return shown
  end
  view.set_load = function(rank, value)
    all[rank].load = value
    worked_out[#worked_out + 1] = all[rank]
  end
  view.forget_loads = function()
    for k = 1, #written, 2 do
      if written[k + 1] == "load" then rawset(written[k], "load", nil) end
    end
  end
end

-- Returns a load or a target that a policy has computed.
local function checked(value, what, rank)
  if math_type(value) == "float" and value >= 0 and value < huge then return value end
  if type(value) ~= "number" then
    error("the " .. what .. " of rank " .. rank .. " is a " .. type(value) .. ", not a number", 0)
  end
  if value ~= value or value < 0 or value == huge then
    error("the " .. what .. " of rank " .. rank .. " is " .. tostring(value) .. "; it must be finite and not negative", 0)
  end
  return value + 0.0
end

local function rank_of(key)
  if math_type(key) == "integer" then return key end
  local rank = nil
  if type(key) == "number" then rank = tointeger(key) end
  if rank == nil then error("the key " .. tostring(key) .. " of its targets is not the number of a rank", 0) end
  return rank
end

-- Returns the targets of a policy in Ceph's form: by ranks, or in the older form one for each rank, the first for rank 0.
local function returned_targets(result, count)
  if type(result) ~= "table" then error("it returned a " .. type(result) .. ", not a table of targets", 0) end
  local found, number, least, greatest = {}, 0, 0, 0
  for key, value in pairs(result) do
    local rank = rank_of(key)
    found[rank] = checked(value, "target", rank)
    number = number + 1
    if rank < least then least = rank elseif rank > greatest then greatest = rank end
  end
  local first = 0
  if number == count and found[0] == nil and found[count] ~= nil then first = 1 end
  if first == 0 and least >= 0 and greatest < count then return found end
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

-- Runs the policy for one rank. Returns the targets, the lines of its log, the packed state that is to be kept if there is a new
-- one, and whether it wants anything moved.
local function evaluate(view, me, state, has_rank_beyond)
  view.load_of = nil
  local count, names, rows = view.count, view.names, view.rows()
  local mds, server = { unpack_table(rows, 1, count - 1) }, { unpack_table(rows, 1, count - 1) }
  mds[0], server[0] = rows[0], rows[0]
  local beyond = { load = huge }
  for j = 1, #names do beyond[names[j]] = huge end
  local neighbours = { __index = function(_, key) if type(key) == "number" then return beyond end end }
  setmetatable(server, neighbours)
  if has_rank_beyond then setmetatable(mds, neighbours) end

  local lines, kept, is_new
  local function begin()
    lines, kept, is_new = {}, nil, false
    if #state > 0 then kept = nacre.unpack(state) end
    env.targets, env.i, env.whoami = {}, me, me
  end
  env.mds, env.server, env.now, env.tick = mds, server, view.now, view.tick
  env.RDstate = function() return kept end
  env.WRstate = function(value) kept, is_new = value, true end
  env.BAL_LOG = function(level, ...)
    local words = { ... }
    for k = 1, select("#", ...) do words[k] = tostring(words[k]) end
    lines[#lines + 1] = tostring(level) .. " " .. table.concat(words, " ")
  end

  begin()
  local result, targets, is_wanted = policy_text(), nil, true
  if result ~= nil then
    targets = returned_targets(result, count)
  else
    local load, when, where = rawget(env, "load"), rawget(env, "when"), rawget(env, "where")
    if type(where) ~= "function" then where = rawget(env, "targets") end
    local has_functions = type(load) == "function" or type(where) == "function" or type(rawget(env, "home")) == "function"
    if type(load) == "function" then
      view.forget_loads()
      local function load_of(rank)
        -- Loads that have not been looked at before are 0 to this function. Whoever looks at one may catch what it fails with, and
        -- may use `i` for something else.
        local i = env.i
        view.load_of, env.i = nil, rank
        local ok, own, text = pcall(load, rank)
        view.load_of, env.i = load_of, i
        if not ok then error(text or own, 0) end
        if own == nil then own = server[rank]["all.meta_load"] end
        return checked(own, "load", rank)
      end
      view.load_of = load_of
    else
      -- They come first, as the rest is about them.
      local loads = {}
      for rank = 0, count - 1 do
        local own
        if not has_functions then
          env.i, env.load, env.targets = rank, nil, {}
          policy_text()
          own = rawget(env, "load")
        end
        if own == nil then own = server[rank]["all.meta_load"] end
        loads[rank] = checked(own, "load", rank)
      end
      view.forget_loads()
      for rank = 0, count - 1 do view.set_load(rank, loads[rank]) end
    end
    env.targets, env.i = {}, me
    if not has_functions then
      begin()
      policy_text()
    else
      if type(when) == "function" then is_wanted = when() end
      if is_wanted then
        local given = nil
        if type(where) == "function" then given = where() end
        if given ~= nil then env.targets = given end
      end
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
  return targets, lines, packed, is_wanted
end

-- Returns the resources that are offered at a place of the input, if any are, and the place behind them.
local function offered(bytes, at)
  local has_offers, number
  has_offers, number, at = unpack("<BI4", bytes, at)
  if has_offers == 0 then return nil, at end
  local resources = {}
  for k = 1, number do
    local kind, load, name
    kind, load, name, at = unpack("<Bds2", bytes, at)
    resources[k] = { kind = KINDS[kind], name = name, load = load }
  end
  return resources, at
end

-- Has the policy choose resources for each of its targets. Returns the choices as pairs: the number of a resource, and the rank.
local function chosen(howmuch, resources, targets, me, count)
  local choices, is_taken = {}, {}
  for rank = 0, count - 1 do
    local amount = targets[rank] or 0
    if amount > 0 and rank ~= me then
      -- A list and tables of its own each time: the policy may change them.
      local shown, numbers = {}, {}
      for number = 1, #resources do
        if not is_taken[number] then
          local resource = resources[number]
          shown[#shown + 1] = { kind = resource.kind, name = resource.name, load = resource.load }
          numbers[#numbers + 1] = number
        end
      end
      local given = howmuch(shown, amount, rank)
      if type(given) ~= "table" then error("howmuch returned a " .. type(given) .. ", not a table", 0) end
      for k = 1, #given do
        local number = type(given[k]) == "number" and numbers[given[k]] or nil
        if number == nil or is_taken[number] then
          error("howmuch chose " .. tostring(given[k]) .. ", which is not one of the resources, or twice the same", 0)
        end
        is_taken[number] = true
        choices[#choices + 1], choices[#choices + 2] = number, rank
      end
    end
  end
  return choices
end

-- Asks the policy for the rank of each resource. Returns those that belong to other ranks, as `chosen` does.
local function placed(home, resources, me, count)
  local choices = {}
  for number = 1, #resources do
    local given = home(resources[number])
    if given ~= nil then
      local rank = nil
      if type(given) == "number" then rank = tointeger(given) end
      if rank == nil or rank < 0 or rank >= count then
        error("home returned " .. tostring(given) .. ", which is not the number of a rank", 0)
      end
      if rank ~= me then choices[#choices + 1], choices[#choices + 2] = number, rank end
    end
  end
  return choices
end

-- Decides for one rank. Returns the result as it is given out, and the lines of the log.
local function decide(view, me, state, resources)
  local count = view.count
  local ok, targets, lines, packed, is_wanted = pcall(evaluate, view, me, state, false)
  if not ok then
    -- Older policies for Ceph look at the rank after the last one, which is not there. For them, and only then, it is one
    -- with infinite load, to which nothing moves.
    -- A failed operation of a library has a number in front of its text.
    local failure = type(lines) == "string" and lines or targets
    if me ~= count - 1 then error(failure, 0) end
    targets, lines, packed, is_wanted = evaluate(view, me, state, true)
  end
  local list = {}
  for rank, target in pairs(targets) do
    if target > 0 then list[#list + 1], list[#list + 2] = rank, target end
  end
  local selector, home, choice, name, choices = rawget(env, "howmuch"), rawget(env, "home"), 0, "", {}
  if type(home) == "function" then
    choice = 3
    if resources and is_wanted then choices = placed(home, resources, me, count) end
  elseif type(selector) == "function" then
    choice = 2
    if resources then choices = chosen(selector, resources, targets, me, count) end
  elseif type(selector) == "string" then
    choice, name = 1, selector
  elseif selector ~= nil then
    error("howmuch is a " .. type(selector) .. "; it must be a function, or the name of a selector", 0)
  end
  local result = string.pack("<I4", #packed) .. packed .. packed_pairs("I4d", list) .. string.pack("<BI4", choice, #name) .. name
  return result .. packed_pairs("I4I4", choices), lines
end

-- Returns a function that makes the policy's environment what it is now: what a policy leaves there is not for the next rank.
local function environment()
  local before = {}
  for name, value in pairs(env) do before[name] = value end
  return function()
    for name in pairs(env) do env[name] = before[name] end
    for name, value in pairs(before) do env[name] = value end
  end
end

-- Decides for the ranks of the input. One alone may fail, and logs; of several, each has its lines in the output, or the mark that
-- it failed: then it is to be run alone, which says why.
function run_policy(input, output)
  local bytes = input:str()
  local head, at = section(bytes, 1)
  local view, ranks = {}, nil
  view.count, ranks, view.now, view.tick, view.names = nacre.unpack(head)
  local begin = at
  at = at + 8 * #view.names * view.count
  local function read() return read_rows(bytes, begin, view.count, view.names) end
  if ranks == 1 then
    show_once(view, read)
    local me, state, resources
    me, at = unpack("<I4", bytes, at)
    state, at = section(bytes, at)
    resources, at = offered(bytes, at)
    local result, lines = decide(view, me, state, resources)
    for k = 1, #lines do objclass.log(lines[k]) end
    output:append(result)
    return
  end
  show_often(view, read)
  local clear, parts = environment(), {}
  for _ = 1, ranks do
    local me, state, resources
    me, at = unpack("<I4", bytes, at)
    state, at = section(bytes, at)
    resources, at = offered(bytes, at)
    clear()
    local ok, result, lines = pcall(decide, view, me, state, resources)
    if ok then
      parts[#parts + 1] = string.pack("<BI4", 1, #result)
      parts[#parts + 1] = result
      parts[#parts + 1] = string.pack("<I4", #lines)
      for k = 1, #lines do
        parts[#parts + 1] = string.pack("<I4", #lines[k])
        parts[#parts + 1] = lines[k]
      end
    else
      parts[#parts + 1] = "\0"
    end
  end
  output:append(table.concat(parts))
end
objclass.register(run_policy, { writes = false })
