-- Tells for a while whether a token has lost its lock by a forced release: see force_release.lua.
-- KEYS: 1 forced release
-- ARGV: 1 token
-- Returns: the owner label of whoever forced it; '' if nobody did, or if it is not known any more

local forced = redis.call('GET', KEYS[1])
local token, owner = string.match(forced or '', '^(%S+) (.*)$')
return token == ARGV[1] and owner or ''
