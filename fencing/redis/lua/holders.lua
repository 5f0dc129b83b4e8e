-- Describes the holders of some locks, without their tokens. Locks of other libraries have no record, and are left out.
-- KEYS: for each lock lock, holder record, queue (at most 300 in all, so that one call is short; all in one slot)
-- Returns: for each lock that is held: its position from 1, ms until it frees itself, or -1, ms since the grant, number,
--          owner label, digest of the token, '' unless it is released already, how many wait, or -1

local reply = {}
local now = server_clock_us()
for i = 1, #KEYS / 3 do
  local lock, holder, queue = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local token = redis.pcall('GET', lock) -- an error: another type
  local number, granted, owner, released = nil, nil, nil, nil
  if type(token) == 'string' then number, granted, owner, released = record_of(holder, token) end
  if number then
    local waiting = redis.pcall('ZCARD', queue)
    reply[#reply + 1] = i
    reply[#reply + 1] = redis.call('PTTL', lock)
    reply[#reply + 1] = math.floor((now - tonumber(granted)) / 1000)
    reply[#reply + 1] = number
    reply[#reply + 1] = owner
    reply[#reply + 1] = digest_of(token)
    reply[#reply + 1] = released
    reply[#reply + 1] = type(waiting) == 'number' and waiting or -1
  end
end
return reply
