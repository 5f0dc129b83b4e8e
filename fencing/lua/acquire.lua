-- Takes the lock if it is free, and mints its fencing number. The same token again gets the same number, and its ttl
-- anew.
-- KEYS: 1 lock, 2 holder record, 3 counter (all in one slot)
-- ARGV: 1 token, 2 ttl in ms ('' for none), 3 floor: a number to exceed ('0' for none), 4 '1': the server's clock in us
--       is a floor too, 5 owner label
-- Returns: {'granted', number}
--        | {'taken', ms until it frees itself, or -1, owner label, or ''}
--        | {'implausible', number, ceiling}

local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
if number then return {'granted', number} end
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  local _, _, owner = record_of(KEYS[2], holder)
  return {'taken', redis.call('PTTL', KEYS[1]), owner or ''}
end
return mint()
