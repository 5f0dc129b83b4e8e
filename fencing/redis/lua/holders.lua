-- Describes the holders of a page of locks, without their tokens. Locks of other libraries have no record, and are not listed.
-- ARGV: 1 cursor of SCAN, 2 pattern of holder records, 3 how many keys SCAN looks at
-- Returns: {next cursor, then for each lock: its name, ms until it frees itself, or -1, ms since the grant, number, owner label,
--          digest of the token}

local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local reply = {found[1]}
local now = server_clock_us()
for _, key in ipairs(found[2]) do
  local lock = string.match(key, '^fencing:1:{%d+}:holder:(.*)$')
  local token = lock and redis.pcall('GET', lock) -- an error: another type, or no permission
  local number, granted, owner = nil, nil, nil
  if type(token) == 'string' then number, granted, owner = record_of(key, token) end
  if number then
    reply[#reply + 1] = lock
    reply[#reply + 1] = redis.call('PTTL', lock)
    reply[#reply + 1] = math.floor((now - tonumber(granted)) / 1000)
    reply[#reply + 1] = number
    reply[#reply + 1] = owner
    reply[#reply + 1] = digest_of(token)
  end
end
return reply
