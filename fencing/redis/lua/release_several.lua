-- Offers each lock to the next in its queue, or frees it, if its token holds it.
-- KEYS: lock 1, holder record 1, queue 1, listeners 1, lock 2 … (at most 100 locks, so that one call is short)
-- ARGV: the token of lock 1, the token of lock 2 …
-- Returns: one character per lock: 'g': its token does not hold it | 'f': it is free | 'o': it was offered to the next

local results = {}
for i, token in ipairs(ARGV) do
  local lock, holder, queue, listeners = KEYS[4 * i - 3], KEYS[4 * i - 2], KEYS[4 * i - 1], KEYS[4 * i]
  if redis.pcall('GET', lock) ~= token then
    results[i] = 'g'
  elseif hand_over(lock, holder, queue, listeners, nil, sizes_of(queue, listeners)) then
    results[i] = 'o'
  else
    results[i] = 'f'
  end
end
return table.concat(results)
