-- Replaces the holder's fence without freeing the lock: new token, number above what a storage has admitted, full ttl. The
-- same new token again gets the same number. The old fence holds the lock by its token and its number, as in renew.lua.
-- KEYS: 1 lock, 2 holder record, 3 counter (all in one slot)
-- ARGV: 1 new token, 2 ttl in ms ('' for none), 3 owner label, 4 floor: the number to exceed, 5 '1': the server's clock in us
--       is a floor too, 6 token and 7 number of the old fence
-- Returns: number | {'gone'} | {'implausible', number, ceiling}

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif holder ~= ARGV[6] or not is_of_grant(redis.call('GET', KEYS[2]), ARGV[6], ARGV[7] .. ' ' .. ARGV[6] .. ' ') then
  return {'gone'}
end
return mint()
