-- Frees the lock, if the token still holds it.
-- KEYS: 1 lock, 2 holder record
-- ARGV: 1 token
-- Returns: {'released'} | {'gone'}

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'gone'} end
redis.call('DEL', KEYS[1], KEYS[2])
return {'released'}
