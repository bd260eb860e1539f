-- An index over the object's bytes: records are appended to the byte stream, and found by their keys.
--
-- This is the example of the paper (Malacology, section 4.2): an index that many clients share, over content in a byte
-- stream, with a guard that protects it from lost updates. Bytes and index change together or not at all.
-- Arguments and results of several values are packed (nacre.pack).
local PREFIX = "index/"

local function entry(key)
  local ok, found, text = pcall(objclass.map_get_val, PREFIX .. key)
  if ok then return string.unpack("<i8i8i8", found:str()) end
  if found ~= -objclass.ENOENT then error(text, 0) end
  return nil, nil, 0
end

local function size()
  local ok, found, text = pcall(objclass.stat)
  if ok then return found end
  if found ~= -objclass.ENOENT then error(text, 0) end
  return 0
end

local function check_key(key)
  if type(key) ~= "string" or key == "" or #key > 1000 then
    nacre.fail(objclass.EINVAL, "a key is a string of 1 to 1,000 bytes")
  end
  return key
end

-- The record goes to the end of the bytes, and the entry's generation rises, so that a change cannot pass unnoticed.
local function append(key, record, generation, output)
  local offset, data, value = size(), bufferlist.new(), bufferlist.new()
  data:append(record)
  value:append(string.pack("<i8i8i8", offset, #record, generation))
  objclass.write(offset, #record, data)
  objclass.map_set_val(PREFIX .. key, value)
  output:append(nacre.pack(generation))
end

function put(input, output)
  local key, record = nacre.unpack(input)
  if type(record) ~= "string" then return -objclass.EINVAL end
  local _, _, generation = entry(check_key(key))
  append(key, record, generation + 1, output)
end

function replace(input, output)
  local key, expected, record = nacre.unpack(input)
  if type(record) ~= "string" or math.type(expected) ~= "integer" then return -objclass.EINVAL end
  local _, _, generation = entry(check_key(key))
  if generation ~= expected then
    output:append(nacre.pack(generation))
    return -objclass.EBUSY
  end
  append(key, record, generation + 1, output)
end

function get(input, output)
  local offset, length, generation = entry(check_key((nacre.unpack(input))))
  if offset == nil then return -objclass.ENOENT end
  -- A length of zero would ask for all bytes.
  local record = length > 0 and objclass.read(offset, length):str() or ""
  output:append(nacre.pack(record, generation))
end

function list(input, output)
  local prefix, after, max = nacre.unpack(input)
  max = max or 100
  if math.type(max) ~= "integer" or max < 1 or max > 1000 then return -objclass.EINVAL end
  local start = after and PREFIX .. check_key(after) or ""
  local ok, found, text = pcall(objclass.map_get_vals, start, PREFIX .. (prefix or ""), max)
  if not ok then
    if found == -objclass.ENOENT then return end
    error(text, 0)
  end
  local names = {}
  for name in pairs(found) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local offset, length, generation = string.unpack("<i8i8i8", found[name]:str())
    output:append(nacre.pack({ name:sub(#PREFIX + 1), offset, length, generation }))
  end
end

objclass.register(put, { about = "appends a record, and points its key to it", input = "packed: key, record", output = "packed: the key's generation" })
objclass.register(replace, { about = "the same if the key has this generation (0: if it is new); else EBUSY", input = "packed: key, generation, record", output = "packed: the key's generation" })
objclass.register(get, { writes = false, about = "gives a record", input = "packed: key", output = "packed: record, generation" })
objclass.register(list, { writes = false, about = "gives entries in the order of their keys", input = "packed: prefix, after this key, maximum (100)", output = "packed: [key, offset, length, generation] for each" })

--> get ["a"]
--! ENOENT
--> list []
--> put ["a", "first record"]
--= [1]
--> put ["b", "second"]
--= [1]
--> get ["a"]
--= ["first record", 1]
--> replace ["a", 0, "lost update"]
--! EBUSY
--> replace ["a", 1, "third"]
--= [2]
--> get ["a"]
--= ["third", 2]
--> get ["b"]
--= ["second", 1]
--> replace ["c", 0, ""]
--= [1]
--> get ["c"]
--= ["", 1]
--> list []
--= [["a", 18, 5, 2], ["b", 12, 6, 1], ["c", 23, 0, 1]]
--> list ["", "a", 1]
--= [["b", 12, 6, 1]]
--> put ["", "x"]
--! EINVAL
--> put ["x"]
--! EINVAL
