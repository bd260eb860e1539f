  -- Methods of classes in an OSD, continued from osd.lua: the functions of Lua's libraries and of buffers that the prelude
  -- stands on.

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
    if not found and #of > 64 then raise(EOPNOTSUPP, "there is no class of this name") end
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
