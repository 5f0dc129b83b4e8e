-- Offers the lock to the next in the queue, or frees it, if the token holds it or was offered it. Removes the token from
-- the queue.
-- KEYS: 1 lock, 2 holder record, 3 queue, 4 listeners (all in one slot)
-- ARGV: 1 token; and, if the caller waits, 2 its listener; and, if it only declines an offer, 3 'offer'
-- Returns: 0: the token does not hold it | 1 or 2: it is free | 3: it was offered to the next

local token, listener, only_an_offer = ARGV[1], ARGV[2], ARGV[3]
local holds = redis.call('GET', KEYS[1]) == token
-- The message of an offer may arrive after the waiter has accepted it by itself: then it holds the lock.
if holds and only_an_offer then holds = string.sub(redis.call('GET', KEYS[2]) or '', 1, 6) == 'offer ' end
local entries, listeners = sizes_of(KEYS[3], KEYS[4])
if listener then
  local left, ended = leave_queue(KEYS[3], KEYS[4], listener, listener .. ' ' .. token)
  entries, listeners = entries - left, listeners - ended
end
if not holds then return 0 end
if hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], nil, entries, listeners) then return 3 end
return 1
