-- Releases the lock if the token holds it, but leaves it taken for a while: under a new token, which nobody knows, so that no late
-- request of the old one changes anything. The number stays in the holder record, with the moment of the release.
-- KEYS: 1 lock, 2 holder record, 3 queue (all in one slot)
-- ARGV: 1 token, 2 new token, 3 ms for which the lock stays taken
-- Returns: 0: the token does not hold it | 1: it is released, or was by the same request before, which is not put off

local token, new_token, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local holder = redis.call('GET', KEYS[1])
if holder == new_token then return 1 end
if holder ~= token then return 0 end
local first = redis.call('ZRANGE', KEYS[3], 0, NOTIFIED_AFTER_LONG - 1) -- before the first write: it fails for other types
local number, granted, owner = record_of(KEYS[2], token)
redis.call('SET', KEYS[1], new_token, 'PX', ARGV[3])
if number then
  local _, now = server_clock_us()
  redis.call('SET', KEYS[2], number .. ' ' .. new_token .. ' ' .. granted .. '-' .. now .. ' ' .. owner, 'PX', ARGV[3])
else
  redis.call('DEL', KEYS[2])
end
-- The waiters believe in the ttl, which may be longer. They ask again when the lock frees itself, for which there is no message.
local notified = {}
for _, entry in ipairs(first) do
  local listener = string.match(entry, '^(%S+) ')
  if listener and not notified[listener] then
    notified[listener] = true
    publish(listener, 'recheck ' .. text_of(math.min(left + 2, LONGEST_RECHECK_MS)) .. ' ' .. KEYS[1])
  end
end
return 1
