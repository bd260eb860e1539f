-- A version that the users of an object agree on: a number that they raise, set and check.
local NAME = "version"

local function version()
  local ok, found, text = pcall(objclass.getxattr, NAME)
  if ok then return math.tointeger(tonumber(found:str())) end
  -- There is no object, or it has no version.
  if found ~= -objclass.ENOENT and found ~= -61 then error(text, 0) end
  return 0
end

local function keep(number, output)
  local buffer = bufferlist.new()
  buffer:append(string.format("%d", number))
  objclass.setxattr(NAME, buffer)
  output:append(string.format("%d", number))
end

local function number(text)
  local number = text:match("^%d+$") and math.tointeger(tonumber(text))
  return number or nil
end

local holds = {
  eq = function(a, b) return a == b end,
  ne = function(a, b) return a ~= b end,
  lt = function(a, b) return a < b end,
  le = function(a, b) return a <= b end,
  gt = function(a, b) return a > b end,
  ge = function(a, b) return a >= b end,
}

function read(input, output)
  output:append(string.format("%d", version()))
end

function set(input, output)
  local wanted = number(input:str())
  if wanted == nil then return -objclass.EINVAL end
  keep(wanted, output)
end

function inc(input, output)
  local expected, text, now = nil, input:str(), version()
  if text ~= "" then
    expected = number(text)
    if expected == nil then return -objclass.EINVAL end
  end
  if expected ~= nil and expected ~= now then return -objclass.EBUSY end
  keep(now + 1, output)
end

function check(input, output)
  local name, text = input:str():match("^(%l%l) (%d+)$")
  local holds, wanted = holds[name], text and number(text)
  if holds == nil or wanted == nil then return -objclass.EINVAL end
  local now = version()
  output:append(string.format("%d", now))
  if not holds(now, wanted) then return -objclass.EBUSY end
end

objclass.register(read, { writes = false, about = "gives the version, 0 at first", output = "the version" })
objclass.register(set, { about = "replaces the version", input = "the version", output = "the version" })
objclass.register(inc, { about = "raises the version by one", input = "nothing, or the version that it must have", output = "the new version" })
objclass.register(check, { writes = false, about = "fails with EBUSY unless a comparison holds", input = "eq, ne, lt, le, gt or ge, and a number", output = "the version" })

--> read
--= 0
--> inc
--= 1
--> inc 0
--! EBUSY
--> inc 1
--= 2
--> set 10
--= 10
--> set -1
--! EINVAL
--> check eq 10
--= 10
--> check lt 10
--! EBUSY
--> check ge 3
--= 10
--> check is 3
--! EINVAL
--> read
--= 10
