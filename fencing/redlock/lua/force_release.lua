-- Takes the lock at this node, even from a holder. The same token again gets the same number and the full ttl.
-- KEYS, ARGV: those of grant.lua; the last argument is that of member.lua
-- Returns: what acquire.lua returns, except 'taken'

local refused = refuse_stranger()
if refused then return refused end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
end
return grant()
