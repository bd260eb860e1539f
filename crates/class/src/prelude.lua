-- The environment of object classes: what scripts see of Lua, made of Lua's own functions (G) and of native ones (N).
--
-- It runs once for each machine, under Lua 5.3 and 5.4. Whatever loops here is counted by instructions like the script
-- itself; whatever is native charges for its work. Nothing that scripts can reach may be changed by them: libraries are
-- empty tables in front of the real ones, and metatables are hidden.
local N, G, constants = ...

local type, select, error, rawget, rawlen, rawequal = G.type, G.select, G.error, G.rawget, G.rawlen, G.rawequal
local raw_pcall, raw_tostring, raw_setmetatable, raw_rawset = G.pcall, G.tostring, G.setmetatable, G.rawset
local raw_format, raw_unpack, raw_pack = G.string.format, G.table.unpack, G.table.pack
local string_pack, string_unpack = N.linear(G.string.pack), N.linear_first(G.string.unpack)
local math_type = G.math.type
local settle, metatable, sorted_keys, search, permit = N.settle, N.metatable, N.sorted_keys, N.search, N.permit
local last_of = N.last

-- How deep calls of classes are nested, and whether the method that runs may write.
local depth, writable = 0, true
-- The methods that the running class has registered in this call; nil where there are none yet. `earlier` are those that its text
-- registered in an earlier call, whose environment serves this one; nil where there is none.
local registered, earlier
-- The libraries, which cannot be changed.
local frozen = {}

-- Base -------------------------------------------------------------------------------------------------------------

local function argument(value, number, wanted, name)
  if type(value) ~= wanted then
    error("bad argument #" .. number .. " to '" .. name .. "' (" .. wanted .. " expected, got " .. type(value) .. ")", 3)
  end
end

-- What ends a call for good cannot be caught: it is raised again, by `settle` in an OSD. What a call of a class that failed has set,
-- `nacre.call` sets back.
local pcall = N.pcall and N.pcall(raw_pcall) or function(f, ...) return settle(raw_pcall(f, ...)) end

-- Addresses are not shown: they differ from run to run.
local function tostring(value)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "nil" or kind == "number" or kind == "boolean" then return raw_tostring(value) end
  local meta = metatable(value)
  if meta then
    local convert = rawget(meta, "__tostring")
    if convert ~= nil then
      local text = convert(value)
      if type(text) ~= "string" then error("'__tostring' must return a string", 2) end
      return text
    end
    local name = rawget(meta, "__name")
    if type(name) == "string" then return name end
  end
  return kind
end

-- Tables are gone through in ascending order of their keys, so that the order is the same in every run.
local function next(t, key)
  local keys, following = sorted_keys(t), nil
  if key == nil then
    following = keys[1]
  else
    local i = 1
    while not rawequal(keys[i], key) do
      if keys[i] == nil then error("invalid key to 'next'", 2) end
      i = i + 1
    end
    following = keys[i + 1]
  end
  if following == nil then return nil end
  return following, rawget(t, following)
end

local function pairs(t)
  local meta = metatable(t)
  local custom = meta and rawget(meta, "__pairs")
  if custom then
    local f, state, first = custom(t)
    return f, state, first
  end
  argument(t, 1, "table", "pairs")
  local keys, i = sorted_keys(t), 0
  return function()
    while true do
      i = i + 1
      local key = keys[i]
      if key == nil then return nil end
      local value = rawget(t, key)
      if value ~= nil then return key, value end
    end
  end, t, nil
end

-- Finalizers and weak tables would show when garbage is collected.
local function setmetatable(t, meta)
  if type(meta) == "table" then
    if rawget(meta, "__gc") ~= nil or rawget(meta, "__mode") ~= nil or rawget(meta, "__close") ~= nil then
      error("metamethods __gc, __mode and __close are not available", 2)
    end
  end
  return raw_setmetatable(t, meta)
end

