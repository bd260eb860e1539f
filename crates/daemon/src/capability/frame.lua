
-- The frame around a script: it is put behind the script's text, whose lines keep their numbers that way.
if type(on_request) ~= "function" and type(on_release) ~= "function" then
  error("it defines neither on_request(state) nor on_release(state)", 0)
end

function __decide(input, output)
  local bytes = input:str()
  local is_release, lease_us, count, at = string.unpack("<i8i8i8", bytes)

  -- Returns the next one of the input. Its time has another name for a holder than for one that waits.
  local function party(time)
    local one, round_trip = {}, 0
    one.session, one.order, one[time], one.requests, one.grants, one.operations, round_trip, at =
      string.unpack("<i8i8i8i8i8i8i8", bytes, at)
    one.round_trip = round_trip ~= 0
    return one
  end

  local state = { lease_us = lease_us, holder = party("held_us"), waiters = {} }
  for number = 1, count do state.waiters[number] = party("waiting_us") end
  local after, chosen = 0, nil
  if is_release ~= 0 then
    if type(on_release) == "function" then chosen = on_release(state) end
  elseif type(on_request) == "function" then
    after, chosen = on_request(state)
    if after == nil then after = 0 end
    if type(after) ~= "number" or after ~= after then
      error("on_request returned " .. tostring(after) .. " as the time in microseconds after which the holder is asked", 0)
    end
  end
  if chosen ~= nil then
    local number = type(chosen) == "number" and math.tointeger(chosen) or nil
    if number == nil or number < 1 or number > count then
      error("it chose the waiter " .. tostring(chosen) .. "; the waiters are numbered 1 to " .. count, 0)
    end
    chosen = number
  end
  -- An hour is more than any lease lets a holder keep what others wait for.
  after = math.floor(math.max(0, math.min(after, 3600000000)))
  output:append(string.pack("<i8i8", after, chosen or 0))
end
objclass.register(__decide, { writes = false })
