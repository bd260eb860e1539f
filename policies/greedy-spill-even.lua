-- Greedy spill even: a rank is in charge of the idle ranks up to the next one that has load, and sends half of its own load
-- half way there. With 2^n ranks, the load of one is spread evenly after n ticks. In the form of Ceph's balancer.
local IDLE = 0.01

local targets = {}
for rank in pairs(mds) do targets[rank] = 0 end

local mine, next_busy = mds[whoami]["all.meta_load"], whoami + 1
while mds[next_busy] and mds[next_busy]["all.meta_load"] < IDLE do next_busy = next_busy + 1 end
local to = whoami + (next_busy - whoami) // 2
if to > whoami and mine > IDLE then
  BAL_LOG(2, "sending half of " .. mine .. " to rank " .. to)
  targets[to] = mine / 2
end
return targets
