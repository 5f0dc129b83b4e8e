-- Admits this process as a member. Before that it must have granted nothing for the longest ttl, so that no grant of before the
-- restart is held any more; and its numbers must begin above the highest one of the members. A join is good for the states that
-- it was decided on, once: one that arrives late does not admit a node that has lost its data again.
-- KEYS: those of member.lua
-- ARGV: 1 seed: the number to exceed, 2 '1': admit it at once, but only a node that has never granted, 3 … the states of the
--       nodes that may be admitted: see highest.lua; the last argument is that of member.lua
-- Returns: {'member', number} | {'back', ms to wait, highest number}, also for another state
--        | {'setting', longest ttl in ms, restart wait} | {'used', number}

local refused = refuse_stranger()
local highest = redis.call('GET', HIGHEST) or '0'
if not refused then return {'member', highest} end
if refused[1] ~= 'back' then return refused end
local state, is_meant = redis.call('GET', BACK), false
for i = 3, #ARGV - 1 do is_meant = is_meant or ARGV[i] == state end
if not is_meant then return refused end
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
