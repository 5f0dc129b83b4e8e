-- Gives each lock its full ttl again, if its token still holds it. Never takes a lock that is gone, never changes a fence.
-- KEYS: lock 1, holder record 1, lock 2, holder record 2 … (at most 200 in all, so that one call is short)
-- ARGV: 1 ttl in ms, 2 the token of lock 1, 3 that of lock 2 …
-- Returns: {'renewed', for each lock, with a blank between them: its number, or '-' where its record is lost, or 'gone'}

local said = {}
for i = 1, #KEYS / 2 do
  local lock, holder, token = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 1]
  if redis.call('GET', lock) == token then
    said[i] = record_of(holder, token) or '-'
    redis.call('PEXPIRE', lock, ARGV[1])
    redis.call('PEXPIRE', holder, ARGV[1])
  else
    said[i] = 'gone'
  end
end
return {'renewed', table.concat(said, ' ')}
