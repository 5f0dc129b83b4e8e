-- Takes the lock at this node from the holder that the caller has read, and from nobody else, however late it arrives. The same
-- token again gets the same number and the full ttl.
-- KEYS: those of grant.lua
-- ARGV: those of grant.lua, 6 digest of the holder's token, 7 '1': also where the lock is free; the last argument is that of
--       member.lua
-- Returns: what acquire.lua returns; {'taken', …} also where the lock is free, unless argument 7 says otherwise

local refused = refuse_stranger()
if refused then return refused end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif holder and digest_of(holder) ~= ARGV[6] then
  return taken(holder)
elseif not holder and ARGV[7] ~= '1' then
  return taken('')
end
return grant()
