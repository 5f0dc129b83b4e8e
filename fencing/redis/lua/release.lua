-- Offers the lock to the next in the queue, or frees it, if the token holds it or was offered it. Removes the token from
-- the queue.
-- KEYS: 1 lock, 2 holder record, 3 queue, 4 listeners with an offer (all in one slot)
-- ARGV: 1 token, 2 listener of the waiter ('': the caller does not wait)
-- Returns: {'released'} | {'gone'}

if ARGV[2] ~= '' then
  redis.call('ZREM', KEYS[3], ARGV[2] .. ' ' .. ARGV[1])
  mark_alive(ARGV[2], KEYS[4])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'gone'} end
hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4])
return {'released'}