local function rawset(t, key, value)
  if frozen[t] then error("a library cannot be changed", 2) end
  return raw_rawset(t, key, value)
end

local function freeze(library)
  local proxy = raw_setmetatable({}, {
    __index = library,
    __newindex = function() error("a library cannot be changed", 2) end,
    -- The library itself stays out of reach: of what `pairs` returns, its second value would be that.
    __pairs = function(proxy) return (pairs(library)), proxy, nil end,
    __metatable = false,
  })
  frozen[proxy] = true
  return proxy
end

-- Strings ----------------------------------------------------------------------------------------------------------

local strings = {
  byte = N.byte, find = N.find, match = N.match, rep = N.rep, sub = N.sub, len = G.string.len,
  char = G.string.char, lower = N.linear(G.string.lower), upper = N.linear(G.string.upper),
  reverse = N.linear(G.string.reverse), pack = string_pack, unpack = string_unpack,
  packsize = N.linear(G.string.packsize),
}

local function format(format, ...)
  if not N.inspect_format(format, ...) then return raw_format(format, ...) end
  local count = select("#", ...)
  local values = { ... }
  for i = 1, count do
    local kind = type(values[i])
    if kind == "table" or kind == "function" or kind == "userdata" then values[i] = tostring(values[i]) end
  end
  -- Once more, to pay for the texts that there are now.
  N.inspect_format(format, raw_unpack(values, 1, count))
  return raw_format(format, raw_unpack(values, 1, count))
end

-- What has to be converted first is left to the function above; an OSD leaves it everything.
strings.format = N.format and N.format(raw_format, format) or format

function strings.gmatch(text, pattern)
  text, pattern = text .. "", pattern .. ""
  local at, last = 0, nil
  local function step(start, finish, ...)
    if start == nil then
      at = #text + 1
      return nil
    end
    at, last = finish, finish
    return ...
  end
  return function() return step(search(text, pattern, at, false, last)) end
end

