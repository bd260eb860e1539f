-- Hash: where a resource belongs depends on its name alone. Load does not matter; with many resources of about the same load
-- it comes out even, and nothing has to be known of the others.
local function home(name)
  local hash = 5381
  for at = 1, #name do hash = (hash * 33 + string.byte(name, at)) % 4294967296 end
  -- The lower bits of neighbouring names are much alike.
  hash = (hash ~ hash >> 15) * 2246822519 % 4294967296
  return (hash ~ hash >> 13) % (#server + 1)
end

local homes

-- Chooses what belongs to the rank, whatever the amount is.
function howmuch(resources, amount, rank)
  if homes == nil then homes = {} end
  local chosen = {}
  for number = 1, #resources do
    local name = resources[number].name
    homes[name] = homes[name] or home(name)
    if homes[name] == rank then chosen[#chosen + 1] = number end
  end
  return chosen
end

function where()
  for rank = 0, #server do
    if rank ~= whoami then targets[rank] = server[whoami]["load"] / (#server + 1) end
  end
end
