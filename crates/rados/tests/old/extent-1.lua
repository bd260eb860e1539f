-- Nacre's objects in a stock Ceph OSD: transactions on extents, forks, keys and attributes of one RADOS object.
--
-- The client sends this script with each call of cls_lua's `eval_bufferlist`, without its comments and without the
-- sections that the call has no use for; after the first time, as the OSD's own compiler left it. A call runs at the object's primary OSD, alone on that object, and its
-- effects are one RADOS transaction: all of them or none. docs/ceph.md describes what is stored; crates/rados encodes
-- requests and decodes replies (src/request.rs, src/reply.rs), and does natively what RADOS has an operation for.
--
-- Facts about the OSD that this script leans on:
--   * inside a call, keys and attributes read as they stood before it: the script keeps its own view of changes;
--   * bytes must not be read after bytes were written: all reads of the byte stream come first;
--   * a call that fails (negative result) changes nothing and may return data: that is how a refusal travels;
--   * names of keys end at the first zero byte: the client escapes them (00 to 01 02, 01 to 01 03), order kept;
--   * Lua compares strings by locale: the script never orders strings of users by `<`, only escaped ones in the
--     C locale that OSDs run in, for sorting what the OSD already returned as a set.
--
-- Only whole lines may be comments here: the client strips lines that start with two dashes.

--@ core
local unpack, pack, fmt, sub, concat = string.unpack, string.pack, string.format, string.sub, table.concat
local OFFSET_MAX = math.maxinteger
local REFUSED, ANSWERED, CROWDED, CORRUPT = 1, 2, 3, 4
local ECANCELED = -125
-- The request, and how far it was read.
local request, at
-- The object's header, as it stood and as it will be.
local header
-- Whether the object has none yet: RADOS has to make it before anything of it can be removed.
local fresh = false
-- What this call does to the omap: values to set, and keys to remove; and whether everything was removed before.
local sets, removals, cleared = {}, {}, false

local function take(format)
  local value
  value, at = unpack(format, request, at)
  return value
end

-- Ends the call with a status and data for the client; nothing is changed.
local function fail(status, ...)
  error({ pack("<B", status) .. concat({ ... }) }, 0)
end

local function corrupt(key)
  fail(CORRUPT, key)
end

-- A checksum of 32 bits: each word of 8 bytes is mixed in by a step that can be undone, so that no single change of
-- a word goes unnoticed before the last step folds 64 bits into 32.
local function checksum(text)
  local length = #text
  local sum = 0x6e61637265 ~ length
  local whole = length - length % 8
  for i = 1, whole, 8 do
    sum = (sum ~ unpack("<i8", text, i)) * 0x9e3779b97f4a7c15
    sum = sum ~ (sum >> 32)
  end
  if whole < length then
    sum = (sum ~ unpack("<i8", sub(text, whole + 1) .. "\0\0\0\0\0\0\0")) * 0x9e3779b97f4a7c15
    sum = sum ~ (sum >> 32)
  end
  sum = sum * 0x9e3779b97f4a7c15
  return (sum >> 32) & 0xffffffff
end

local function sealed(text)
  return text .. pack("<I4", checksum(text))
end

local function buffer(text)
  local made = bufferlist.new()
  made:append(text)
  return made
end

-- Calls a method that may find nothing: its result as a string, or nil.
local function find(method, name)
  local ok, result, text = pcall(method, name)
  if ok then return result:str() end
  if result == -2 or result == -61 then return nil end
  error({ code = math.type(result) == "integer" and result or -5 }, 0)
end

