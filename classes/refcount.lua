-- References to an object, by tags. When the last one is put back, the object is removed.
local PREFIX = "refcount/"

local function key(input)
  local tag = input:str()
  if tag == "" then error("a reference needs a tag", 0) end
  return PREFIX .. tag
end

local function is_held(key)
  local ok, found, text = pcall(objclass.map_get_val, key)
  if not ok and found ~= -objclass.ENOENT then error(text, 0) end
  return ok
end

function get(input)
  local key = key(input)
  -- To take what one has already is no error: the first attempt's reply may have been lost.
  if not is_held(key) then objclass.map_set_val(key, bufferlist.new()) end
end

function put(input)
  local key = key(input)
  if not is_held(key) then return -objclass.ENOENT end
  local held = 0
  for _ in pairs(objclass.map_get_vals("", PREFIX, 2)) do held = held + 1 end
  if held > 1 then
    objclass.map_remove_key(key)
  else
    objclass.remove()
  end
end

function list(input, output)
  local ok, found, text = pcall(objclass.map_get_vals, "", PREFIX, 1000)
  if not ok then
    if found ~= -objclass.ENOENT then error(text, 0) end
    return
  end
  local tags = {}
  for name in pairs(found) do tags[#tags + 1] = name:sub(#PREFIX + 1) end
  -- The order of a table is not the same everywhere.
  table.sort(tags)
  output:append(table.concat(tags, "\n"))
end

objclass.register(get, { about = "takes a reference", input = "the tag" })
objclass.register(put, { about = "puts a reference back; the last one removes the object", input = "the tag" })
objclass.register(list, { writes = false, about = "gives the tags", output = "up to 1,000 tags, one a line" })

--> list
--> put a
--! ENOENT
--> get a
--> get b
--> get a
--> list
--= a
--= b
--> put a
--> put a
--! ENOENT
--> list
--= b
--> put b
--> list
--> get
--! EIO
