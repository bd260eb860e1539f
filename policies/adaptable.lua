-- Adaptable: a rank with more than the mean of all sends what is above it to those below it, each as much as its part in
-- what is missing there. If all ranks with too much do so, all have the mean. Small differences are left alone.
local TOLERATED = 1.1

local mean

howmuch = "biggest"

function when()
  local sum = 0
  for rank = 0, #server do sum = sum + server[rank]["load"] end
  mean = sum / (#server + 1)
  return server[whoami]["load"] > TOLERATED * mean
end

function where()
  local missing, parts = 0, {}
  for rank = 0, #server do
    local part = mean - server[rank]["load"]
    if part > 0 then
      missing, parts[rank] = missing + part, part
    end
  end
  local surplus = server[whoami]["load"] - mean
  for rank, part in pairs(parts) do targets[rank] = surplus * part / missing end
end
