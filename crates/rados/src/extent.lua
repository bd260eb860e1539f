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
--   * a call that changed something may answer with 32 bytes at most: older OSDs are set to that, and one that finds
--     its answer too long has changed what it keeps in memory of the object, but not what it stores;
--   * nothing ends a call that takes long but the OSD's suicide: every loop is paid for by `spend`, from one purse;
--   * names of keys end at the first zero byte: the client escapes them (00 to 01 02, 01 to 01 03), order kept;
--   * Lua compares strings by locale: the script never orders strings of users by `<`, only escaped ones in the
--     C locale that OSDs run in, for sorting what the OSD already returned as a set.
--
-- Only whole lines may be comments here: the client strips lines that start with two dashes.

--@ core
local unpack, pack, fmt, sub, concat = string.unpack, string.pack, string.format, string.sub, table.concat
local OFFSET_MAX = math.maxinteger
local REFUSED, ANSWERED, CROWDED, CORRUPT, NEWER, EXHAUSTED, UNINDEXED, TOO_FAR = 1, 2, 3, 4, 7, 8, 9, 10
local ECANCELED = -125
-- The request, and how far it was read.
local request, at
-- The object's header, as it will be, and its text as it stood.
local header, header_text
-- What the client stamps its change with: no other change of any client has the same.
local token
-- Whether the object has none yet: RADOS has to make it before anything of it can be removed. Its versions then go on above
-- `origin`.
local fresh, origin = false, 0
-- What this call does to the omap: values to set, and keys to remove; and whether everything was removed before.
local sets, removals, cleared = {}, {}, false
-- The sessions that are fenced one by one, in ascending order, once they are loaded; and whether they have changed.
local fenced, fenced_anew = nil, false

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

-- What a call may do in all, in steps of some 40 ns: about as much as the limits of the model allow one transaction to
-- ask for, and far from what an OSD takes for a hang. Each loop pays for every round before it makes it.
local purse = 1 << 25
local function spend(steps)
  purse = purse - steps
  if purse < 0 then fail(EXHAUSTED) end
end

