-- Priority: of all who wait, the session that began first gets the sequencer next. A holder that began later than one of them
-- is asked for it at once, any other is left alone for a tenth of the lease.
local function first(state)
  local found = 1
  for number = 2, #state.waiters do
    if state.waiters[number].order < state.waiters[found].order then found = number end
  end
  return found
end

function on_request(state)
  local next = first(state)
  if state.waiters[next].order < state.holder.order then return 0, next end
  -- Counted from its grant, not from now: whoever comes later puts nothing off.
  return math.max(0, state.lease_us // 10 - state.holder.held_us), next
end

on_release = first
