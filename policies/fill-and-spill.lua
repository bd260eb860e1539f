-- Fill and spill: a rank is filled before the next one gets anything, so that few ranks work and clients talk to few. One
-- that has been busy for three ticks in a row sends a quarter of its load to the next rank.
local BUSY = 0.8
local TICKS = 3

function load(rank)
  return server[rank]["all.meta_load"]
end

function when()
  if server[whoami]["cpu_load_avg"] < BUSY then
    WRstate(0)
    return false
  end
  local busy = (RDstate() or 0) + 1
  if busy < TICKS then
    WRstate(busy)
    return false
  end
  WRstate(0)
  return true
end

function where()
  targets[whoami + 1] = server[whoami]["load"] / 4
end
