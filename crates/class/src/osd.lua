-- Methods of classes in an OSD: the functions that the prelude stands on, made of those of extent.lua.
--
-- The text before this one is that of extent.lua, whose local names it uses, then `prelude(nacre_count, nacre_join, …)`,
-- `CONSTANTS` and `patterns(…)`, and what is before all: `nacre_classes`, a table of classes, each with its version and its text as a function.
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
  -- The call took effect before, and what it returned then is lost.
  if repeated then return changed() end
  local expected, units, memory, output_max, epoch = take("<i8"), take("<i8"), take("<i8"), take("<i8"), take("<i8")
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

  -- What the prelude stands on -------------------------------------------------------------------------------------------

  local N = { objclass = {}, nacre = {}, bufferlist = buffer_meta }

  local function weigh(...)
    local arguments = select("#", ...)
    local bytes, values = 0, { ... }
    charge(arguments >> 2)
    for i = 1, arguments do
      if type(values[i]) == "string" then bytes = bytes + #values[i] end
    end
    return bytes
  end

  local function kept(...)
    reserve(weigh(...))
    return ...
  end

  function N.linear(f)
    return function(...)
      reserve(weigh(...))
      return f(...)
    end
  end

  function N.linear_first(f)
    return function(first, ...)
      if type(first) == "string" then charge(#first >> 4) end
      return kept(f(first, ...))
    end
  end

  function N.settle(ok, ...)
    if fatal ~= nil then error(fatal, 0) end
    local number = raised
    if not ok and number then
      raised = nil
      return false, -number, ...
    end
    return ok, ...
  end

  function N.last(...)
    local results = select("#", ...)
    if results == 0 then return 0 end
    return (select(results, ...))
  end

  function N.no_method(of, missing)
    raise(EOPNOTSUPP, "class \"" .. of .. "\" has no method \"" .. text_of(missing) .. "\"")
  end

  function N.chunk(of)
    local found = nacre_classes[of]
    if type(found) == "string" then raise(EOPNOTSUPP, found) end
    if not found and #of > 64 then raise(EOPNOTSUPP, "there is no class of such a name") end
    if not found then give_up({ pack("<B", WANTED) .. of }) end
    local version, text = found[1], found[2]
    if accepted[of] and accepted[of] > version then give_up({ pack("<Bi8", STALE, accepted[of]) .. of }) end
    used[of] = version
    return function(environment) return text(environment, count, join) end
  end

  function N.permit(allowed)
    writable = allowed
  end

  -- Scripts set metatables by one function alone, which notes them: the OSD has none that would see a hidden one.
  local metatables = setmetatable({}, { __mode = "k" })
  local function set_metatable(value, meta)
    setmetatable(value, meta)
    metatables[value] = meta
    return value
  end

  function N.metatable(value)
    local kind = type(value)
    if kind == "string" then return string_meta end
    if kind == "userdata" then return buffer_meta end
    return metatables[value]
  end

  local RANKS = { number = 1, string = 2, boolean = 3 }
  local function is_before(a, b)
    local first, second = RANKS[type(a)], RANKS[type(b)]
    if first ~= second then return first < second end
    if first == 3 then return not a and b end
    return a < b
  end

  function N.sorted_keys(t)
    if type(t) ~= "table" then expected_type(t, "table") end
    local keys, found = {}, 0
    for key in next, t do
      if not RANKS[type(key)] then error("a key that is a " .. type(key) .. " has no place in the order of a table", 0) end
      found = found + 1
      keys[found] = key
      charge(1)
    end
    charge(found * weight)
    sorted(keys, is_before)
    return keys
  end

  -- The prelude's own sort pays for each comparison.
  function N.sort()
    return false
  end

  function N.concat(t, separator, first, last)
    separator, first, last = text_of(separator), whole(first), whole(last)
    local bytes, at = 0, first
    while at <= last do
      charge(1)
      local value = rawget(t, at)
      local kind = type(value)
      if kind ~= "string" and kind ~= "number" then
        error("invalid value (a " .. kind .. ") at index " .. at .. " in table for 'concat'", 0)
      end
      bytes = bytes + #separator + (kind == "string" and #value or 24)
      if bytes > memory then stop(MEMORY) end
      if at == last then break end
      at = at + 1
    end
    reserve(bytes)
    return joined(t, separator, first, last)
  end

  function N.rep(text, times, separator)
    text, times, separator = text_of(text), whole(times), separator == nil and "" or text_of(separator)
    local each = #text + #separator
    if times <= 0 or each == 0 then return "" end
    if times > memory // each then stop(MEMORY) end
    reserve(times * each)
    return rep(text, times, separator)
  end

  function N.sub(text, first, last)
    local found = sub(text_of(text), whole(first), last == nil and -1 or whole(last))
    reserve(#found)
    return found
  end

  function N.byte(text, first, last)
    text, first = text_of(text), first == nil and 1 or whole(first)
    last = last == nil and first or whole(last)
    local from, to = first < 0 and #text + first + 1 or first, last < 0 and #text + last + 1 or last
    from, to = math.max(from, 1), math.min(to, #text)
    if to > from then reserve(16 * (to - from)) end
    return byte(text, from, to)
  end

  function N.inspect_format(format, ...)
    format = text_of(format)
    charge(#format)
    for letter in gmatch(gsub(format, "%%%%", ""), "%%[%-+ #0-9.]*(.)") do
      if letter == "p" then error("invalid conversion '%p' to 'format'", 0) end
    end
    -- A quoted text may take four times its length.
    local times = find(format, "q", 1, true) and 4 or 1
    local values, bytes, convert = { ... }, 4 * #format, false
    for i = 1, select("#", ...) do
      charge(1)
      local kind = type(values[i])
      if kind == "string" then
        bytes = bytes + times * #values[i]
      elseif kind == "table" or kind == "function" or kind == "userdata" then
        convert = true
      else
        bytes = bytes + 128
      end
    end
    reserve(bytes)
    return convert
  end

  -- string.pack, which may be asked for a text of any length by a few bytes.
  local function bounded_pack(format, ...)
    if type(format) == "string" then
      charge(#format)
      local bytes = 16 * #format
      for digits in gmatch(format, "c(%d+)") do
        local wanted = tonumber(digits)
        if wanted > memory then stop(MEMORY) end
        bytes = bytes + integer(wanted)
        if bytes > memory then stop(MEMORY) end
      end
      reserve(bytes)
    end
    return pack(format, ...)
  end

  for function_name, f in pairs(patterns(charge, reserve, text_of, whole, natural)) do N[function_name] = f end

  -- Buffers.
  local output = raw_new()

  function N.bufferlist.new()
    return new_buffer("")
  end

  function N.bufferlist.str(buffer)
    return buffer_bytes(buffer)
  end

  function N.bufferlist.append(buffer, text)
    if type(buffer) ~= "userdata" then expected_type(buffer, "bufferlist") end
    if type(text) ~= "string" then expected_type(text, "string") end
    if rawequal(buffer, output) and #buffer + #text > output_max then stop(OUTPUT) end
    reserve(#text)
    raw_append(buffer, text)
  end

  -- Those of the OSD compare byte by byte in C++, which nothing pays for, and take bytes for signed numbers.
  function N.bufferlist.__eq(a, b)
    return buffer_bytes(a) == buffer_bytes(b)
  end

  function N.bufferlist.__lt(a, b)
    return buffer_bytes(a) < buffer_bytes(b)
  end

  function N.bufferlist.__le(a, b)
    return buffer_bytes(a) <= buffer_bytes(b)
  end

  -- The interface of cls_lua, on Nacre's objects.
  local O = N.objclass

  function O.create(exclusive)
    if exclusive and exists_now then raise(EEXIST, "it exists") end
    create()
  end

  function O.remove()
    if not exists_now then raise(ENOENT, "no such object or key") end
    add("\8", 0, false)
    exists_now = false
  end

  function O.stat()
    existing()
    return size_of(""), 0
  end

  function O.read(offset, length)
    offset, length = natural(offset), natural(length)
    existing()
    return new_buffer(read("", offset, length == 0 and OFFSET_MAX or length))
  end

  function O.write(offset, length, buffer)
    offset, length = natural(offset), natural(length)
    local data = buffer_bytes(buffer)
    if #data ~= length then raise(EINVAL, "a write of " .. length .. " bytes was given " .. #data) end
    write("", offset, data)
  end

  function O.write_full(buffer)
    local data = buffer_bytes(buffer)
    truncate("", #data)
    if #data > 0 then write("", 0, data) end
  end

  function O.getxattr(of)
    of = text_of(of)
    existing()
    local value = value_of(attribute_of(of))
    if not value then raise(ENODATA, "no such attribute") end
    return new_buffer(value)
  end

  function O.getxattrs()
    existing()
    local found, names, values = {}, entries("a", nil, nil, nil, 1024, 1)
    for i = 1, #names do
      if names[i] ~= MAP_HEADER and names[i] ~= ACCEPTED then found[names[i]] = new_buffer(values[i]) end
    end
    return found
  end

  function O.setxattr(of, buffer)
    set_attribute(attribute_of(of), buffer_bytes(buffer))
  end

  function O.map_get_val(of)
    local value = value_of(key_of("k", of))
    if not value then raise(ENOENT, "no such object or key") end
    return new_buffer(value)
  end

  function O.map_get_vals(after, prefix, max)
    after, prefix, max = text_of(after), text_of(prefix), natural(max)
    existing()
    local found, names, values = {}, entries("k", after, nil, prefix, max, 1)
    for i = 1, #names do found[names[i]] = new_buffer(values[i]) end
    return found
  end

  function O.map_get_keys(after, max)
    after, max = text_of(after), natural(max)
    existing()
    local found, names = {}, entries("k", after, nil, nil, max, 0)
    for i = 1, #names do found[names[i]] = true end
    return found
  end

  function O.map_set_val(of, buffer)
    local value = buffer_bytes(buffer)
    set_key(key_of("k", of), value)
  end

  function O.map_set_vals(values)
    if type(values) ~= "table" then expected_type(values, "table") end
    local texts, names = {}, {}
    for key, value in next, values do
      charge(4)
      local kind = type(key)
      if kind ~= "string" and kind ~= "number" then raise(EINVAL, "map_set_vals: invalid key type (" .. kind .. ")") end
      if type(value) ~= "string" then raise(EINVAL, "map_set_vals: invalid val type (" .. type(value) .. ")") end
      local text = key .. ""
      if texts[text] then raise(EINVAL, "map_set_vals: two keys have the text \"" .. text .. "\"") end
      texts[text] = value
      names[#names + 1] = text
    end
    if #names == 0 then return create() end
    charge(#names * weight)
    sorted(names)
    for i = 1, #names do set_key(key_of("k", names[i]), texts[names[i]]) end
  end

  function O.map_remove_key(of)
    if not exists_now then raise(ENOENT, "no such object or key") end
    unset(key_of("k", of))
  end

  function O.map_clear()
    if not exists_now then raise(ENOENT, "no such object or key") end
    local keys = {}
    charge(#changes)
    for i = 1, #changes do
      -- Keys that the call itself has set are to go too.
      if byte(changes[i]) == 5 then
        local key = unpack("<s2", changes[i], 2)
        if byte(key) == 107 then keys[#keys + 1] = key end
      end
    end
    if existed then
      local names = entries("k", nil, nil, nil, 4096, 0)
      for i = 1, #names do keys[#keys + 1] = key_of("k", names[i]) end
    end
    for i = 1, #keys do unset(keys[i]) end
  end

  function O.map_read_header()
    return new_buffer(value_of("a" .. MAP_HEADER) or "")
  end

  function O.map_write_header(buffer)
    set_attribute("a" .. MAP_HEADER, buffer_bytes(buffer))
  end

  function O.current_version()
    return header.version
  end

  function O.current_subop_num()
    return 0
  end

  function O.current_subop_version()
    return header.version .. ".0"
  end

  local logs, log_bytes = {}, 0
  function O.log(...)
    local arguments, values = select("#", ...), { ... }
    if arguments == 0 then return end
    local level = arguments > 1 and tonumber(values[1]) or nil
    local parts = {}
    for i = level and level >= 0 and 2 or 1, arguments do
      local kind = type(values[i])
      if kind == "string" or kind == "number" then
        parts[#parts + 1] = values[i] .. ""
      else
        parts[#parts + 1] = kind == "boolean" and (values[i] and "true" or "false") or kind
      end
      reserve(#parts[#parts] + 1)
    end
    local line = joined(parts, " ")
    if #logs < 256 and log_bytes + #line <= 64 << 10 then
      logs[#logs + 1], log_bytes = line, log_bytes + #line
    end
    return line
  end

  -- What Nacre's objects have beyond those of Ceph.
  local M = N.nacre

  function M.version()
    return header.version
  end

  function M.exists()
    return existed
  end

  function M.epoch()
    return epoch
  end

  function M.size(fork)
    return size_of(fork_name(fork))
  end

  function M.forks()
    local found, count = operate(forks_of)
    if count > 1024 then raise(E2BIG, "argument list too long") end
    charge(4 * count)
    return found
  end

  function M.read(offset, length, fork)
    return read(fork_name(fork), natural(offset), natural(length))
  end

  function M.extents(offset, length, fork)
    offset, length, fork = natural(offset), natural(length), fork_name(fork)
    check_range(offset, length)
    local found, version, following = operate(extents_of, fork, offset, length)
    reserve(256 * #found)
    return found, version, following
  end

  function M.write(offset, data, fork)
    offset, data = natural(offset), payload(data)
    write(fork_name(fork), offset, data)
  end

  function M.zero(offset, length, fork)
    offset, length = natural(offset), natural(length)
    check_range(offset, length)
    add(pack("<Bs2i8i8", 2, fork_name(fork), offset, length), 0, true)
  end

  function M.truncate(size, fork)
    truncate(fork_name(fork), natural(size))
  end

  function M.remove_fork(fork)
    add(pack("<Bs2", 4, fork_name(fork)), 0, true)
  end

  function M.get(of)
    local value, version = value_of(key_of("k", of))
    if not value then return nil, 0 end
    return value, version
  end

  function M.set(of, data)
    local value = payload(data)
    set_key(key_of("k", of), value)
  end

  function M.unset(of)
    unset(key_of("k", of))
  end

  function M.keys(options)
    local after, before, prefix, max
    if options ~= nil then
      if type(options) ~= "table" then expected_type(options, "table") end
      after, before, prefix = rawget(options, "after"), rawget(options, "before"), rawget(options, "prefix")
      max = rawget(options, "limit")
    end
    return entries("k", after and text_of(after), before and text_of(before), prefix and text_of(prefix),
      max == nil and 1024 or natural(max), 1)
  end

  function M.attribute(of)
    return (value_of(attribute_of(of)))
  end

  function M.set_attribute(of, data)
    local value = payload(data)
    set_attribute(attribute_of(of), value)
  end

  function M.remove_attribute(of)
    unset(attribute_of(of))
  end

  function M.fail(number, text)
    number = whole(number)
    if number < 0 then number = -number end
    if number < 1 or number > 4095 then raise(EINVAL, "fail: it is no error number") end
    raise(number, text == nil and "" or text_of(text))
  end

  -- The call -------------------------------------------------------------------------------------------------------------

  local function logged()
    local parts = { pack("<I2", #logs) }
    for i = 1, #logs do parts[i + 1] = pack("<s4", logs[i]) end
    return joined(parts)
  end

  -- The answer of a method that failed.
  local function failed(number, text)
    return pack("<BI4i8s4s4", FAILED, number, units - left, text, raw_str(output)) .. logged()
  end

  local G = setmetatable({
    setmetatable = set_metatable, string = setmetatable({ pack = bounded_pack }, { __index = string }),
  }, { __index = _G })
  local given = raw_new()
  raw_append(given, input)
  local ok, result = pcall(function()
    local invoke = prelude(count, join, N, G, CONSTANTS)
    script_strings, script_buffers = string_meta.__index, buffer_meta.__index
    return invoke(class, N.chunk(class), name, given, output)
  end)
  to_host()
  -- What is answered without an error and changes nothing is a read, of which the OSD keeps no record.
  if type(fatal) == "table" and fatal[1] and byte(fatal[1]) >= FINISHED then return fatal[1] end
  if fatal ~= nil then error(fatal, 0) end
  if not ok then
    local kind = type(result)
    local text = (kind == "string" or kind == "number") and sub(result, 1, 1024) or "an error that is a " .. kind
    return failed(raised or EIO, text)
  end
  local kind = type(result)
  local value = (kind == "number" or kind == "string") and tonumber(result)
  value = value and integer(value)
  if not value then return failed(EIO, "the method returned a " .. kind .. ", where an integer is expected") end
  if value > 0x7fffffff or value < -0x80000000 then
    return failed(EIO, "the method returned " .. value .. ", which is no 32-bit integer")
  end
  if value < 0 then return failed(value == -0x80000000 and EIO or -value, "") end

  local text = raw_str(output)
  local function report(status)
    return pack("<Bi8Bi4i8s4", status, header.version, existed and 1 or 0, value, units - left, text) .. logged()
  end
  if #changes == 0 then return report(FINISHED) end
  if has_session == 1 and is_fenced(session) then return pack("<Bi8", FENCED, header.fence) end
  -- The answer to a change has 32 bytes, of which the change itself takes 17. A longer one goes first, and changes
  -- nothing; the client then wants the same again, of the same version.
  local short = value == 0 and "\0" .. text or pack("<Bi4", 1, value) .. text
  if expected == header.version then
    short = ""
  elseif #short > 15 or #logs > 0 then
    return report(PREPARED)
  end
  -- No earlier text of a class may change what a later one has left. This comes before the other changes, which may
  -- remove the object.
  local raises = false
  for of, version in pairs(used) do
    if version > (accepted[of] or 0) then accepted[of], raises = version, true end
  end
  if raises then
    local lines = {}
    for of, version in pairs(accepted) do lines[#lines + 1] = fmt("%s %d\n", of, version) end
    sorted(lines)
    local list = joined(lines)
    table.insert(changes, 1, pack("<Bs2I4s4", 5, "a" .. ACCEPTED, checksum(list), list))
  end
  request, at = joined(changes), 1
  return conclude(#changes, marked, 0) .. short
end
