  -- Methods of classes in an OSD, continued from osd_interface.lua: the call of the method, and what becomes of its result and
  -- its changes.

  local function logged()
    local parts = { pack("<I2", #logs) }
    for i = 1, #logs do parts[i + 1] = pack("<s4", logs[i]) end
    return joined(parts)
  end

  -- The answer of a method that failed.
  local function failed(number, text)
    return pack("<BI4i8s4s4", FAILED, number, units - left, text, raw_str(output)) .. logged()
  end

  local G = setmetatable({
    setmetatable = set_metatable, string = setmetatable({ pack = bounded_pack }, { __index = string }),
  }, { __index = _G })
  local given = raw_new()
  raw_append(given, input)
  local ok, result = pcall(function()
    local invoke = prelude(count, join, N, G, CONSTANTS)
    script_strings, script_buffers = string_meta.__index, buffer_meta.__index
    return invoke(class, name, given, output, N.chunk(class))
  end)
  to_host()
  -- What is answered without an error and changes nothing is a read, of which the OSD keeps no record.
  if type(fatal) == "table" and fatal[1] and byte(fatal[1]) >= FINISHED then return fatal[1] end
  if fatal ~= nil then error(fatal, 0) end
  if not ok then
    local kind = type(result)
    local text = (kind == "string" or kind == "number") and sub(result, 1, 1024) or "an error that is a " .. kind
    return failed(raised or EIO, text)
  end
  local kind = type(result)
  local value = (kind == "number" or kind == "string") and tonumber(result)
  value = value and integer(value)
  if not value then return failed(EIO, "the method returned a " .. kind .. ", where an integer is expected") end
  if value > 0x7fffffff or value < -0x80000000 then
    return failed(EIO, "the method returned " .. value .. ", which is not a 32-bit integer")
  end
  if value < 0 then return failed(value == -0x80000000 and EIO or -value, "") end

  local text = raw_str(output)
  local function report(status)
    return pack("<Bi8Bi4i8s4", status, header.version, existed and 1 or 0, value, units - left, text) .. logged()
  end
  if #changes == 0 then return report(FINISHED) end
  if has_session == 1 and is_fenced(session) then return pack("<Bi8", FENCED, header.fence) end
  -- The answer to a change has 32 bytes, of which the change itself takes 17. A longer one goes first, and changes
  -- nothing; the client then wants the same again, of the same version.
  local short = value == 0 and "\0" .. text or pack("<Bi4", 1, value) .. text
  if expected == header.version then
    short = ""
  elseif #short > 15 or #logs > 0 then
    return report(PREPARED)
  end
  -- No earlier text of a class may change what a later one has left. This comes before the other changes, which may
  -- remove the object.
  local raises = false
  for of, version in pairs(used) do
    if version > (accepted[of] or 0) then accepted[of], raises = version, true end
  end
  if raises then
    local lines = {}
    for of, version in pairs(accepted) do lines[#lines + 1] = fmt("%s %d\n", of, version) end
    sorted(lines)
    local list = joined(lines)
    table.insert(changes, 1, pack("<Bs2I4s4", 5, "a" .. ACCEPTED, checksum(list), list))
  end
  request, at = joined(changes), 1
  return conclude(#changes, marked, 0) .. short
end
