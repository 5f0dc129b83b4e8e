-- Replaces the token at this node without freeing the lock. The same new token again gets the same number and the full ttl.
-- KEYS: those of grant.lua
-- ARGV: those of grant.lua, 6 old token; the last argument is that of member.lua
-- Returns: what acquire.lua returns; {'taken', …} also where the lock is free: the old token does not hold it

local refused = refuse_stranger()
if refused then return refused end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif holder ~= ARGV[6] then
  return taken(holder or '')
end
return grant()
