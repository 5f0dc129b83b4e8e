-- Takes the lock from the holder that the caller has read, and mints a new fence. The caller can then shut the holder out at
-- the guards, and release the lock with the new token. The same token again gets the same number. It takes the lock from nobody
-- else, however late it arrives.
-- KEYS: 1 lock, 2 holder record, 3 counter, 4 forced release: "<former token> <owner label>" (all in one slot)
-- ARGV: 1 new token, 2 ttl in ms, 3 owner label, 4 floor: a number to exceed ('0' for none), 5 '1': the server's clock in us
--       is a floor too, 6 digest of the holder's token
-- Returns: number | {'gone'}: another one holds the lock, or nobody | {'implausible', number, ceiling}

local FORCED_MS = 60000 -- the former holder asks at its next renewal, or when it releases

local former = redis.call('GET', KEYS[1])
if former == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif not former or digest_of(former) ~= ARGV[6] then
  return {'gone'}
end
local number = mint()
if type(number) == 'string' then redis.call('SET', KEYS[4], former .. ' ' .. ARGV[3], 'PX', FORCED_MS) end
return number
