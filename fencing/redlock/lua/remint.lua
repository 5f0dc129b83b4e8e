-- Replaces the fence at this node without freeing the lock. The same new token again gets the same number and the full ttl. The
-- old fence holds the lock here if the record has its token and no higher number: a higher one is of a later grant to a late
-- request of the same token. A lower one was never confirmed here.
-- KEYS: those of grant.lua
-- ARGV: those of grant.lua, 6 token and 7 number of the old fence; the last argument is that of member.lua
-- Returns: what acquire.lua returns; {'taken', …} also where the lock is free: the old fence does not hold it

local refused = refuse_stranger()
if refused then return refused end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return number end
elseif holder ~= ARGV[6] or tonumber(record_of(KEYS[2], holder) or '0') > tonumber(ARGV[7]) then
  return taken(holder or '')
end
return grant()
