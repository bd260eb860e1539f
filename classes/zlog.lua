-- An object of a shared log: positions are written once, read, filled and trimmed, each request under the epoch that the object was
-- sealed with last. After CORFU, as the paper has it (Malacology, section 5.2.2). Positions are those in the object, its places.
--
-- The format is that of the library (docs/zlog.md), so methods and the library's own transactions may be used on the same object.
-- Arguments and results of several values are packed (nacre.pack), but for seal, whose result fits into what a stock OSD returns.
--
-- A write depends on the epoch and its own place, and on nothing that another write changes. Where the end is, is the size of the index:
-- seal and max read it, and no write keeps a record of it. So in an OSD, which runs one method of an object after the other, writes at
-- different places never fail for each other's sake.
local EPOCH, INDEX, DATA = "epoch", "index", "data"
local INDEX_BYTES, SLOT_BYTES, HEAD_BYTES = 16, 1 << 21, 8
local PLACE_MAX, ENTRY_BYTES_MAX, TAGS_MAX, BATCH_MAX = (1 << 42) - 2, 1 << 20, 16, 4096
local ENTRY, FILLED, TRIMMED = 1, 2, 3

local function epoch()
  local value = nacre.attribute(EPOCH)
  return value and (string.unpack(">i8", value))
end

-- A request of an epoch that is not the object's comes from a client that missed a recovery, or is ahead of one.
local function check(wanted, place)
  local found = epoch()
  if not found then nacre.fail(objclass.ENOENT, "there is no such object of a log") end
  if wanted ~= found then nacre.fail(objclass.ESTALE, "the object is at epoch " .. found) end
  if place and (math.type(place) ~= "integer" or place < 0 or place > PLACE_MAX) then
    nacre.fail(objclass.EINVAL, "a place is an integer from 0 on")
  end
end

local function mark(place, state)
  nacre.write(place * INDEX_BYTES, string.pack("<I1I1I2I4I4I4", state, 0, 0, 0, 0, 0), INDEX)
end

-- What the index has for a place: its state, and where the record is. 0 is nothing, unless the place was zeroed with all before it.
local function look(place)
  local offset = place * INDEX_BYTES
  local bytes = nacre.read(offset, INDEX_BYTES, INDEX)
  local _, version = nacre.extents(offset, INDEX_BYTES, INDEX)
  if version == 0 then return 0 end
  if #bytes < INDEX_BYTES then return TRIMMED end
  local state, _, distance, begin, length = string.unpack("<I1I1I2I4I4I4", bytes)
  if state == 0 then return TRIMMED end
  return state, (place - distance) * SLOT_BYTES + begin, length
end

local function must_be_free(place)
  if look(place) ~= 0 then nacre.fail(objclass.EEXIST, "place " .. place .. " was written, filled or trimmed before") end
end

-- Three bits for each tag. A reader of a tag passes over entries that lack one of its bits.
local function signature(tags)
  local bits = 0
  for _, tag in ipairs(tags) do
    local hash = 0xcbf29ce484222325
    for at = 1, #tag do hash = (hash ~ tag:byte(at)) * 0x100000001b3 end
    hash = hash ~ (hash >> 29)
    for shift = 32, 42, 5 do bits = bits | 1 << (hash >> shift & 31) end
  end
  return bits
end

