-- Takes the lock at this node if it is free, and mints a number. The same token again gets the same number and the full ttl.
-- KEYS, ARGV: those of grant.lua; the last argument is that of member.lua
-- Returns: number | {'taken', ms until it frees itself, or -1, owner label, or '', digest of the token}
--        | {'implausible', number, ceiling} | {'back', ms to wait, highest number} | {'setting', longest ttl in ms, restart wait}

local refused = refuse_stranger()
if refused then return refused end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif holder then
  return taken(holder)
end
return grant()