function strings.gsub(text, pattern, replacement, max)
  local kind = type(replacement)
  if kind == "string" or kind == "number" then return N.gsub_text(text, pattern, replacement, max) end
  if kind ~= "table" and kind ~= "function" then
    error("bad argument #3 to 'gsub' (string/function/table expected, got " .. kind .. ")", 2)
  end
  text, pattern = text .. "", pattern .. ""
  local anchored = N.byte(pattern) == 94
  local parts, count, at, last = {}, 0, 0, nil
  local function replace(start, finish, first, ...)
    if start == nil then return false end
    count = count + 1
    local value
    if kind == "table" then value = replacement[first] else value = replacement(first, ...) end
    if not value then
      value = N.sub(text, start + 1, finish)
    elseif type(value) ~= "string" and type(value) ~= "number" then
      error("invalid replacement value (a " .. type(value) .. ")", 3)
    end
    parts[#parts + 1] = N.sub(text, at + 1, start)
    parts[#parts + 1] = value
    at, last = finish, finish
    return not anchored
  end
  while not (max and count >= max) and replace(search(text, pattern, at, true, last)) do end
  parts[#parts + 1] = N.sub(text, at + 1)
  return N.concat(parts, "", 1, #parts), count
end

-- Tables -----------------------------------------------------------------------------------------------------------

local UNPACK_MAX = 4096
local tables = { pack = raw_pack }

function tables.insert(t, ...)
  argument(t, 1, "table", "insert")
  local count, position, value = select("#", ...), ...
  local free = #t + 1
  if count == 1 then
    t[free] = position
  elseif count == 2 then
    if math_type(position) ~= "integer" or position < 1 or position > free then
      error("bad argument #2 to 'insert' (position out of bounds)", 2)
    end
    for i = free, position + 1, -1 do t[i] = t[i - 1] end
    t[position] = value
  else
    error("wrong number of arguments to 'insert'", 2)
  end
end

function tables.remove(t, position)
  argument(t, 1, "table", "remove")
  local size = #t
  if position == nil then
    position = size
  elseif size + 1 ~= position and (position < 1 or position > size + 1) and not (size == 0 and position == 0) then
    error("bad argument #2 to 'remove' (position out of bounds)", 2)
  end
  local removed = t[position]
  while position < size do
    t[position] = t[position + 1]
    position = position + 1
  end
  t[position] = nil
  return removed
end

function tables.concat(t, separator, first, last)
  argument(t, 1, "table", "concat")
  first, last = first or 1, last or #t
  if metatable(t) then
    local copy = {}
    for i = first, last do copy[i - first + 1] = t[i] end
    t, first, last = copy, 1, last - first + 1
  end
  return N.concat(t, separator or "", first, last)
end

function tables.unpack(t, first, last)
  first, last = first or 1, last or #t
  if last - first >= UNPACK_MAX or (first < 0 and last > 0 and last - first < 0) then
    error("too many results to unpack: at most " .. UNPACK_MAX, 2)
  end
  return raw_unpack(t, first, last)
end

function tables.move(from, first, last, to, target)
  argument(from, 1, "table", "move")
  target = target or from
  if last >= first then
    if to > last or to <= first or target ~= from then
      for i = 0, last - first do target[to + i] = from[first + i] end
    else
      for i = last - first, 0, -1 do target[to + i] = from[first + i] end
    end
  end
  return target
end

-- A stable merge sort: with any comparison it ends, and gives the same order in every run.
function tables.sort(t, less)
  argument(t, 1, "table", "sort")
  local size = #t
  if size < 2 then return end
  if less == nil then
    if not metatable(t) and N.sort(t, size) then return end
    less = function(a, b) return a < b end
  else
    argument(less, 2, "function", "sort")
  end
  local from, to, width = {}, {}, 1
  for i = 1, size do from[i] = t[i] end
  while width < size do
    for start = 1, size, 2 * width do
      local a, b = start, start + width
      local a_end, b_end = b, b + width
      if a_end > size + 1 then a_end = size + 1 end
      if b_end > size + 1 then b_end = size + 1 end
      for i = start, b_end - 1 do
        if a < a_end and (b >= b_end or not less(from[b], from[a])) then
          to[i] = from[a]
          a = a + 1
        else
          to[i] = from[b]
          b = b + 1
        end
      end
    end
    from, to, width = to, from, 2 * width
  end
  for i = 1, size do t[i] = from[i] end
end

-- Structured values --------------------------------------------------------------------------------------------------

local DEPTH_MAX = 32
local nacre = {}
for name, f in G.next, N.nacre do nacre[name] = f end

local function head(parts, length, small, small_max, byte, short, long)
  if length <= small_max then
    parts[#parts + 1] = string_pack("B", small + length)
  elseif byte and length < 256 then
    parts[#parts + 1] = string_pack("BB", byte, length)
  elseif length < 65536 then
    parts[#parts + 1] = string_pack(">BI2", short, length)
  else
    parts[#parts + 1] = string_pack(">BI4", long, length)
  end
end

local function encode(value, parts, depth)
  if depth > DEPTH_MAX then error("a value is nested more than " .. DEPTH_MAX .. " deep", 0) end
  local kind = type(value)
  if kind == "nil" then
    parts[#parts + 1] = "\xc0"
  elseif kind == "boolean" then
    parts[#parts + 1] = value and "\xc3" or "\xc2"
  elseif kind == "number" then
    if math_type(value) == "float" then
      parts[#parts + 1] = string_pack(">Bd", 0xcb, value)
    elseif value >= 0 and value < 128 then
      parts[#parts + 1] = string_pack("B", value)
    elseif value < 0 and value >= -32 then
      parts[#parts + 1] = string_pack("b", value)
    else
      parts[#parts + 1] = string_pack(">Bi8", 0xd3, value)
    end
  elseif kind == "string" then
    head(parts, #value, 0xa0, 31, 0xd9, 0xda, 0xdb)
    parts[#parts + 1] = value
  elseif kind == "table" then
    local keys = sorted_keys(value)
    local count = #keys
    -- Keys are in order, so the last of an array's is its length.
    if count == 0 or (keys[1] == 1 and keys[count] == count) then
      head(parts, count, 0x90, 15, nil, 0xdc, 0xdd)
      for i = 1, count do encode(rawget(value, i), parts, depth + 1) end
    else
      head(parts, count, 0x80, 15, nil, 0xde, 0xdf)
      for i = 1, count do
        encode(keys[i], parts, depth + 1)
        encode(rawget(value, keys[i]), parts, depth + 1)
      end
    end
  elseif metatable(value) == N.bufferlist then
    return encode(N.bufferlist.str(value), parts, depth)
  else
    error("a " .. kind .. " cannot be packed", 0)
  end
end

-- MessagePack: arrays, maps, strings, numbers, booleans and nil.
function nacre.pack(...)
  local parts = {}
  for i = 1, select("#", ...) do encode((select(i, ...)), parts, 1) end
  return N.concat(parts, "", 1, #parts)
end

local formats = {
  [0xca] = ">f", [0xcb] = ">d", [0xcc] = "B", [0xcd] = ">I2", [0xce] = ">I4", [0xcf] = ">i8",
  [0xd0] = "b", [0xd1] = ">i2", [0xd2] = ">i4", [0xd3] = ">i8",
  [0xc4] = "s1", [0xc5] = ">s2", [0xc6] = ">s4", [0xd9] = "s1", [0xda] = ">s2", [0xdb] = ">s4",
}
local containers = { [0xdc] = ">I2", [0xdd] = ">I4", [0xde] = ">I2", [0xdf] = ">I4" }
local simple = { [0xc2] = false, [0xc3] = true }
local decode

local function decode_array(text, at, count, depth)
  local array, value = {}, nil
  for i = 1, count do
    value, at = decode(text, at, depth + 1)
    array[i] = value
  end
  return array, at
end

local function decode_map(text, at, count, depth)
  local map, key, value = {}, nil, nil
  for _ = 1, count do
    key, at = decode(text, at, depth + 1)
    value, at = decode(text, at, depth + 1)
    if key == nil or key ~= key then error("a packed map has a key that is no key", 0) end
    map[key] = value
  end
  return map, at
end

function decode(text, at, depth)
  if depth > DEPTH_MAX then error("a packed value is nested more than " .. DEPTH_MAX .. " deep", 0) end
  local byte = N.byte(text, at)
  if byte == nil then error("a packed value ends too early", 0) end
  at = at + 1
  if byte < 0x80 then return byte, at end
  if byte >= 0xe0 then return byte - 256, at end
  if byte < 0x90 then return decode_map(text, at, byte - 0x80, depth) end
  if byte < 0xa0 then return decode_array(text, at, byte - 0x90, depth) end
  if byte < 0xc0 then
    local finish = at + byte - 0xa0
    if finish > #text + 1 then error("a packed value ends too early", 0) end
    return N.sub(text, at, finish - 1), finish
  end
  if byte == 0xc0 then return nil, at end
  if simple[byte] ~= nil then return simple[byte], at end
  local format = formats[byte]
  if format then return string_unpack(format, text, at) end
  local container = containers[byte]
  if not container then error("it is not a packed value", 0) end
  local count
  count, at = string_unpack(container, text, at)
  if byte < 0xde then return decode_array(text, at, count, depth) end
  return decode_map(text, at, count, depth)
end

-- Returns the values that were packed: of a string, or of a bufferlist such as a method's input.
function nacre.unpack(packed)
  if type(packed) == "userdata" then packed = N.bufferlist.str(packed) end
  argument(packed, 1, "string", "unpack")
  local values, count, at = {}, 0, 1
  while at <= #packed do
    count = count + 1
    if count > UNPACK_MAX then error("too many values to unpack: at most " .. UNPACK_MAX, 0) end
    values[count], at = decode(packed, at, 1)
  end
  return raw_unpack(values, 1, count)
end

-- The libraries that scripts see ---------------------------------------------------------------------------------------

local maths = {}
for _, name in G.ipairs({
  "abs", "acos", "asin", "atan", "ceil", "cos", "deg", "exp", "floor", "fmod", "huge", "log", "max", "maxinteger", "min",
  "mininteger", "modf", "pi", "rad", "sin", "sqrt", "tan", "tointeger", "type", "ult",
}) do
  maths[name] = G.math[name]
end

local objclass = {}
for name, f in G.next, N.objclass do objclass[name] = f end
for name, number in G.next, constants do objclass[name] = number end

-- Makes a function of the class a method. The declaration, which cls_lua ignores, may say `writes = false`, and what the
-- method is about.
function objclass.register(f, declaration)
  argument(f, 1, "function", "register")
  registered = registered or {}
  if registered[f] ~= nil or earlier and earlier[f] ~= nil then error("Cannot register handler more than once", 2) end
  registered[f] = type(declaration) == "table" and declaration or true
end

local function is_read_only(declaration)
  return type(declaration) == "table" and rawget(declaration, "writes") == false
end

local globals = {
  _VERSION = G._VERSION, assert = G.assert, error = error, getmetatable = G.getmetatable, ipairs = G.ipairs, next = next,
  pairs = pairs, pcall = pcall, rawequal = rawequal, rawget = rawget, rawlen = rawlen, rawset = rawset, select = select,
  setmetatable = setmetatable, tonumber = N.linear(G.tonumber), tostring = tostring, type = type,
  string = freeze(strings), table = freeze(tables), math = freeze(maths), objclass = freeze(objclass),
  nacre = freeze(nacre), bufferlist = freeze({ new = N.bufferlist.new }),
}

function globals.print(...)
  local values = { ... }
  for i = 1, select("#", ...) do values[i] = tostring(values[i]) end
  N.objclass.log(N.concat(values, "\t", 1, select("#", ...)))
end

-- Methods of strings; the metatable itself is hidden.
local string_meta = metatable("")
raw_rawset(string_meta, "__index", strings)
raw_rawset(string_meta, "__metatable", false)
N.bufferlist.__metatable = false
N.bufferlist.__name = "bufferlist"
N.bufferlist.__index = { str = N.bufferlist.str, append = N.bufferlist.append }

local environment = { __index = globals, __metatable = false }

-- Running ------------------------------------------------------------------------------------------------------------

-- Runs a class's text in an environment of its own, and returns that.
local function instantiate(chunk)
  local env = raw_setmetatable({}, environment)
  env._G = env
  registered, earlier = {}, nil
  chunk(env)
  return env
end

-- Returns what later calls need of an environment: its functions by name, before them what was registered, and which of that only
-- reads.
local function methods_of(env, declared)
  local reads = {}
  local methods = { declared, reads }
  for name, f in G.next, env do
    if type(name) == "string" and type(f) == "function" then
      methods[name] = f
      if declared[f] ~= nil then reads[f] = is_read_only(declared[f]) end
    end
  end
  return methods
end

-- The functions that scripts see. None of them keeps anything from one call to the next.
local provided = {}

-- Runs a class's text, and keeps its methods for later calls if it is new and no call can change what they reach. Returns a method, and
-- whether it only reads; nil instead of that if it is not registered.
local function find(class, chunk, method, is_new)
  local touches, instructions, bytes
  if is_new then touches, instructions, bytes = N.watch() end
  local env = instantiate(chunk)
  local handler, declared = rawget(env, method), registered
  if is_new and N.is_constant(class, touches, env, frozen, provided, bytes) then
    N.keep(class, methods_of(env, declared), instructions, bytes)
    registered, earlier = nil, declared
  end
  local declaration = declared[handler]
  if declaration == nil then return handler, nil end
  return handler, is_read_only(declaration)
end

-- Returns a method, and sets what it may do. `kept` are the methods of the class if they were kept, false if they cannot be, and nil if
-- that is not known: nobody knows it in an OSD.
local function enter(class, method, chunk, kept)
  local handler, reads
  if kept then
    -- What this call registers is its own.
    handler, registered, earlier = kept[method], nil, kept[1]
    if handler then reads = kept[2][handler] end
  else
    handler, reads = find(class, chunk, method, kept == nil and N.watch ~= nil)
  end
  if type(handler) ~= "function" then N.no_method(class, method) end
  if reads == nil then error("Handler is not registered", 0) end
  if writable and reads then
    writable = false
    permit(false)
  end
  return handler
end

local function invoke(class, method, input, output, chunk, kept)
  return last_of(enter(class, method, chunk, kept)(input, output))
end

-- Calls a method of a class of the same epoch on the same object. Returns its output and its result.
local CALL_DEPTH_MAX = 8

function nacre.call(name, input)
  argument(name, 1, "string", "call")
  local class, method = N.match(name, "^([^.]+)%.([^.]+)$")
  if class == nil then error("\"" .. name .. "\" is not CLASS.METHOD", 2) end
  if depth >= CALL_DEPTH_MAX then error("calls of classes are nested more than " .. CALL_DEPTH_MAX .. " deep", 2) end
  local given, output = N.bufferlist.new(), N.bufferlist.new()
  if type(input) == "userdata" then given = input elseif input ~= nil then N.bufferlist.append(given, input) end
  local saved_registered, saved_earlier, saved_writable = registered, earlier, writable
  -- Before the depth: that there is no such class is an error of the caller, which may catch it.
  local chunk, kept = N.chunk(class)
  depth = depth + 1
  local ok, result, text = pcall(invoke, class, method, given, output, chunk, kept)
  depth = depth - 1
  registered, earlier, writable = saved_registered, saved_earlier, saved_writable
  permit(writable)
  if not ok then
    -- A failed operation of the callee fails the caller with the same number, unless it is caught.
    if text ~= nil then nacre.fail(result, text) end
    error(result, 0)
  end
  result = maths.tointeger(result) or error("method \"" .. name .. "\" returned no integer", 0)
  if result < 0 then nacre.fail(result, "method \"" .. name .. "\" failed") end
  return N.bufferlist.str(output), result
end

-- Calls a method, as an OSD does.
local function run(class, method, input, output, chunk)
  depth, writable = 0, true
  return invoke(class, method, input, output, chunk)
end

-- Returns a method, for a machine that calls it itself.
local function prepare(class, method, chunk, kept)
  depth, writable = 0, true
  return enter(class, method, chunk, kept)
end

-- What `prepare` does for a method that was kept. The machine does not run it, but sets its variables.
local function begin(may_write, declared)
  depth, writable, registered, earlier = 0, may_write, nil, declared
end

-- Returns the methods that a class registers: their names and declarations, in fives.
local function inspect(chunk)
  depth, writable = 0, false
  permit(false)
  local env = instantiate(chunk)
  local found = {}
  local function text(declaration, name)
    local value = type(declaration) == "table" and rawget(declaration, name)
    return type(value) == "string" and value or ""
  end
  for _, name in G.ipairs(sorted_keys(env)) do
    local declaration = registered[rawget(env, name)]
    if type(name) == "string" and declaration ~= nil then
      found[#found + 1] = name
      found[#found + 1] = is_read_only(declaration) and "read" or "write"
      found[#found + 1] = text(declaration, "about")
      found[#found + 1] = text(declaration, "input")
      found[#found + 1] = text(declaration, "output")
    end
  end
  return found
end

-- An OSD, which keeps no methods, need not know them.
for _, library in G.ipairs(N.watch and { globals, strings, tables, maths, objclass, nacre } or {}) do
  for _, f in G.next, library do
    if type(f) == "function" then provided[f] = true end
  end
end

return run, inspect, prepare, begin
