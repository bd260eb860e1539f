-- Busy: a holder keeps the sequencer for as long as pays for passing it on, which the operations of its earlier grants tell:
-- 1 ms, and 1 ms more for each thousand operations of a grant, up to 100 ms. Who waits is served in the order of arrival.
local LEAST_US, MOST_US, OPERATIONS = 1000, 100000, 1000

function on_request(state)
  local holder = state.holder
  -- The present grant is not over, and nothing is known of it yet.
  local over = math.max(1, holder.grants - 1)
  local wanted = LEAST_US + LEAST_US * (holder.operations // over) // OPERATIONS
  return math.max(0, math.min(wanted, MOST_US) - holder.held_us)
end
