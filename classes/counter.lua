-- A counter: a 64-bit integer in an object. Numbers are decimal text.
local KEY = "counter"
-- Looked up once, and not in each call.
local get_key, set_key, format = nacre.get, nacre.set, string.format
local tonumber, tointeger = tonumber, math.tointeger

local function value()
  local text = get_key(KEY)
  if text == nil then return 0 end
  return tointeger(tonumber(text))
end

local function number(input, default)
  local text = input:str()
  if text == "" then return default end
  -- Fractions, and what does not fit into 64 bits, are no amounts.
  if not text:match("^[+-]?%d+$") then return nil end
  return tointeger(tonumber(text))
end

local function store(value, output)
  local text = format("%d", value)
  set_key(KEY, text)
  output:append(text)
end

function get(input, output)
  output:append(format("%d", value()))
end

function add(input, output)
  local amount, old = number(input, 1), value()
  if amount == nil then return -objclass.EINVAL end
  local new = old + amount
  -- Integers of Lua wrap around; a counter does not.
  if amount > 0 and new < old or amount < 0 and new > old then return -objclass.ERANGE end
  store(new, output)
end

function set(input, output)
  local new = number(input, nil)
  if new == nil then return -objclass.EINVAL end
  store(new, output)
end

objclass.register(get, { writes = false, about = "gives the value, 0 at first", output = "the value" })
objclass.register(add, { about = "adds to the value", input = "the amount, 1 if it is empty", output = "the new value" })
objclass.register(set, { about = "replaces the value", input = "the value", output = "the value" })

--> get
--= 0
--> add
--= 1
--> add 41
--= 42
--> add -50
--= -8
--> add 1.5
--! EINVAL
--> add 99999999999999999999
--! EINVAL
--> get
--= -8
--> set 9223372036854775807
--= 9223372036854775807
--> add 1
--! ERANGE
--> add -1
--= 9223372036854775806
--> set
--! EINVAL