local HEADER = "<BBI2I4i8i8i8I4I4i8i8I4"
local function load_header()
  local text = find(objclass.getxattr, "nacre")
  if not text then
    fresh = true
    header = { flags = 0, attributes = 0, forks = 0, version = 0, fence = 0, floor = 0, tail = 0, live = 0,
      size_high = 0, size_low = 0, keys = 0 }
    return
  end
  if #text ~= 64 or unpack("<I4", text, 61) ~= checksum(sub(text, 1, 60)) then corrupt("xattr nacre") end
  local h, form = {}
  form, h.flags, h.attributes, h.forks, h.version, h.fence, h.floor, h.tail, h.live, h.size_high, h.size_low, h.keys =
    unpack(HEADER, text)
  if form ~= 1 then corrupt("xattr nacre") end
  header = h
end

local function packed_header()
  local h = header
  return sealed(pack(HEADER, 1, h.flags, h.attributes, h.forks, h.version, h.fence, h.floor, h.tail, h.live,
    h.size_high, h.size_low, h.keys))
end

-- The value of a key or an attribute with what guards it, checked, as it stands before or in the midst of this call.
local function stored(key)
  if sets[key] then return sets[key] end
  if cleared or removals[key] then return nil end
  local value = find(objclass.map_get_val, key)
  if value and (#value < 5 or value:byte() ~= 1 or unpack("<I4", value, 2) ~= checksum(sub(value, 6))) then
    corrupt(key)
  end
  return value
end

-- A page of the omap after a key: its keys in order, and the values. A full page may not be the last; one of fewer
-- than 64 entries is, since no OSD is set to return fewer at a time.
local function page(after, prefix, count)
  local ok, values = pcall(objclass.map_get_vals, after, prefix, count)
  if not ok then
    if values == -2 then return {}, {}, true end
    error({ code = math.type(values) == "integer" and values or -5 }, 0)
  end
  local keys = {}
  for key in pairs(values) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys, values, #keys < count and #keys < 64
end

--@ index
-- The extents of a fork are under keys that end in the offset one past their last byte, so that the first key after
-- an offset is the extent that holds it or the next one. Kinds: 1 data, 2 hole.
local function stem(fork)
  return "x" .. fork .. "\1\1"
end

local function extent_of(key, value)
  if #value ~= 28 or unpack("<I4", value, 25) ~= checksum(sub(value, 1, 24)) then corrupt(key) end
  local version, start, place, kind, form = unpack("<i8i8I4BB", value)
  local stop = math.tointeger(tonumber(sub(key, -16), 16))
  if form ~= 1 or not stop or start < 0 or start >= stop or version < 1 or version > header.version
    or kind < 1 or kind > 2 or kind == 1 and place + (stop - start) > header.tail then
    corrupt(key)
  end
  return { start = start, stop = stop, version = version, kind = kind, place = place, key = key }
end

-- Calls visit(extent) for the stored extents that share a byte with a range, in order, until it returns true.
local function each_extent(fork, from, to, visit)
  if from >= to then return end
  local prefix = stem(fork)
  local after, count, before = prefix .. fmt("%016x", from), 8, 0
  while true do
    local keys, values, last = page(after, prefix, count)
    for i = 1, #keys do
      local extent = extent_of(keys[i], values[keys[i]]:str())
      if extent.start >= to then return end
      if extent.start < before then corrupt(keys[i]) end
      before = extent.stop
      if visit(extent) then return end
    end
    if last and #keys < count then return end
    if #keys == 0 then return end
    after = keys[#keys]
    count = 256
  end
end

-- A fork's size, or nil where there is no such fork.
local function size_of(fork)
  local value = find(objclass.map_get_val, "f" .. fork)
  if not value then return nil end
  if #value ~= 13 or value:byte() ~= 1 or unpack("<I4", value, 10) ~= checksum(sub(value, 1, 9)) then
    corrupt("f" .. fork)
  end
  return (unpack("<i8", value, 2))
end

--@ range
-- The answer to a read of a range, and how many bytes of data it holds; `budget` is nil for extents alone.
local function range_answer(fork, from, length, budget)
  local to = from + length
  local size = size_of(fork) or 0
  local floor, version = header.floor, header.floor
  local found, parts, count, cut = {}, {}, 0, nil
  -- The last extent of the answer so far, kept open until what follows is known not to belong to it.
  local start, stop, stamp, kind
  local function push(a, b, v, k)
    if v == 0 or a >= b or cut then return end
    if start and stop == a and stamp == v and kind == k then
      stop = b
      return
    end
    if count == 4096 then
      cut = a
      return
    end
    count = count + 1
    if start then found[count - 1] = { start, stop, stamp, kind } end
    start, stop, stamp, kind = a, b, v, k
  end
  local position = from
  each_extent(fork, from, to, function(extent)
    if extent.version > version then version = extent.version end
    if cut then return end
    local a, b = math.max(extent.start, from), math.min(extent.stop, to)
    push(position, a, floor, 2)
    push(a, b, extent.version, extent.kind)
    if extent.kind == 1 and not cut then parts[#parts + 1] = { a, b, extent.place + (a - extent.start) } end
    position = b
  end)
  push(position, to, floor, 2)
  if start then found[count] = { start, stop, stamp, kind } end
  local ends = cut or to
  local bytes, segments, pieces = 0, {}, {}
  if budget then
    local wanted = math.max(math.min(ends, size) - from, 0)
    if wanted > budget then ends = from + budget end
    bytes = math.max(math.min(ends, size) - from, 0)
    -- Parts that lie side by side in the byte stream are read together.
    local i = 1
    while i <= #parts do
      local a, b, place = parts[i][1], parts[i][2], parts[i][3]
      while i < #parts and parts[i + 1][1] == b and parts[i + 1][3] == place + (b - a) do
        i = i + 1
        b = parts[i][2]
      end
      i = i + 1
      if a >= ends then break end
      b = math.min(b, ends)
      segments[#segments + 1] = pack("<i8I4", a, b - a)
      local data = objclass.read(place, b - a):str()
      if #data ~= b - a then corrupt(stem(fork) .. fmt("%016x", b) .. " (its bytes)") end
      pieces[#pieces + 1] = data
    end
  end
  local extents = {}
  for i = 1, #found do
    local e = found[i]
    if e[1] < ends then extents[#extents + 1] = pack("<i8i8i8B", e[1], math.min(e[2], ends), e[3], e[4]) end
  end
  local text = pack("<i8i8i8I4", version, size, ends < to and ends or -1, #extents) .. concat(extents)
    .. pack("<i8i8I4", from, bytes, #segments) .. concat(segments) .. concat(pieces)
  return text, bytes
end

--@ guards
-- Orders strings bytewise: negative, 0 or positive.
local function compare(a, b)
  if a == b then return 0 end
  local low, high = 0, math.min(#a, #b)
  while low < high do
    local middle = (low + high + 1) // 2
    if sub(a, low + 1, middle) == sub(b, low + 1, middle) then low = middle else high = middle - 1 end
  end
  return (a:byte(low + 1) or -1) - (b:byte(low + 1) or -1)
end

local function passes(check, operand, value)
  if check == 0 then return value ~= nil end
  if check == 1 then return value == nil end
  if value == nil then return check == 3 end
  local order = compare(value, operand)
  if check == 2 then return order == 0 end
  if check == 3 then return order ~= 0 end
  if check == 4 then return order < 0 end
  if check == 5 then return order <= 0 end
  if check == 6 then return order > 0 end
  return order >= 0
end

-- Checks all guards; the first that does not hold ends the call. Returns the greatest proposal.
local function check_guards(count)
  local proposal = 0
  for index = 0, count - 1 do
    local tag = take("<B")
    local function refuse(found)
      fail(REFUSED, packed_header(), pack("<I4", index), found)
    end
    if tag == 0 then
      if header.flags & 1 == 0 then refuse("") end
    elseif tag == 1 then
      if header.flags & 1 == 1 then refuse("") end
    elseif tag == 2 or tag == 3 then
      local fork, from, length, version = take("<s2"), take("<i8"), take("<i8"), take("<i8")
      local limit = tag == 2 and version or version - 1
      local over = header.floor > limit
      if not over then
        each_extent(fork, from, from + length, function(extent)
          over = extent.version > limit
          return over
        end)
      end
      if over then refuse((range_answer(fork, from, length, 1 << 20))) end
      if tag == 3 and version > proposal then proposal = version end
    elseif tag == 4 then
      local key, check, operand = take("<s2"), take("<B"), take("<s4")
      local value = stored(key)
      if not passes(check, operand, value and sub(value, 6)) then
        refuse(value and pack("<Bs4", 1, value) or "\0")
      end
    else
      if math.ult(take("<i8"), header.fence) then refuse("") end
    end
  end
  return proposal
end

--@ reads
local function unescaped_bytes(key)
  local _, escapes = key:gsub("\1", "")
  return #key - 1 - escapes
end

-- A page of keys or attributes, as far as limit and budget go: each entry is a key and a value as stored.
local function key_page(after, before, prefix, limit, values, first, budget)
  local entries, more, count, spent = {}, false, 32, 0
  while true do
    local keys, found, last = page(after, prefix, count)
    for i = 1, #keys do
      local key = keys[i]
      if before and key >= before then
        return entries, false, budget
      end
      local value = values and found[key]:str() or ""
      local bytes = unescaped_bytes(key) + math.max(#value - 5, 0)
      if #entries == limit or bytes > budget and not (first and #entries == 0) then
        return entries, true, budget
      end
      budget = math.max(budget - bytes, 0)
      spent = spent + #value
      entries[#entries + 1] = pack("<s2s4", key, value)
    end
    if last or #keys == 0 then return entries, more, budget end
    after = keys[#keys]
    count = spent < 1 << 20 and 256 or 32
  end
end

local function answer_reads(count)
  local answers, budget = {}, 16 << 20
  for index = 1, count do
    local tag, answer = take("<B"), nil
    if tag == 0 then
      local bytes
      answer, bytes = range_answer(take("<s2"), take("<i8"), take("<i8"), budget)
      budget = budget - bytes
    elseif tag == 1 then
      answer = range_answer(take("<s2"), take("<i8"), take("<i8"), nil)
    elseif tag == 2 then
      answer = ""
    elseif tag == 3 then
      local after, limit = take("<s2"), take("<I4")
      local entries, more = {}, false
      while not more do
        local keys, values, last = page(after, "f", 128)
        for i = 1, #keys do
          if #entries == limit then
            more = true
            break
          end
          entries[#entries + 1] = pack("<s2s1", keys[i], values[keys[i]]:str())
        end
        if last or #keys == 0 then break end
        after = keys[#keys]
      end
      answer = pack("<I4B", #entries, more and 1 or 0) .. concat(entries)
    elseif tag == 4 then
      local value = stored(take("<s2"))
      if value then budget = math.max(budget - (#value - 5), 0) end
      answer = value and pack("<Bs4", 1, value) or "\0"
    else
      local after, bounded, before, prefix, limit, values =
        take("<s2"), take("<B"), take("<s2"), take("<s2"), take("<I4"), take("<B")
      local entries, more
      entries, more, budget =
        key_page(after, bounded == 1 and before, prefix, limit, values == 1, index == 1, budget)
      answer = pack("<I4B", #entries, more and 1 or 0) .. concat(entries)
    end
    answers[index] = answer
  end
  return concat(answers)
end

--@ skip
-- Skips the reads of a request whose answers the client already holds.
local function skip_reads(count)
  for _ = 1, count do
    local tag = take("<B")
    if tag < 2 then
      take("<s2") take("<i8") take("<i8")
    elseif tag == 3 then
      take("<s2") take("<I4")
    elseif tag == 4 then
      take("<s2")
    elseif tag == 5 then
      take("<s2") take("<B") take("<s2") take("<s2") take("<I4") take("<B")
    end
  end
end

--@ changes
-- Bytes to write, as places and strings, in order; and the forks that were touched.
local writes, forks = {}, {}
local wipe = false

local function add_size(size, sign)
  header.size_high = header.size_high + sign * (size >> 32)
  header.size_low = header.size_low + sign * (size & 0xffffffff)
end

local function fork_state(name)
  local state = forks[name]
  if state then return state end
  local size
  if not cleared then size = size_of(name) end
  -- `list` holds the extents that were loaded or made, in order; `loaded` those that stand in the omap, by key; all
  -- of the fork between `low` and `high` is loaded.
  state = { name = name, size = size, list = {}, loaded = {}, low = 0, high = cleared and OFFSET_MAX or 0 }
  forks[name] = state
  return state
end

local function resize(state, size)
  if state.size then
    add_size(state.size, -1)
    if not size then header.forks = header.forks - 1 end
  elseif size then
    header.forks = header.forks + 1
  end
  if size then add_size(size, 1) end
  state.size = size
  if size then
    sets["f" .. state.name] = sealed(pack("<Bi8", 1, size))
    removals["f" .. state.name] = nil
  else
    sets["f" .. state.name] = nil
    removals["f" .. state.name] = true
  end
end

-- The first place in a list whose extent ends after an offset.
local function position_of(list, offset)
  local count = #list
  if count == 0 or list[count].stop <= offset then return count + 1 end
  local low, high = 1, count
  while low < high do
    local middle = (low + high) // 2
    if list[middle].stop > offset then high = middle else low = middle + 1 end
  end
  return low
end

-- Loads the stored extents that share a byte with a range. What was painted over was loaded before, so an extent
-- that is not known yet lies where nothing was painted.
local function load(state, from, to)
  if cleared then return end
  if from >= state.low and from <= state.high then
    if to <= state.high then return end
    from = state.high
  else
    state.low = from
  end
  local list, reached = state.list, to
  each_extent(state.name, from, to, function(extent)
    if not state.loaded[extent.key] then
      state.loaded[extent.key] = extent
      table.insert(list, position_of(list, extent.start), extent)
    end
    if extent.stop > reached then reached = extent.stop end
  end)
  state.high = reached
end

-- Takes the place of whatever is in a range. The extent may be nil, which leaves a gap.
local function paint(state, from, to, extent)
  local list = state.list
  local first = position_of(list, from)
  local last = first
  local left, right
  while list[last] and list[last].start < to do
    local e = list[last]
    if e.start < from then
      left = { start = e.start, stop = from, version = e.version, kind = e.kind, place = e.place }
    end
    if e.stop > to then
      right = { start = to, stop = e.stop, version = e.version, kind = e.kind, place = e.place }
      if e.kind == 1 then right.place = e.place + (to - e.start) end
    end
    if e.kind == 1 then
      header.live = header.live - (math.min(e.stop, to) - math.max(e.start, from))
    end
    last = last + 1
  end
  local made = {}
  if left then made[#made + 1] = left end
  made[#made + 1] = extent
  if right then made[#made + 1] = right end
  -- The common cases, appending and replacing one by one, move nothing.
  local gone = last - first
  if gone ~= #made then table.move(list, last, #list, first + #made) end
  for i = #list, #list - (gone - #made) + 1, -1 do list[i] = nil end
  for i = 1, #made do list[first + i - 1] = made[i] end
end

local function paint_hole(state, from, to)
  if from >= to then return end
  load(state, from, to)
  paint(state, from, to, { start = from, stop = to, version = header.version, kind = 2, place = 0 })
end

local function paint_data(state, from, data)
  local length = #data
  if length == 0 then return end
  local to = from + length
  load(state, from, to)
  local old, place = state.list[position_of(state.list, from)], nil
  if old and old.kind == 1 and old.start <= from and to <= old.stop then
    -- Within one extent, the bytes are overwritten where they are: the call is atomic, no log is needed.
    place = old.place + (from - old.start)
  else
    -- Large pieces start at multiples of 4 KiB, where storage is fastest.
    if length >= 4096 then header.tail = (header.tail + 4095) & ~4095 end
    place = header.tail
    header.tail = place + length
  end
  paint(state, from, to, { start = from, stop = to, version = header.version, kind = 1, place = place })
  header.live = header.live + length
  writes[#writes + 1] = { place, data }
end

-- Sets or removes a key or an attribute, and counts it.
local function set_value(key, value)
  local known = stored(key) ~= nil
  local field = key:byte() == 107 and "keys" or "attributes"
  if known ~= (value ~= nil) then header[field] = header[field] + (value and 1 or -1) end
  sets[key] = value
  removals[key] = not value or nil
end

local function remove_object()
  sets, removals, cleared, forks, writes, wipe = {}, {}, true, {}, {}, true
  local h = header
  h.floor, h.flags = h.version, h.flags & ~1
  h.attributes, h.forks, h.tail, h.live, h.size_high, h.size_low, h.keys = 0, 0, 0, 0, 0, 0, 0
end

local function change(count)
  for _ = 1, count do
    local tag = take("<B")
    header.flags = header.flags | 1
    if tag == 1 then
      local state, pieces = fork_state(take("<s2")), take("<I4")
      local table_at, size = at, state.size or 0
      at = at + pieces * 12
      -- Many pieces, which the client sends in ascending order, load what they touch in one go.
      if pieces > 8 then
        local last, length = unpack("<i8I4", request, table_at + (pieces - 1) * 12)
        load(state, (unpack("<i8", request, table_at)), last + length)
      end
      for i = 0, pieces - 1 do
        local offset, length = unpack("<i8I4", request, table_at + i * 12)
        paint_data(state, offset, sub(request, at, at + length - 1))
        at = at + length
        if length > 0 and offset + length > size then size = offset + length end
      end
      if size ~= state.size then resize(state, size) end
    elseif tag == 2 then
      local state, from, length = fork_state(take("<s2")), take("<i8"), take("<i8")
      paint_hole(state, from, from + length)
    elseif tag == 3 then
      local state, size = fork_state(take("<s2")), take("<i8")
      paint_hole(state, math.min(state.size or 0, size), OFFSET_MAX)
      resize(state, size)
    elseif tag == 4 then
      local state = fork_state(take("<s2"))
      load(state, 0, OFFSET_MAX)
      if state.size or #state.list > 0 then
        paint_hole(state, 0, OFFSET_MAX)
        if state.size then resize(state, nil) end
      end
    elseif tag == 5 then
      set_value(take("<s2"), take("<s4"))
    elseif tag == 6 then
      set_value(take("<s2"), nil)
    elseif tag == 7 then
      local token = take("<i8")
      if math.ult(header.fence, token) then header.fence = token end
    elseif tag == 8 then
      remove_object()
    end
  end
end

-- Turns the touched forks' lists into values to set and keys to remove.
local function settle()
  for name, state in pairs(forks) do
    local prefix, kept = stem(name), {}
    for _, e in ipairs(state.list) do
      local key = prefix .. fmt("%016x", e.stop)
      kept[key] = true
      if not e.key then sets[key] = sealed(pack("<i8i8I4BBI2", e.version, e.start, e.place, e.kind, 1, 0)) end
    end
    for key in pairs(state.loaded) do
      if not kept[key] then removals[key] = true end
    end
  end
end

-- Hands everything to the OSD, in one go.
local function commit()
  if fresh then objclass.create(false) end
  if cleared and not fresh then objclass.map_clear() end
  if header.live == 0 and not wipe and header.tail > 0 then
    -- Nothing is left of the bytes: give the space back.
    writes, wipe, header.tail = {}, true, 0
  end
  if wipe and not fresh then objclass.write_full(bufferlist.new()) end
  local i = 1
  while i <= #writes do
    -- Pieces side by side are written together.
    local place, stop, joined = writes[i][1], writes[i][1], bufferlist.new()
    while i <= #writes and writes[i][1] == stop do
      joined:append(writes[i][2])
      stop = stop + #writes[i][2]
      i = i + 1
    end
    if stop >= 1 << 31 then error({ code = -27 }, 0) end
    objclass.write(place, stop - place, joined)
  end
  if not cleared and not fresh then
    for key in pairs(removals) do objclass.map_remove_key(key) end
  end
  if next(sets) then objclass.map_set_vals(sets) end
  local text = packed_header()
  objclass.setxattr("nacre", buffer(text))
  return text
end

--@ apply
-- One transaction. `expected` is the version at which the client holds the answers to the reads, or -1.
local function apply()
  load_header()
  local expected = take("<i8")
  local proposal = 0
  local guards = take("<I4")
  if guards > 0 then proposal = check_guards(guards) end
  local reads = take("<I4")
  local reads_at = at
  if reads > 0 and expected ~= header.version then
    local answers = answer_reads(reads)
    local text = pack("<B", ANSWERED) .. packed_header() .. answers
    if take("<I4") > 0 then error({ text }, 0) end
    return text
  end
  if reads > 0 then skip_reads(reads) end
  local count = take("<I4")
  if count == 0 then return pack("<B", ANSWERED) .. packed_header() end
  if header.version == math.maxinteger - 1 then error({ code = -75 }, 0) end
  header.flags = header.flags & 0xfc | (header.flags & 1) << 1 | header.flags & 1
  header.version = math.max(header.version + 1, proposal)
  change(count)
  if header.attributes > 256 then fail(CROWDED, pack("<I4", header.attributes)) end
  settle()
  return commit()
end

--@ compact
-- Moves the live bytes together, if half of the byte stream or more is garbage. No version changes.
local function compact()
  load_header()
  if header.tail < 2 * header.live + 65536 and take("<B") == 0 then return "" end
  local pieces, tail, after = bufferlist.new(), 0, "x"
  while true do
    local keys, values, last = page(after, "x", 256)
    for i = 1, #keys do
      local extent = extent_of(keys[i], values[keys[i]]:str())
      if extent.kind == 1 then
        local length = extent.stop - extent.start
        local place = length >= 4096 and (tail + 4095) & ~4095 or tail
        if place > tail then pieces:append(("\0"):rep(place - tail)) end
        local data = objclass.read(extent.place, length):str()
        if #data ~= length then corrupt(keys[i] .. " (its bytes)") end
        pieces:append(data)
        if place ~= extent.place then
          sets[keys[i]] = sealed(pack("<i8i8I4BBI2", extent.version, extent.start, place, 1, 1, 0))
        end
        tail = place + length
      end
    end
    if last or #keys == 0 then break end
    after = keys[#keys]
  end
  header.tail, header.flags = tail, (header.flags + 4) & 0xff
  objclass.write_full(pieces)
  if next(sets) then objclass.map_set_vals(sets) end
  local text = packed_header()
  objclass.setxattr("nacre", buffer(text))
  return text
end

--@ entry
-- Runs a handler on a request that begins somewhere in a text. Errors that carry a text are answers of a failing
-- call; the others are the OSD's own codes.
local function guarded(handler, text, from, output)
  request, at = text, from
  local ok, result = pcall(handler)
  if ok then
    output:append(result)
    return 0
  end
  if type(result) == "table" then
    if result.code then return result.code end
    output:append(result[1])
    return ECANCELED
  end
  if math.type(result) == "integer" then return result end
  output:append("\5" .. tostring(result))
  return ECANCELED
end
