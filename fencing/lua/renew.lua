-- Gives the lock its full ttl again, if the token still holds it. Never takes a lock that is gone, never changes the
-- fence.
-- KEYS: 1 lock, 2 holder record
-- ARGV: 1 token, 2 ttl in ms
-- Returns: {'renewed', number, or '' where its record is lost} | {'gone'}

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'gone'} end
local number = record_of(KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'renewed', number or ''}
