-- Fairness: of all who wait, the session that has had the fewest operations gets the sequencer next, and of equal ones the one
-- that came first. A holder that has had no more than others is left alone for 10 ms, so that it gets to work.
local HOLD_US = 10000

local function poorest(state)
  local found = 1
  for number = 2, #state.waiters do
    if state.waiters[number].operations < state.waiters[found].operations then found = number end
  end
  return found
end

function on_request(state)
  local next = poorest(state)
  if state.waiters[next].operations < state.holder.operations then return 0, next end
  return math.max(0, HOLD_US - state.holder.held_us), next
end

on_release = poorest
