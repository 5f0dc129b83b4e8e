-- Admits this process as a member. Before that it must have granted nothing for the longest ttl, so that no grant of before the
-- restart is held any more; and its numbers must begin above the highest one of the members.
-- ARGV: 1 seed: the number to exceed, 2 '1': admit it at once, but only a node that has never granted; the last argument is that
--       of member.lua
-- Returns: {'member', number} | {'back', ms to wait, highest number} | {'setting', longest ttl in ms, restart wait} | {'used', number}

local refused = refuse_stranger()
local highest = redis.call('GET', HIGHEST) or '0'
if not refused then return {'member', highest} end
if refused[1] ~= 'back' then return refused end
if ARGV[2] == '1' then
  if highest ~= '0' or redis.call('EXISTS', MEMBER) == 1 then return {'used', highest} end
elseif refused[2] > 0 then
  return refused
end
local seed = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', SEED) or '0'))
redis.call('SET', SEED, text_of(seed))
if tonumber(highest) < seed then redis.call('SET', HIGHEST, text_of(seed)) end
redis.call('SET', MEMBER, ARGV[#ARGV])
redis.call('DEL', BACK)
return {'member', redis.call('GET', HIGHEST) or '0'}
