-- Describes the holders of some locks, without their tokens. Locks of other libraries have no record, and are left out.
-- KEYS: lock 1, holder record 1, lock 2, holder record 2 … (at most 200 in all, so that one call is short; all in one slot)
-- Returns: for each lock that is held: its position from 1, ms until it frees itself, or -1, ms since the grant, number,
--          owner label, digest of the token, '' unless it is released already

local reply = {}
local now = server_clock_us()
for i = 1, #KEYS / 2 do
  local lock, holder = KEYS[2 * i - 1], KEYS[2 * i]
  local token = redis.pcall('GET', lock) -- an error: another type
  local number, granted, owner, released = nil, nil, nil, nil
  if type(token) == 'string' then number, granted, owner, released = record_of(holder, token) end
  if number then
    reply[#reply + 1] = i
    reply[#reply + 1] = redis.call('PTTL', lock)
    reply[#reply + 1] = math.floor((now - tonumber(granted)) / 1000)
    reply[#reply + 1] = number
    reply[#reply + 1] = owner
    reply[#reply + 1] = digest_of(token)
    reply[#reply + 1] = released
  end
end
return reply
