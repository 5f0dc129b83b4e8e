-- Offers the lock to the next in the queue, or frees it, if the token holds it or was offered it. Removes the token from
-- the queue.
-- KEYS: 1 lock, 2 holder record, 3 queue, 4 listeners (all in one slot)
-- ARGV: 1 token; and, if the caller waits, 2 its listener; and, if it only declines an offer, 3 'offer'
-- Returns: 0: the token does not hold it | 1 or 2: it is free | 3: it was offered to the next

if ARGV[2] then leave_queue(KEYS[3], KEYS[4], ARGV[2], ARGV[2] .. ' ' .. ARGV[1]) end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
-- The message of an offer may arrive after the waiter has accepted it by itself: then it holds the lock.
if ARGV[3] and string.sub(redis.call('GET', KEYS[2]) or '', 1, 6) ~= 'offer ' then return 0 end
if hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4]) then return 3 end
return 1