local function record(entry, tags)
  if type(entry) ~= "string" or #entry < 1 or #entry > ENTRY_BYTES_MAX or type(tags) ~= "table" or #tags > TAGS_MAX then
    nacre.fail(objclass.EINVAL, "an entry has 1 to 1,048,576 bytes, and at most 16 tags")
  end
  local parts = { string.char(#tags) }
  for _, tag in ipairs(tags) do
    if type(tag) ~= "string" or #tag < 1 or #tag > 255 then nacre.fail(objclass.EINVAL, "a tag has 1 to 255 bytes") end
    parts[#parts + 1] = string.char(#tag) .. tag
  end
  parts[#parts + 1] = entry
  return table.concat(parts)
end

function create(input, output)
  local wanted = nacre.unpack(input)
  if math.type(wanted) ~= "integer" or wanted < 1 then return -objclass.EINVAL end
  objclass.create(true)
  nacre.set_attribute(EPOCH, string.pack(">i8", wanted))
end

function write(input, output)
  local wanted, place, entry, tags, writer = nacre.unpack(input)
  check(wanted, place)
  must_be_free(place)
  tags = tags or {}
  local bytes = record(entry, tags)
  local index = string.pack("<I1I1I2I4I4I4", ENTRY, 0, 0, HEAD_BYTES, #bytes, signature(tags))
  nacre.write(place * INDEX_BYTES, index, INDEX)
  nacre.write(place * SLOT_BYTES, string.pack("<i8", writer or 0) .. bytes, DATA)
end

function read(input, output)
  local wanted, place = nacre.unpack(input)
  check(wanted, place)
  local state, offset, length = look(place)
  if state == 0 then
    output:append(nacre.pack("unwritten"))
  elseif state == FILLED then
    output:append(nacre.pack("filled"))
  elseif state == TRIMMED then
    output:append(nacre.pack("trimmed"))
  else
    local bytes = nacre.read(offset, length, DATA)
    local tags, at = {}, 2
    for number = 1, bytes:byte(1) do
      tags[number], at = string.unpack("s1", bytes, at)
    end
    output:append(nacre.pack("entry", bytes:sub(at), tags))
  end
end

function fill(input, output)
  local wanted, place = nacre.unpack(input)
  check(wanted, place)
  local state = look(place)
  if state == FILLED then return end
  if state ~= 0 then nacre.fail(objclass.EEXIST, "place " .. place .. " was written or trimmed before") end
  mark(place, FILLED)
end

function trim(input, output)
  local wanted, place = nacre.unpack(input)
  check(wanted, place)
  local state, offset, length = look(place)
  if state == TRIMMED then return end
  if state == ENTRY then nacre.zero(offset, length, DATA) end
  mark(place, TRIMMED)
end

function trim_prefix(input, output)
  local wanted, before = nacre.unpack(input)
  check(wanted, before)
  if before == 0 then return end
  -- A packet that begins before the place may hold entries that stay.
  local keep, bytes = before * SLOT_BYTES, nacre.read(before * INDEX_BYTES, BATCH_MAX * INDEX_BYTES, INDEX)
  for at = 0, #bytes // INDEX_BYTES - 1 do
    local state, _, distance, begin = string.unpack("<I1I1I2I4", bytes, at * INDEX_BYTES + 1)
    if state == ENTRY then
      keep = math.min(keep, (before + at - distance) * SLOT_BYTES + begin)
      break
    end
  end
  nacre.zero(0, keep, DATA)
  nacre.zero(0, before * INDEX_BYTES, INDEX)
  -- The last one is marked, so that the greatest place is found by whoever seals the object.
  mark(before - 1, TRIMMED)
end

local function finish()
  return (nacre.size(INDEX) or 0) // INDEX_BYTES
end

function seal(input, output)
  local wanted = nacre.unpack(input)
  local found = epoch()
  if not found then return -objclass.ENOENT end
  if math.type(wanted) ~= "integer" then return -objclass.EINVAL end
  if wanted <= found then nacre.fail(objclass.ESTALE, "the object is at epoch " .. found) end
  nacre.set_attribute(EPOCH, string.pack(">i8", wanted))
  output:append(string.format("%d", finish()))
end

function max(input, output)
  check((nacre.unpack(input)))
  output:append(string.format("%d", finish()))
end

objclass.register(create, { about = "makes the object at an epoch", input = "packed: the epoch" })
objclass.register(write, { about = "writes an entry at a place, once", input = "packed: epoch, place, entry, tags, number of the writer" })
objclass.register(read, { writes = false, about = "reads a place", input = "packed: epoch, place", output = "packed: entry, filled, trimmed or unwritten; of an entry its bytes and tags" })
objclass.register(fill, { about = "fills a place, so that nothing will be written there", input = "packed: epoch, place" })
objclass.register(trim, { about = "removes the entry at a place", input = "packed: epoch, place" })
objclass.register(trim_prefix, { about = "removes all entries before a place", input = "packed: epoch, place" })
objclass.register(seal, { about = "installs a greater epoch, and says where the object ends", input = "packed: the epoch", output = "one more than the greatest place that was written, filled or trimmed" })
objclass.register(max, { writes = false, about = "says where the object ends", input = "packed: the epoch", output = "one more than the greatest place that was written, filled or trimmed" })

--> write [1, 0, "too early"]
--! ENOENT
--> create [1]
--> create [1]
--! EEXIST
--> max [1]
--= 0
--> write [1, 0, "first"]
--> write [1, 0, "again"]
--! EEXIST
--> write [1, 3, "fourth", ["red", "blue"]]
--> read [1, 0]
--= ["entry", "first", []]
--> read [1, 3]
--= ["entry", "fourth", ["red", "blue"]]
--> read [1, 1]
--= ["unwritten"]
--> max [1]
--= 4
--> fill [1, 1]
--> fill [1, 1]
--> fill [1, 0]
--! EEXIST
--> write [1, 1, "late"]
--! EEXIST
--> read [1, 1]
--= ["filled"]
--> seal [3]
--= 4
--> seal [2]
--! ESTALE
--> write [1, 4, "of the old epoch"]
--! ESTALE
--> read [1, 0]
--! ESTALE
--> write [3, 4, ""]
--! EINVAL
--> write [3, -1, "x"]
--! EINVAL
--> write [3, 5, "sixth"]
--> trim [3, 3]
--> read [3, 3]
--= ["trimmed"]
--> write [3, 3, "again"]
--! EEXIST
--> trim_prefix [3, 5]
--> read [3, 0]
--= ["trimmed"]
--> read [3, 4]
--= ["trimmed"]
--> write [3, 2, "before"]
--! EEXIST
--> read [3, 5]
--= ["entry", "sixth", []]
--> trim_prefix [3, 9]
--> seal [4]
--= 9
