-- A queue of entries, first in, first out. Entries are bytes; each has a number, and numbers ascend without gaps.
local STATE, ENTRY = "queue", "queue/%016x"

-- The number of the first entry, and the number that the next one gets.
local function state()
  local ok, found, text = pcall(objclass.map_get_val, STATE)
  if ok then return string.unpack("<i8i8", found:str()) end
  if found ~= -objclass.ENOENT then error(text, 0) end
  return 1, 1
end

local function keep(first, following)
  local buffer = bufferlist.new()
  buffer:append(string.pack("<i8i8", first, following))
  objclass.map_set_val(STATE, buffer)
end

function push(input, output)
  local first, following = state()
  objclass.map_set_val(ENTRY:format(following), input)
  keep(first, following + 1)
  output:append(string.format("%d", following))
end

function peek(input, output)
  local first, following = state()
  if first == following then return -objclass.ENOENT end
  output:append(objclass.map_get_val(ENTRY:format(first)):str())
end

function pop(input, output)
  local first, following = state()
  if first == following then return -objclass.ENOENT end
  local key = ENTRY:format(first)
  output:append(objclass.map_get_val(key):str())
  objclass.map_remove_key(key)
  keep(first + 1, following)
end

function drop(input, output)
  local first, following = state()
  if first == following then return -objclass.ENOENT end
  -- Whoever works on an entry before it drops it may find that another one did so first.
  if math.tointeger(tonumber(input:str())) ~= first then return -objclass.EBUSY end
  objclass.map_remove_key(ENTRY:format(first))
  keep(first + 1, following)
end

function span(input, output)
  local first, following = state()
  output:append(string.format("%d %d", first, following - first))
end

objclass.register(push, { about = "adds an entry at the end", input = "the entry", output = "its number" })
objclass.register(peek, { writes = false, about = "gives the first entry", output = "the entry" })
objclass.register(pop, { about = "removes the first entry", output = "the entry" })
objclass.register(drop, { about = "removes the first entry if it has this number", input = "the number" })
objclass.register(span, { writes = false, about = "counts", output = "the first entry's number, and how many there are" })

--> pop
--! ENOENT
--> span
--= 1 0
--> push one
--= 1
--> push two
--= 2
--> push
--= 3
--> peek
--= one
--> pop
--= one
--> drop 1
--! EBUSY
--> drop 2
--> span
--= 3 1
--> pop
--> peek
--! ENOENT
--> push again
--= 4
