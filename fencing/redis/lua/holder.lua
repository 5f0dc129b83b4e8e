-- Describes the holder of the lock, without its token.
-- KEYS: 1 lock, 2 holder record, 3 queue (all in one slot)
-- Returns: {'free'} | {'held', ms until it frees itself, or -1, ms since the grant, or -1, number, owner label, digest of
--          the token, '' unless it is released already, how many wait, or -1} ('' for number and label where the holder uses
--          another library)

local token = redis.call('GET', KEYS[1])
if not token then return {'free'} end
local number, granted, owner, released = record_of(KEYS[2], token)
local held = -1
if number then held = math.floor((server_clock_us() - tonumber(granted)) / 1000) end
local waiting = redis.pcall('ZCARD', KEYS[3]) -- an error: another type, or no permission
if type(waiting) ~= 'number' then waiting = -1 end
return {'held', redis.call('PTTL', KEYS[1]), held, number or '', owner or '', digest_of(token), released or '', waiting}
