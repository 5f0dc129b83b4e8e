-- Tells the highest number that this node has seen, and whether it is a member.
-- KEYS: those of member.lua
-- ARGV: the last argument is that of member.lua
-- Returns: {'member', number} | {'stranger', number, ms to wait, its state: see member.lua}
--        | {'setting', longest ttl in ms, restart wait}

local refused = refuse_stranger()
local highest = redis.call('GET', HIGHEST) or '0'
if not refused then return {'member', highest} end
if refused[1] == 'back' then return {'stranger', highest, refused[2], redis.call('GET', BACK)} end
return refused