-- A checksum of 32 bits: each word of 8 bytes is mixed in by a step that can be undone, so that no single change of
-- a word goes unnoticed before the last step folds 64 bits into 32.
local function checksum(text)
  local length = #text
  spend(length >> 3)
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
  spend(64)
  local ok, result = pcall(method, name)
  if ok then
    local text = result:str()
    spend(#text >> 8)
    return text
  end
  if result == -2 or result == -61 then return nil end
  error({ code = math.type(result) == "integer" and result or -5 }, 0)
end

-- The header as far as all formats have it; format 2 has the token behind it, and format 3 then two fields of its own.
local HEADER, HEADER_3 = "<BBI2I4i8i8i8I4I4i8i8I4", "<i8I4"
local HEADER_BYTES = { 64, 80, 92 }
local FENCED_SESSIONS_MAX = 1024
-- Reads the header, in any of its formats. A format that this script does not know begins with its number and ends with
-- its checksum all the same.
local function load_header()
  local text = find(objclass.getxattr, "nacre")
  if not text then
    fresh = true
    header = { flags = 0, attributes = 0, forks = 0, version = 0, fence = 0, floor = 0, tail = 0, live = 0,
      size_high = 0, size_low = 0, keys = 0, unversioned = 0, sessions = 0, watched = 0 }
    header_text = ""
    return
  end
  local length = #text
  if length < 64 or length > 4096 or unpack("<I4", text, length - 3) ~= checksum(sub(text, 1, length - 4)) then
    corrupt("xattr nacre")
  end
  local h, form = {}
  form, h.flags, h.attributes, h.forks, h.version, h.fence, h.floor, h.tail, h.live, h.size_high, h.size_low, h.keys =
    unpack(HEADER, text)
  if form > 3 then fail(NEWER, pack("<B", form)) end
  if length ~= HEADER_BYTES[form] then corrupt("xattr nacre") end
  if form == 1 then h.flags = h.flags & 3 end
  -- A key that was set before keys had versions was set at the version that the object had then, or before.
  h.unversioned, h.sessions, h.watched = h.version, 0, 0
  if form == 3 then
    -- The first bit of the token's last byte, which no client sets, says that somebody watches the object.
    h.watched = text:byte(76) & 128
    h.token = sub(text, 61, 75) .. pack("<B", text:byte(76) & 127)
    h.unversioned, h.sessions = unpack(HEADER_3, text, 77)
    if h.unversioned < 0 or h.unversioned > h.version or h.sessions > FENCED_SESSIONS_MAX then
      corrupt("xattr nacre")
    end
  end
  header, header_text = h, text
end

-- Begins a call: takes the token, whether the index of names has a mark of it, and the floor. An object of which there is no
-- trace looks as if it had been removed at the floor, and one that is made goes on above it. Returns whether there is a mark;
-- and whether this very call has made the last change already: librados sent it again, and the OSD did not remember it. To
-- make it once more would be another change.
local function begin()
  load_header()
  token = take("c16")
  local marked, shown, first = take("<B"), take("<i8"), take("<i8")
  if fresh then header.version, header.floor, origin = shown, shown, first end
  return marked, header.token == token
end

-- The header for the object's attribute: always in format 3, and with the token of this change.
local function packed_header()
  local h = header
  return sealed(pack(HEADER, 3, h.flags, h.attributes, h.forks, h.version, h.fence, h.floor, h.tail, h.live,
    h.size_high, h.size_low, h.keys) .. sub(token, 1, 15) .. pack("<B", token:byte(16) & 127 | h.watched)
    .. pack(HEADER_3, h.unversioned, h.sessions))
end

-- The answer to a change, within 32 bytes: what the client cannot foretell of the header and needs at once.
local function changed()
  return pack("<Bi8I4I4", header.flags | header.watched >> 4, header.version, header.tail, header.live)
end

-- The length of what stands before the value of a key or an attribute. In format 2, which keys alone have, that is a
-- record by itself, with the version: it can be checked, and made, without a look at the value.
local function head_bytes(entry)
  return entry:byte() == 2 and 17 or 5
end

-- The version of a key: that of the transaction that last set it.
local function version_of(entry)
  return entry:byte() == 2 and unpack("<i8", entry, 6) or header.unversioned
end

local function is_sound(key, entry, relied)
  local form, length = entry:byte(), #entry
  if form == 2 then
    if key:byte() ~= 107 or length < 17 or unpack("<I4", entry, 14) ~= checksum(sub(entry, 1, 13)) then return false end
    local version = unpack("<i8", entry, 6)
    if version < 1 or version > header.version then return false end
  elseif form ~= 1 or length < 5 then
    return false
  end
  return not relied and length >= 4096 or unpack("<I4", entry, 2) == checksum(sub(entry, head_bytes(entry) + 1))
end

-- The entry of a key or an attribute, as it stands before or in the midst of this call. Its value is checked if the
-- caller relies on its bytes, or if it is short enough for that to cost nothing.
local function stored(key, relied)
  if sets[key] then return sets[key] end
  if cleared or removals[key] then return nil end
  local entry = find(objclass.map_get_val, key)
  if entry and not is_sound(key, entry, relied) then corrupt(key) end
  return entry
end

-- A page of the omap after a key: its keys in order, and the values. A full page may not be the last; one of fewer
-- than 64 entries is, since no OSD is set to return fewer at a time.
local function page(after, prefix, count)
  spend(count)
  local ok, values = pcall(objclass.map_get_vals, after, prefix, count)
  if not ok then
    if values == -2 then return {}, {}, true end
    error({ code = math.type(values) == "integer" and values or -5 }, 0)
  end
  local keys = {}
  for key in pairs(values) do keys[#keys + 1] = key end
  spend(#keys << 7)
  table.sort(keys)
  return keys, values, #keys < count and #keys < 64
end

--@ index
-- The extents of a fork are under keys that begin with the fork's stem and end in the offset one past their last byte,
-- so that the first key after an offset is the extent that holds it or the next one. Kinds: 1 data, 2 hole.
--
-- A fork's stem is its name until its content is replaced by another fork's, which brings its stem along. Every byte of
-- a fork is at least as new as the fork's base, whatever its extents say.
local function prefix_of(stem)
  return "x" .. stem .. "\1\1"
end

-- A fork's record: its size (nil where there is no such fork), its base and its stem.
local function fork_record(key, value)
  local form = value and value:byte()
  if not value then return { base = 0, stem = sub(key, 2) } end
  if #value < 13 or unpack("<I4", value, #value - 3) ~= checksum(sub(value, 1, #value - 4)) then corrupt(key) end
  if form == 1 and #value == 13 then return { size = unpack("<i8", value, 2), base = 0, stem = sub(key, 2) } end
  if form ~= 2 or #value < 24 or #value ~= 24 + unpack("<I2", value, 19) then corrupt(key) end
  local _, flags, size, base, stem = unpack("<BBi8i8s2", value)
  if flags > 1 or size < 0 or base < 0 or base > header.version then corrupt(key) end
  return { size = flags == 1 and size or nil, base = base, stem = stem }
end

local function fork_of(name)
  local key = "f" .. name
  return fork_record(key, find(objclass.map_get_val, key))
end

-- The version that a range of a fork has where there is no extent. A range of no bytes has none of the fork's.
local function floor_of(fork, length)
  return length > 0 and math.max(header.floor, fork.base) or header.floor
end

local function extent_of(key, value, base)
  if #value ~= 28 or unpack("<I4", value, 25) ~= checksum(sub(value, 1, 24)) then corrupt(key) end
  local version, start, place, kind, form = unpack("<i8i8I4BB", value)
  local stop = math.tointeger(tonumber(sub(key, -16), 16))
  if form ~= 1 or not stop or start < 0 or start >= stop or version < 1 or version > header.version
    or kind < 1 or kind > 2 or kind == 1 and place + (stop - start) > header.tail then
    corrupt(key)
  end
  if version < base then version = base end
  return { start = start, stop = stop, version = version, kind = kind, place = place, key = key }
end

-- Calls visit(extent) for the stored extents that share a byte with a range, in order, until it returns true. Ends, for
-- each page begins after the last key of the one before, and each is paid for.
local function each_extent(fork, from, to, visit)
  if from >= to then return end
  local prefix = prefix_of(fork.stem)
  local after, count, before = prefix .. fmt("%016x", from), 8, 0
  while true do
    local keys, values, last = page(after, prefix, count)
    for i = 1, #keys do
      local extent = extent_of(keys[i], values[keys[i]]:str(), fork.base)
      if extent.start >= to then return end
      if extent.start < before then corrupt(keys[i]) end
      before = extent.stop
      if visit(extent) then return end
    end
    if last and #keys < count or #keys == 0 then return end
    after = keys[#keys]
    count = 256
  end
end

--@ range
-- The answer to a read of a range, and how many bytes of data it holds; `budget` is nil for extents alone.
local function range_answer(fork, from, length, budget)
  local to = from + length
  local record = fork_of(fork)
  local size, floor = record.size or 0, floor_of(record, length)
  local version = floor
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
  each_extent(record, from, to, function(extent)
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
    spend(bytes >> 8)
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
      if #data ~= b - a then corrupt(prefix_of(record.stem) .. fmt("%016x", b) .. " (its bytes)") end
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

--@ fences
-- The sessions that are fenced one by one, of the object's fence or above, are in one entry of the omap, which is there
-- only where the header counts some. Numbers of sessions have 64 bits and no sign.
local FENCES = "s"

local function load_fences()
  if fenced then return end
  local made, count = {}, header.sessions
  if count > 0 then
    local entry = find(objclass.map_get_val, FENCES)
    if not entry or #entry ~= 5 + 8 * count or entry:byte() ~= 1
      or unpack("<I4", entry, #entry - 3) ~= checksum(sub(entry, 1, #entry - 4)) then
      corrupt(FENCES)
    end
    spend(count)
    for i = 1, count do
      local session = unpack("<i8", entry, 8 * i - 6)
      if i == 1 and math.ult(session, header.fence) or i > 1 and not math.ult(made[i - 1], session) then
        corrupt(FENCES)
      end
      made[i] = session
    end
  end
  fenced = made
end

-- The first place in the list whose session is not below one.
local function fence_position(session)
  spend(10)
  local low, high = 1, #fenced + 1
  while low < high do
    local middle = (low + high) // 2
    if math.ult(fenced[middle], session) then low = middle + 1 else high = middle end
  end
  return low
end

local function is_fenced(session)
  if math.ult(session, header.fence) then return true end
  load_fences()
  return fenced[fence_position(session)] == session
end

local function packed_fences()
  load_fences()
  if #fenced == 0 then return "" end
  spend(2 * #fenced)
  local parts = {}
  for i = 1, #fenced do parts[i] = pack("<i8", fenced[i]) end
  return sealed("\1" .. concat(parts))
end

-- Fences all sessions below one.
local function raise_fence(least)
  load_fences()
  if not math.ult(header.fence, least) then return end
  header.fence = least
  local count, gone = #fenced, fence_position(least) - 1
  if gone == 0 then return end
  spend(count)
  table.move(fenced, gone + 1, count, 1)
  for i = count, count - gone + 1, -1 do fenced[i] = nil end
  header.sessions, fenced_anew = count - gone, true
end

-- Fences one session. Where that is one more than may be kept, the fence rises above the lowest of them.
local function fence_session(session)
  load_fences()
  if math.ult(session, header.fence) then return end
  local position = fence_position(session)
  if fenced[position] == session then return end
  spend(#fenced - position + 1)
  table.insert(fenced, position, session)
  header.sessions, fenced_anew = #fenced, true
  -- The lowest is below others, so that there is a number above it.
  if #fenced > FENCED_SESSIONS_MAX then raise_fence(fenced[1] + 1) end
end

--@ guards
-- Orders strings bytewise: negative, 0 or positive.
local function compare(a, b)
  if a == b then return 0 end
  local low, high = 0, math.min(#a, #b)
  spend(high >> 5)
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
      fail(REFUSED, pack("<s2I4", header_text, index), found)
    end
    if tag == 0 then
      if header.flags & 1 == 0 then refuse("") end
    elseif tag == 1 then
      if header.flags & 1 == 1 then refuse("") end
    elseif tag == 2 or tag == 3 then
      local fork, from, length, version = take("<s2"), take("<i8"), take("<i8"), take("<i8")
      local limit, record = tag == 2 and version or version - 1, fork_of(fork)
      local over = floor_of(record, length) > limit
      -- Nothing in the object is newer than the object.
      if not over and header.version > limit then
        each_extent(record, from, from + length, function(extent)
          over = extent.version > limit
          return over
        end)
      end
      if over then refuse((range_answer(fork, from, length, 1 << 20))) end
      if tag == 3 and version > proposal then proposal = version end
    elseif tag == 4 then
      local key, check, operand = take("<s2"), take("<B"), take("<s4")
      local value = stored(key, check > 1)
      if not passes(check, operand, value and sub(value, head_bytes(value) + 1)) then
        refuse(value and pack("<Bs4", 1, value) or "\0")
      end
    elseif tag == 5 then
      if is_fenced(take("<i8")) then refuse("") end
    elseif tag == 7 then
      local key, version = take("<s2"), take("<i8")
      local entry = stored(key)
      local found = entry and version_of(entry) or 0
      if found ~= version then refuse(pack("<i8", found)) end
    elseif tag == 8 then
      local found, size = fork_of(take("<s2")).size or 0, take("<i8")
      if found ~= size then refuse(pack("<i8", found)) end
    else
      if take("<i8") ~= header.version then refuse("") end
    end
  end
  return proposal
end

--@ reads
local function unescaped_bytes(key)
  local _, escapes = key:gsub("\1", "")
  return #key - 1 - escapes
end

-- A page of keys or attributes, as far as limit and budget go: each entry is a key and what is stored under it, of
-- which `shown` tells how much: 0 nothing, 1 all, 2 enough to know its version.
local function key_page(after, before, prefix, limit, shown, first, budget)
  local entries, more, count, spent = {}, false, 32, 0
  while true do
    local keys, found, last = page(after, prefix, count)
    for i = 1, #keys do
      local key = keys[i]
      if before and key >= before then
        return entries, false, budget
      end
      local value, bytes = "", unescaped_bytes(key)
      if shown > 0 then
        value = found[key]:str()
        spend(#value >> 8)
        spent = spent + #value
        if shown == 2 then
          value = sub(value, 1, head_bytes(value))
        else
          bytes = bytes + math.max(#value - head_bytes(value), 0)
        end
      end
      if #entries == limit or bytes > budget and not (first and #entries == 0) then
        return entries, true, budget
      end
      budget = math.max(budget - bytes, 0)
      entries[#entries + 1] = pack("<s2s4", key, value)
    end
    if last or #keys == 0 then return entries, more, budget end
    after = keys[#keys]
    count = spent < 1 << 20 and 256 or 32
  end
end

local REPLY_BYTES_MAX = 96 << 20
local function answer_reads(count)
  local answers, budget, total = {}, 16 << 20, 0
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
          local value = values[keys[i]]:str()
          if fork_record(keys[i], value).size then
            if #entries == limit then
              more = true
              break
            end
            entries[#entries + 1] = pack("<s2s2", keys[i], value)
          end
        end
        if last or #keys == 0 then break end
        after = keys[#keys]
      end
      answer = pack("<I4B", #entries, more and 1 or 0) .. concat(entries)
    elseif tag == 4 then
      local value = stored(take("<s2"))
      if value then budget = math.max(budget - (#value - head_bytes(value)), 0) end
      answer = value and pack("<Bs4", 1, value) or "\0"
    elseif tag == 6 then
      answer = pack("<s4", packed_fences())
    else
      local after, bounded, before, prefix, limit, shown =
        take("<s2"), take("<B"), take("<s2"), take("<s2"), take("<I4"), take("<B")
      local entries, more
      entries, more, budget =
        key_page(after, bounded == 1 and before, prefix, limit, shown, index == 1, budget)
      answer = pack("<I4B", #entries, more and 1 or 0) .. concat(entries)
    end
    -- Single values are not cut, so many of them together may come to more than one answer should hold.
    total = total + #answer
    if total > REPLY_BYTES_MAX then fail(EXHAUSTED) end
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
-- Bytes to write, as places and strings, in order; and the forks that were touched: by name, and all in order, with
-- those whose names went to others.
local writes, forks, states = {}, {}, {}
local wipe, stems = false, 0

local function add_size(size, sign)
  header.size_high = header.size_high + sign * (size >> 32)
  header.size_low = header.size_low + sign * (size & 0xffffffff)
end

-- `list` holds the extents that were loaded or made, in order; `loaded` those that stand in the omap, by key; all of
-- the fork between `low` and `high` is loaded. `step` is the number of entries to load next.
local function adopt(name, state, high)
  state.name, state.list, state.loaded, state.low, state.high, state.step = name, {}, {}, 0, high, 8
  forks[name] = state
  states[#states + 1] = state
  return state
end

local function fork_state(name)
  local state = forks[name]
  if state then return state end
  if cleared then return adopt(name, { base = 0, stem = name }, OFFSET_MAX) end
  return adopt(name, fork_of(name), 0)
end

local function save_record(state)
  local flag, size = state.size and 1 or 0, state.size or 0
  sets["f" .. state.name] = sealed(pack("<BBi8i8s2", 2, flag, size, state.base, state.stem))
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
  save_record(state)
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

-- Loads the stored extents that share a byte with a range, and those that come with them. Ranges that lie far apart load
-- a few entries each; where one follows the other, more and more at a time. What was painted over was loaded before, so
-- an extent that is not known yet lies where nothing was painted.
local function load(state, from, to)
  if cleared then return end
  if from >= state.low and from <= state.high then
    if to <= state.high then return end
    from = state.high
    state.step = math.min(2 * state.step, 256)
  else
    state.low, state.high, state.step = from, from, 8
  end
  local list, prefix, before = state.list, prefix_of(state.stem), 0
  local after = prefix .. fmt("%016x", from)
  while state.high < to do
    local keys, values, last = page(after, prefix, state.step)
    for i = 1, #keys do
      local extent = extent_of(keys[i], values[keys[i]]:str(), state.base)
      if extent.start < before then corrupt(keys[i]) end
      before = extent.stop
      if not state.loaded[extent.key] then
        state.loaded[extent.key] = extent
        local position = position_of(list, extent.start)
        spend(#list - position + 1)
        table.insert(list, position, extent)
      end
    end
    if last or #keys == 0 then
      state.high = OFFSET_MAX
      return
    end
    state.high, after = math.max(state.high, before), keys[#keys]
    state.step = math.min(2 * state.step, 256)
  end
end

-- Lays extents, in order and apart from each other, over whatever is there; `last` is the end of a range that is
-- cleared from the first one's start on, for a gap where there are none. What they cover is loaded.
local function paint(state, from, to, layers)
  local list = state.list
  local first = position_of(list, from)
  local made, at, number = {}, first, 1
  -- Takes a stretch away from the extents in the list, which keep what lies before and after it.
  local function cut(a, b)
    while list[at] and list[at].stop <= a do
      made[#made + 1] = list[at]
      at = at + 1
    end
    while list[at] and list[at].start < b do
      local e = list[at]
      if e.start < a then
        made[#made + 1] = { start = e.start, stop = a, version = e.version, kind = e.kind, place = e.place }
      end
      if e.kind == 1 then header.live = header.live - (math.min(e.stop, b) - math.max(e.start, a)) end
      if e.stop <= b then
        at = at + 1
      else
        local place = e.kind == 1 and e.place + (b - e.start) or 0
        list[at] = { start = b, stop = e.stop, version = e.version, kind = e.kind, place = place }
      end
    end
  end
  if layers then
    for i = 1, #layers do
      cut(layers[i].start, layers[i].stop)
      made[#made + 1] = layers[i]
    end
  else
    cut(from, to)
  end
  spend(8 * (#made + at - first + 1))
  -- The common cases, appending and replacing one by one, move nothing.
  local gone, count = at - first, #list
  if gone ~= #made then
    spend(count - at + 1)
    table.move(list, at, count, first + #made)
  end
  for i = count, count - (gone - #made) + 1, -1 do list[i] = nil end
  for i = 1, #made do list[first + i - 1] = made[i] end
end

local function paint_hole(state, from, to)
  if from >= to then return end
  load(state, from, to)
  paint(state, from, to, { { start = from, stop = to, version = header.version, kind = 2, place = 0 } })
end

-- Paints pieces of data, which the client sends in ascending order: `count` offsets from `base` and lengths at
-- `table_at`, and the bytes at `at`.
local function paint_data(state, table_at, count, base)
  local layers, size = {}, state.size or 0
  spend(count << 6)
  for i = 0, count - 1 do
    local from, length = unpack("<i8I4", request, table_at + i * 12)
    from = base + from
    if length > 0 then
      local to, place = from + length, nil
      load(state, from, to)
      local old = state.list[position_of(state.list, from)]
      if old and old.kind == 1 and old.start <= from and to <= old.stop then
        -- Within one extent, the bytes are overwritten where they are: the call is atomic, no log is needed.
        place = old.place + (from - old.start)
      else
        -- Large pieces start at multiples of 4 KiB, where storage is fastest.
        if length >= 4096 then header.tail = (header.tail + 4095) & ~4095 end
        place = header.tail
        header.tail = place + length
      end
      layers[#layers + 1] = { start = from, stop = to, version = header.version, kind = 1, place = place }
      header.live = header.live + length
      writes[#writes + 1] = { place, sub(request, at, at + length - 1) }
      at = at + length
      if to > size then size = to end
    end
  end
  if #layers > 0 then paint(state, layers[1].start, nil, layers) end
  if size ~= state.size then resize(state, size) end
end

-- Extents that one call takes out of the index one by one; more of them are left to be swept.
local SWEPT_AT_ONCE = 256

-- Whether a fork has anything that a removal would change.
local function is_known(state)
  local known = state.size or state.base > 0 or #state.list > 0
  if not known and not cleared then each_extent(state, 0, OFFSET_MAX, function() known = true return true end) end
  return known
end

-- Takes all extents away from a fork in bounded time: one by one where they are few, else by giving the name a stem
-- under which there is nothing. What is left under the old one is garbage, which later calls sweep away.
local function vacate(state)
  local count = 0
  if not cleared then
    each_extent(state, 0, OFFSET_MAX, function()
      count = count + 1
      return count > SWEPT_AT_ONCE
    end)
  end
  if count <= SWEPT_AT_ONCE then
    load(state, 0, OFFSET_MAX)
    paint(state, 0, OFFSET_MAX)
    return state
  end
  sets["g" .. state.stem] = sealed("\2")
  header.flags = header.flags | 4
  stems = stems + 1
  -- No name is escaped to something that begins like this, and no two changes have the same version.
  return adopt(state.name, { base = 0, stem = fmt("\1\4%016x%04x", header.version, stems) }, OFFSET_MAX)
end

-- Sets the size of a fork: from it on, or from where the fork ended, it is a hole of this version. One that is a hole over
-- its whole needs no look at its extents, however many it had.
local function resize_fork(state, size)
  local before = state.size
  local from = math.min(before or 0, size)
  if from > 0 then
    paint_hole(state, from, OFFSET_MAX)
  else
    state = vacate(state)
    state.size, state.base = before, header.version
  end
  resize(state, size)
end

-- Removes a fork: it is a hole of this version over its whole.
local function remove_fork(name)
  local state = fork_state(name)
  if not is_known(state) then return end
  resize(state, nil)
  state = vacate(state)
  state.base = header.version
  save_record(state)
end

-- Makes the content of a fork that of another one, which is removed: they trade stems.
local function replace_fork(name, from_name)
  local from = fork_state(from_name)
  if not from.size then return end
  local to = fork_state(name)
  resize(to, nil)
  to = vacate(to)
  from.name, to.name = name, from_name
  forks[name], forks[from_name] = from, to
  from.base, to.base, to.size = header.version, header.version, nil
  save_record(from)
  save_record(to)
end

-- Sets or removes a key or an attribute, and counts it. `sum` is the checksum of the value.
local function set_value(key, sum, value)
  local known, is_key = stored(key) ~= nil, key:byte() == 107
  local field = is_key and "keys" or "attributes"
  if known ~= (value ~= nil) then header[field] = header[field] + (value and 1 or -1) end
  if value then
    local head = is_key and sealed(pack("<BI4i8", 2, sum, header.version)) or pack("<BI4", 1, sum)
    value = head .. value
  end
  sets[key] = value
  removals[key] = not value or nil
end

local function remove_object()
  -- Fences stay.
  if header.sessions > 0 then
    load_fences()
    fenced_anew = true
  end
  sets, removals, cleared, forks, states, writes, wipe = {}, {}, true, {}, {}, {}, true
  local h = header
  h.floor, h.flags = h.version, h.flags & ~5
  h.attributes, h.forks, h.tail, h.live, h.size_high, h.size_low, h.keys = 0, 0, 0, 0, 0, 0, 0
  h.unversioned = 0
end

local function change(count)
  for _ = 1, count do
    local tag = take("<B")
    header.flags = header.flags | 1
    if tag == 1 or tag == 11 then
      local state, pieces = fork_state(take("<s2")), take("<I4")
      local table_at, base = at, 0
      at = at + pieces * 12
      if tag == 11 then
        local _, length = unpack("<i8I4", request, table_at)
        base = state.size or 0
        if length > OFFSET_MAX - base then fail(TOO_FAR, pack("<i8I4", base, length)) end
      end
      paint_data(state, table_at, pieces, base)
    elseif tag == 2 then
      local state, from, length = fork_state(take("<s2")), take("<i8"), take("<i8")
      paint_hole(state, from, from + length)
    elseif tag == 3 then
      resize_fork(fork_state(take("<s2")), take("<i8"))
    elseif tag == 4 then
      remove_fork(take("<s2"))
    elseif tag == 5 then
      set_value(take("<s2"), take("<I4"), take("<s4"))
    elseif tag == 6 then
      set_value(take("<s2"))
    elseif tag == 7 then
      raise_fence(take("<i8"))
    elseif tag == 8 then
      remove_object()
    elseif tag == 9 then
      replace_fork(take("<s2"), take("<s2"))
    elseif tag == 10 then
      fence_session(take("<i8"))
    end
  end
end

-- Turns the touched forks' lists, and the fences, into values to set and keys to remove.
local function settle()
  if fenced_anew then
    if #fenced > 0 then sets[FENCES] = packed_fences() else removals[FENCES] = true end
  end
  for _, state in ipairs(states) do
    local prefix, kept = prefix_of(state.stem), {}
    spend(32 * #state.list)
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
  objclass.setxattr("nacre", buffer(packed_header()))
  return changed()
end

--@ conclude
-- Makes a number of changes of the request, from where it was read to, as the object's next version.
local function conclude(count, marked, proposal)
  if header.version == math.maxinteger - 1 then error({ code = -34 }, 0) end
  header.flags = header.flags & 4 | (header.flags & 1) << 1 | header.flags & 1
  header.version = math.max(header.version + 1, origin + 1, proposal)
  if marked == 0 and header.flags & 1 == 0 then fail(UNINDEXED) end
  change(count)
  if marked == 0 and header.flags & 1 == 0 then fail(UNINDEXED) end
  if header.attributes > 256 then fail(CROWDED, pack("<I4", header.attributes)) end
  settle()
  return commit()
end

--@ apply
-- One transaction. `expected` is the version at which the client holds the answers to the reads, or -1. Without a mark in the
-- index of names, it neither makes nor removes the object.
local function apply()
  local marked, repeated = begin()
  if repeated then return changed() end
  local expected, proposal = take("<i8"), 0
  local guards = take("<I4")
  if guards > 0 then proposal = check_guards(guards) end
  local reads = take("<I4")
  if reads > 0 and expected ~= header.version then
    local answers = answer_reads(reads)
    local text = pack("<Bs2", ANSWERED, header_text) .. answers
    if take("<I4") > 0 then error({ text }, 0) end
    return text
  end
  if reads > 0 then skip_reads(reads) end
  local count = take("<I4")
  if count == 0 then return pack("<Bs2", ANSWERED, header_text) end
  return conclude(count, marked, proposal)
end

--@ sized
-- One transaction that reads the size of a fork and appends: the size comes with the answer to the change, within 32 bytes, so that
-- one call is enough, whatever other clients do. `added` is the number of bytes that it appends to that fork: a call that was made
-- already finds the fork as it left it.
local function apply_sized()
  local marked, repeated = begin()
  local fork, added = take("<s2"), take("<i8")
  local size, floor = fork_of(fork).size or 0, header.floor
  if repeated then return changed() .. pack("<i8I7", size - added, floor) end
  -- There is no room for an eighth byte of the floor.
  if floor >> 56 > 0 then fail(EXHAUSTED) end
  local guards, proposal = take("<I4"), 0
  if guards > 0 then proposal = check_guards(guards) end
  return conclude(take("<I4"), marked, proposal) .. pack("<i8I7", size, floor)
end

--@ compact
-- Moves the live bytes together, where that makes the byte stream shorter by as much as is asked. No version changes.
local function compact()
  load_header()
  token = take("c16")
  local least = take("<I4")
  if header.tail - header.live < least then return "" end
  local moves, tail, after = {}, 0, "x"
  while true do
    local keys, values, last = page(after, "x", 256)
    for i = 1, #keys do
      local extent = extent_of(keys[i], values[keys[i]]:str(), 0)
      if extent.kind == 1 then
        local length = extent.stop - extent.start
        extent.target = length >= 4096 and (tail + 4095) & ~4095 or tail
        tail = extent.target + length
        moves[#moves + 1] = extent
      end
    end
    if last or #keys == 0 then break end
    after = keys[#keys]
  end
  if header.tail - tail < least then return "" end
  local pieces, filled = bufferlist.new(), 0
  for i = 1, #moves do
    local extent = moves[i]
    local length = extent.stop - extent.start
    if extent.target > filled then pieces:append(("\0"):rep(extent.target - filled)) end
    spend(length >> 8)
    local data = objclass.read(extent.place, length):str()
    if #data ~= length then corrupt(extent.key .. " (its bytes)") end
    pieces:append(data)
    if extent.place ~= extent.target then
      sets[extent.key] = sealed(pack("<i8i8I4BBI2", extent.version, extent.start, extent.target, 1, 1, 0))
    end
    filled = extent.target + length
  end
  header.tail = tail
  objclass.write_full(pieces)
  if next(sets) then objclass.map_set_vals(sets) end
  objclass.setxattr("nacre", buffer(packed_header()))
  return changed()
end

--@ sweep
-- Takes out of the index what forks left behind that were removed or replaced, up to a number of extents. No version
-- changes.
local function sweep()
  load_header()
  token = take("c16")
  local left = take("<I4")
  if header.flags & 4 == 0 then return "" end
  local stems, values, last = page("f\255", "g", 64)
  for i = 1, #stems do
    local key = stems[i]
    if #values[key]:str() ~= 5 then corrupt(key) end
    local prefix, complete = prefix_of(sub(key, 2)), false
    local after = prefix
    while left > 0 and not complete do
      local keys, extents, done = page(after, prefix, math.min(left, 256))
      for j = 1, #keys do
        local extent = extent_of(keys[j], extents[keys[j]]:str(), 0)
        if extent.kind == 1 then header.live = header.live - (extent.stop - extent.start) end
        removals[keys[j]] = true
      end
      left, complete, after = left - #keys, done or #keys == 0, keys[#keys]
    end
    if complete then removals[key] = true else last = false end
  end
  if last then header.flags = header.flags & ~4 end
  for key in pairs(removals) do objclass.map_remove_key(key) end
  objclass.setxattr("nacre", buffer(packed_header()))
  return changed()
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
