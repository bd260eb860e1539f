-- Methods of classes in an OSD: the functions that the prelude stands on, made of those of extent.lua.
--
-- The text before this one is that of extent.lua, whose local names it uses, then `prelude(nacre_count, nacre_join, …)`, `CONSTANTS` and
-- `patterns(…)`, and what is before all: `nacre_classes`, a table of classes, each with its version and its text as a function. The
-- function `method` has four parts, each of which uses the local names of those before: this one, with the bounds of the call, checks of
-- arguments and access to the object; osd_natives.lua; osd_interface.lua; and osd_call.lua, where it ends.
--
-- What scripts call here is bounded as at Nacre's servers: by units of work, of which loops and functions pay by their
-- counters and natives by `charge`, and by the memory that texts take. The changes of a method are collected in the form
-- in which clients send them, so that `conclude` makes them as it makes those of a transaction; until then everything
-- reads as it stood before the call.
--
-- While a script runs, the methods of strings and buffers are those of the prelude; extent.lua runs with the OSD's own, so
-- it is entered by `operate` alone. What it fails with ends the call for good: no `pcall` of a script catches that.
local function method()
  local FINISHED, FAILED, PREPARED, BOUND, STALE, WANTED, FENCED = 32, 33, 34, 35, 36, 37, 38
  local INSTRUCTIONS, MEMORY, OUTPUT = 1, 2, 3
  local ENOENT, EIO, E2BIG, EEXIST, EINVAL, EFBIG, EROFS, ENODATA, EPERM, EOPNOTSUPP = 2, 5, 7, 17, 22, 27, 30, 61, 1, 95
  local ACCEPTED, MAP_HEADER = "nacre.classes", "nacre.map-header"
  local byte, find, gmatch, gsub, rep = string.byte, string.find, string.gmatch, string.gsub, string.rep
  local joined, sorted, integer = table.concat, table.sort, math.tointeger
  local string_meta, buffer_meta = getmetatable(""), getmetatable(bufferlist.new())
  local raw_str, raw_append, raw_new = buffer_meta.str, buffer_meta.append, bufferlist.new

  local marked, repeated = begin()
  local expected, units, memory, output_max, epoch = take("<i8"), take("<i8"), take("<i8"), take("<i8"), take("<i8")
  -- The call took effect before, and what it returned then is lost, unless it was the change that the client had prepared: nothing
  -- behind the change says that it was.
  if repeated then return changed() .. (header.version == expected + 1 and "" or "\2") end
  local has_session, session = take("<B"), take("<i8")
  local class, name, input = take("<s1"), take("<s1"), take("<s4")
  local existed = header.flags & 1 == 1

  -- The least version of each class that the object accepts.
  local accepted, used = {}, {}
  do
    local entry = stored("a" .. ACCEPTED, true)
    if entry then
      for of, version in gmatch(sub(entry, head_bytes(entry) + 1), "([^ \n]+) (%d+)\n") do accepted[of] = integer(tonumber(version)) end
    end
  end

  -- Bounds -------------------------------------------------------------------------------------------------------------

  -- What ends the call for good; and the error number of the operation that failed last.
  local fatal, raised
  -- Units that are left, the mark at which memory is looked at, and what a unit costs: texts that are long make every step
  -- cost more, for one instruction may compare them.
  local left, due, weight = units, units - 2048, 1
  local heap_max = collectgarbage("count") + memory // 512

  local function give_up(why)
    -- The first reason counts, whatever the script makes of it.
    if fatal == nil then fatal = why end
    left = -1
    error(fatal, 0)
  end

  local function stop(bound)
    give_up({ pack("<BB", BOUND, bound) })
  end

  local function pay()
    if left < 0 then stop(INSTRUCTIONS) end
    if collectgarbage("count") > heap_max then stop(MEMORY) end
    due = left > 2048 and left - 2048 or 0
  end

  local function charge(count)
    left = left - count
    if left < due then pay() end
  end

  local function count(tokens)
    left = left - tokens * weight
    if left < due then pay() end
  end

  -- Pays for a text that is made.
  local function reserve(bytes)
    memory = memory - bytes
    if memory < 0 then stop(MEMORY) end
    if bytes >= weight << 12 then weight = 1 + (bytes >> 12) end
    charge(1 + (bytes >> 8))
  end

  local function join(a, b)
    local first, second = type(a), type(b)
    if (first == "string" or first == "number") and (second == "string" or second == "number") then
      a, b = a .. "", b .. ""
      reserve(#a + #b)
    elseif first == "userdata" and second == "userdata" then
      reserve(#a + #b)
    end
    return a .. b
  end

  local function raise(number, text)
    raised = number
    error(text, 0)
  end

  -- Where the script's and where the OSD's own methods of strings and buffers are in place.
  local script_strings, script_buffers = string, buffer_meta.__index
  local host_buffers = { str = raw_str, append = raw_append }
  local function to_host()
    string_meta.__index, buffer_meta.__index = string, host_buffers
  end

  local function finish(ok, ...)
    string_meta.__index, buffer_meta.__index = script_strings, script_buffers
    if ok then return ... end
    give_up((...))
  end

  local function at_host(f, ...)
    to_host()
    return f(...)
  end

  -- The OSD's own methods come in place within the protected call: a stack that is too full for that call to begin must not
  -- leave them to the script.
  local function operate(f, ...)
    charge(16)
    return finish(pcall(at_host, f, ...))
  end

  -- Arguments ------------------------------------------------------------------------------------------------------------

  local function expected_type(value, wanted)
    error("bad argument (" .. wanted .. " expected, got " .. type(value) .. ")", 0)
  end

  local function text_of(value)
    local kind = type(value)
    if kind == "string" then return value end
    if kind == "number" then return value .. "" end
    expected_type(value, "string")
  end

  local function whole(value)
    local kind = type(value)
    local number = (kind == "number" or kind == "string") and tonumber(value)
    return number and integer(number) or expected_type(value, "integer")
  end

  local function natural(value)
    local number = whole(value)
    if number < 0 then raise(EINVAL, "an argument is negative: " .. number) end
    return number
  end

  local function buffer_bytes(value)
    if type(value) ~= "userdata" then expected_type(value, "bufferlist") end
    reserve(#value)
    return raw_str(value)
  end

  local function payload(value)
    if type(value) == "userdata" then return buffer_bytes(value) end
    local text = text_of(value)
    reserve(#text)
    return text
  end

  local function new_buffer(text)
    reserve(#text + 64)
    local made = raw_new()
    raw_append(made, text)
    return made
  end

  local ESCAPES, UNESCAPES = { ["\0"] = "\1\2", ["\1"] = "\1\3" }, { ["\2"] = "\0", ["\3"] = "\1" }
  local function escaped(text)
    charge(#text >> 3)
    return (gsub(text, "[\0\1]", ESCAPES))
  end

  local function unescaped(text)
    return (gsub(text, "\1(.)", UNESCAPES))
  end

  local function key_of(letter, value)
    local text = text_of(value)
    if #text < 1 or #text > 1024 then raise(EINVAL, "a name has 1 to 1024 bytes, and not " .. #text) end
    return letter .. escaped(text)
  end

  local function attribute_of(value)
    local text = text_of(value)
    if text == MAP_HEADER or text == ACCEPTED then raise(EPERM, "attribute \"" .. text .. "\" is reserved") end
    return key_of("a", text)
  end

  local function fork_name(value)
    if value == nil then return "" end
    local text = text_of(value)
    if #text > 255 then raise(EINVAL, "a fork's name has at most 255 bytes, and not " .. #text) end
    if sub(text, 1, 7) == ".nacre." then raise(EPERM, "fork \"" .. text .. "\" is reserved") end
    return escaped(text)
  end

  local function check_range(offset, length)
    if length > OFFSET_MAX - offset then raise(EFBIG, "a range ends behind the last offset") end
  end

  -- The object -----------------------------------------------------------------------------------------------------------

  local writable, wrote_bytes, exists_now = true, false, existed
  local changes, change_bytes = {}, 0

  local function existing()
    if not existed then raise(ENOENT, "no such object or key") end
  end

  -- Adds a change, as clients send it.
  local function add(text, bytes, writes_bytes)
    if not writable then raise(EROFS, "the method is declared not to write") end
    change_bytes = change_bytes + bytes
    if change_bytes > 16 << 20 then raise(E2BIG, "the call writes more than 16777216 bytes") end
    if #changes >= 4087 then raise(E2BIG, "the call makes more than 4088 changes") end
    charge(8)
    changes[#changes + 1] = text
    exists_now, wrote_bytes = true, wrote_bytes or writes_bytes
  end

  local function create()
    add("\0", 0, false)
  end

  local function write(fork, offset, data)
    check_range(offset, #data)
    if #data == 0 then return create() end
    reserve(#data)
    add(pack("<Bs2I4i8I4", 1, fork, 1, offset, #data) .. data, #data, true)
  end

  local function truncate(fork, size)
    add(pack("<Bs2i8", 3, fork, size), 0, true)
  end

  local function set(key, value, bytes_max)
    if #value > bytes_max then raise(E2BIG, #value .. " bytes are more than " .. bytes_max) end
    reserve(#value)
    add(pack("<Bs2I4s4", 5, key, operate(checksum, value), value), #value, false)
  end

  local function set_key(key, value)
    set(key, value, 1 << 20)
  end

  local function set_attribute(key, value)
    set(key, value, 64 << 10)
  end

  local function unset(key)
    add(pack("<Bs2", 6, key), 0, false)
  end

  -- A value and its version.
  local function fetched(key)
    local entry = stored(key, true)
    if entry then return sub(entry, head_bytes(entry) + 1), version_of(entry) end
  end

  local function value_of(key)
    local value, version = operate(fetched, key)
    if value then reserve(#value) end
    return value, version
  end

  local function page_of(after, before, prefix, limit, shown)
    local found, more = key_page(after, before, prefix, limit, shown, true, 16 << 20)
    local keys, values = {}, {}
    for i = 1, #found do
      local key, entry = unpack("<s2s4", found[i])
      if shown == 1 and not is_sound(key, entry, true) then corrupt(key) end
      keys[i], values[i] = key, shown == 1 and sub(entry, head_bytes(entry) + 1) or ""
    end
    return keys, values, more
  end

  -- Names and values of keys or attributes, at most so many, and whether there are more.
  local function entries(letter, after, before, prefix, max, shown)
    local names, values, from = {}, {}, letter .. escaped(sub(after or "", 1, 2048))
    -- Longer than any key, a bound that is cut bounds the same keys.
    before = before and letter .. escaped(sub(before, 1, 2048))
    prefix = letter .. escaped(sub(prefix or "", 1, 2048))
    while #names < max do
      local keys, found, more = operate(page_of, from, before, prefix, math.min(max - #names, 1024), shown)
      for i = 1, #keys do
        charge(4)
        reserve(#keys[i] + #found[i])
        names[#names + 1], values[#names + 1] = unescaped(sub(keys[i], 2)), found[i]
      end
      from = keys[#keys]
      if not more or from == nil then return names, values, false end
    end
    return names, values, true
  end

  local function size_of(fork)
    return operate(fork_of, fork).size or 0
  end

  -- Bytes of a range, put together from an answer to a read of it; and where to go on.
  local function bytes_of(fork, from, length)
    local answer = range_answer(fork, from, length, length)
    local _, _, following, extents = unpack("<i8i8i8I4", answer)
    local at = 29 + 25 * extents
    local _, bytes, segments = unpack("<i8i8I4", answer, at)
    at = at + 20
    local data_at, parts, filled = at + 12 * segments, {}, from
    for _ = 1, segments do
      local start, bytes = unpack("<i8I4", answer, at)
      if start > filled then parts[#parts + 1] = rep("\0", start - filled) end
      parts[#parts + 1] = sub(answer, data_at, data_at + bytes - 1)
      at, data_at, filled = at + 12, data_at + bytes, start + bytes
    end
    if filled < from + bytes then parts[#parts + 1] = rep("\0", from + bytes - filled) end
    return joined(parts), following
  end

  local function read(fork, offset, length)
    if wrote_bytes then raise(EINVAL, "bytes cannot be read after bytes were written in the same call: read first") end
    length = math.min(length, size_of(fork) - offset)
    if length <= 0 then return "" end
    if length > 8 << 20 then raise(EFBIG, "a read of " .. length .. " bytes; the limit is 8388608") end
    reserve(2 * length)
    local parts, stop_at = {}, offset + length
    while offset < stop_at do
      local bytes, following = operate(bytes_of, fork, offset, stop_at - offset)
      charge(16)
      parts[#parts + 1] = bytes
      if following < 0 then break end
      offset = following
    end
    return #parts == 1 and parts[1] or joined(parts)
  end

  local function extents_of(fork, offset, length)
    local answer = range_answer(fork, offset, length, nil)
    local version, _, following, count = unpack("<i8i8i8I4", answer)
    local found = {}
    for i = 1, count do
      local start, ends, stamp, kind = unpack("<i8i8i8B", answer, 29 + 25 * (i - 1))
      found[i] = { offset = start, length = ends - start, version = stamp, hole = kind ~= 1 }
    end
    return found, version, following >= 0 and following or nil
  end

  local function forks_of()
    local found, count, after = {}, 0, "f"
    while true do
      local keys, values, last = page(after, "f", 128)
      for i = 1, #keys do
        local size = fork_record(keys[i], values[keys[i]]:str()).size
        local fork = unescaped(sub(keys[i], 2))
        if size and sub(fork, 1, 7) ~= ".nacre." then found[fork], count = size, count + 1 end
      end
      if last or #keys == 0 or count > 1024 then return found, count end
      after = keys[#keys]
    end
  end
