-- A log of entries with times. A class has no clock: the time comes from the caller, in microseconds, say.
-- Arguments and results of several values are packed (nacre.pack).
local STATE, PREFIX = "log", "log/"

-- A marker names an entry: its time and its number, so that markers are in the order of entries.
local function marker(time, number)
  return string.format("%016x%016x", time, number)
end

local function last_number()
  local ok, found, text = pcall(objclass.map_get_val, STATE)
  if ok then return (string.unpack("<i8", found:str())) end
  if found ~= -objclass.ENOENT then error(text, 0) end
  return 0
end

local function check_time(time)
  if math.type(time) ~= "integer" or time < 0 then nacre.fail(objclass.EINVAL, "a time is an integer, and not negative") end
  return time
end

function add(input, output)
  local time, text = nacre.unpack(input)
  check_time(time)
  if type(text) ~= "string" then return -objclass.EINVAL end
  local number = last_number() + 1
  local name = marker(time, number)
  local value, state = bufferlist.new(), bufferlist.new()
  value:append(text)
  state:append(string.pack("<i8", number))
  objclass.map_set_val(PREFIX .. name, value)
  objclass.map_set_val(STATE, state)
  output:append(name)
end

-- Goes through the entries after a marker and before a time, in order, and stops when `f` returns false.
local function each(after, before, max, f)
  local ok, found, text = pcall(objclass.map_get_vals, PREFIX .. after, PREFIX, max)
  if not ok then
    if found == -objclass.ENOENT then return end
    error(text, 0)
  end
  local names = {}
  for name in pairs(found) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local name, value = name:sub(#PREFIX + 1), found[name]
    if before and tonumber(name:sub(1, 16), 16) >= before then return end
    f(name, value)
  end
end

function list(input, output)
  local from, before, max, after = nacre.unpack(input)
  max = max or 100
  if math.type(max) ~= "integer" or max < 1 or max > 1000 then return -objclass.EINVAL end
  -- Every marker of an earlier time is less than this one, which no entry has.
  local start = after or marker(check_time(from or 0), 0)
  each(start, before and check_time(before), max, function(name, value)
    output:append(nacre.pack({ name, tonumber(name:sub(1, 16), 16), value:str() }))
  end)
end

function trim(input, output)
  local before = check_time((nacre.unpack(input)))
  local count = 0
  each("", before, 1000, function(name)
    objclass.map_remove_key(PREFIX .. name)
    count = count + 1
  end)
  output:append(nacre.pack(count))
end

objclass.register(add, { about = "adds an entry", input = "packed: time, text", output = "its marker" })
objclass.register(list, { writes = false, about = "gives entries in the order of their times", input = "packed: from, before, maximum (100), after this marker", output = "packed: [marker, time, text] for each" })
objclass.register(trim, { about = "removes entries before a time, up to 1,000", input = "packed: the time", output = "packed: how many" })

--> list []
--> add [1000, "first"]
--= 00000000000003e80000000000000001
--> add [3000, "third"]
--= 0000000000000bb80000000000000002
--> add [2000, "second"]
--= 00000000000007d00000000000000003
--> add [2000, "second too"]
--= 00000000000007d00000000000000004
--> list [0]
--= [["00000000000003e80000000000000001", 1000, "first"], ["00000000000007d00000000000000003", 2000, "second"], ["00000000000007d00000000000000004", 2000, "second too"], ["0000000000000bb80000000000000002", 3000, "third"]]
--> list [1500, 3000, 1]
--= [["00000000000007d00000000000000003", 2000, "second"]]
--> list [0, null, 1, "00000000000007d00000000000000003"]
--= [["00000000000007d00000000000000004", 2000, "second too"]]
--> add [-1, "x"]
--! EINVAL
--> add ["now", "x"]
--! EINVAL
--> list [0, 10, 100000]
--! EINVAL
--> trim [2000]
--= [1]
--> trim [2001]
--= [2]
--> list [0]
--= [["0000000000000bb80000000000000002", 3000, "third"]]
