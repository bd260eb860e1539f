  -- Methods of classes in an OSD, continued from osd_natives.lua: the functions by which scripts read and change the object.

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
    if number < 1 or number > 4095 then raise(EINVAL, "fail: it is not an error number") end
    raise(number, text == nil and "" or text_of(text))
  end
