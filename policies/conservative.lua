-- Conservative: as the policy "sequencer", but only once there has been a reason for two minutes without a break. Short bursts
-- move nothing.
local WAIT = 120

function load(rank)
  return server[rank]["load.sequencer"] + server[rank]["load.subtree"]
end

function when()
  if server[whoami]["load"] <= 0.01 or server[whoami + 1]["load"] >= 0.01 then
    WRstate(nil)
    return false
  end
  local since = RDstate()
  if since == nil then
    since = now
    WRstate(since)
  end
  return now - since >= WAIT
end

function where()
  WRstate(nil)
  targets[whoami + 1] = server[whoami]["load"] / 2
end
