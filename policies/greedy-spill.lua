-- Greedy spill: a rank that has load sends half of it to the next rank, if that one is idle. Load moves on from rank to rank
-- until each has some. In the form of Ceph's balancer.
local IDLE = 0.01

local targets = {}
for rank in pairs(mds) do targets[rank] = 0 end

local mine, next_rank = mds[whoami]["all.meta_load"], mds[whoami + 1]
if next_rank and mine > IDLE and next_rank["all.meta_load"] < IDLE then
  BAL_LOG(2, "sending half of " .. mine .. " to rank " .. whoami + 1)
  targets[whoami + 1] = mine / 2
end
return targets
