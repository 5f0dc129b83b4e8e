-- Gives each lock its full ttl again, if its token still holds it. Never takes a lock that is gone. Never changes a fence.
-- KEYS: lock 1, holder record 1, lock 2, holder record 2 … (at most 200 in all, so that one call is short)
-- ARGV: 1 ttl in ms, 2 token of lock 1, 3 token of lock 2 …
-- Returns: {'renewed', one word per lock, separated by spaces: its number, or '-' where its record is lost, or 'gone'}

local results = {}
for i = 1, #KEYS / 2 do
  local lock, holder, token = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 1]
  if redis.call('GET', lock) == token then
    results[i] = record_of(holder, token) or '-'
    redis.call('PEXPIRE', lock, ARGV[1])
    redis.call('PEXPIRE', holder, ARGV[1])
  else
    results[i] = 'gone'
  end
end
return {'renewed', table.concat(results, ' ')}
