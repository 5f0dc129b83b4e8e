-- Takes the lock from its holder, if there is one, and mints a new fence. The caller can then shut the holder out at the
-- guards, and release the lock with the new token. The same token again gets the same number.
-- KEYS: 1 lock, 2 holder record, 3 counter, 4 forced release: "<former token> <owner label>" (all in one slot)
-- ARGV: 1 new token, 2 ttl in ms, 3 owner label, 4 floor: a number to exceed ('0' for none), 5 '1': the server's clock in us
--       is a floor too
-- Returns: number | {'implausible', number, ceiling}

local FORCED_MS = 60000 -- the former holder asks at its next renewal, or when it releases

local former = redis.call('GET', KEYS[1])
if former == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
end
local number = mint()
if former and type(number) == 'string' then redis.call('SET', KEYS[4], former .. ' ' .. ARGV[3], 'PX', FORCED_MS) end
return number
