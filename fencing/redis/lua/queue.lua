-- Shared by the scripts that hand the lock over, which are sent with this file behind common.lua. Nothing runs by itself.
--
-- The queue is a sorted set of "<listener> <token>", in the order of tickets. A listener is one process, or one event loop,
-- that subscribes to the channel fencing:1:wake:<listener>. Its messages: "grant <token> <resource>": the lock is offered to
-- that token. "passed <token> <resource>": that token was removed from the queue. "recheck <ms> <resource>": the listener's
-- first waiter must ask again after that time.
--
-- An offer is the lock itself, with the token of the next in the queue, for ACCEPT_MS, without a holder record. A waiter
-- accepts it by an acquire with that token. A set keeps the listeners that were offered the lock and have not made a request
-- since. Such a listener is passed over: a stopped process costs the others one offer, however many waiters it has. A waiter
-- that is passed over, or that misses its offer, is out of the queue. It gets its old place again by an acquire with its old
-- ticket.

local ACCEPT_MS = 250 -- a process under load needs some ms; all waiters lose this time when one process is stopped
local SPREAD_MS = 50 -- between two listeners that recheck the same offer
local OFFERED_MS = 2500 -- how long a listener that did not answer is passed over, unless another one gets an offer
local QUEUE_MS = 30000 -- three times the longest recheck: by then every live waiter has asked again
local LONGEST_RECHECK_MS = 10000
local FOREIGN_RECHECK_MS = 1000 -- holders that use other libraries release without a message
local MAX_PASSED = 1000 -- entries of dead or stopped waiters that one call goes through
local MAX_SEARCHED = 128 -- entries that are searched for two other listeners

-- Publishes a message. Returns how many clients received it; nil where the user may not publish on the channel.
local function publish(listener, text)
  local receivers = redis.pcall('PUBLISH', 'fencing:1:wake:' .. listener, text)
  return type(receivers) == 'number' and receivers or nil
end

-- Notes that the listener's process runs, because a request came from it.
local function mark_alive(listener, offered_key)
  if listener ~= '' then redis.call('SREM', offered_key, listener) end
end

-- Sends a recheck to two other listeners, so that an offer that is never accepted is noticed.
local function send_rechecks(lock_key, queue_key, offered_key, grantee)
  local seen = {[grantee] = true}
  local prefix = grantee .. ' '
  local after = ACCEPT_MS + 2
  for _, entry in ipairs(redis.call('ZRANGE', queue_key, 0, MAX_SEARCHED - 1)) do
    local listener = string.sub(entry, 1, #prefix) == prefix and grantee or string.match(entry, '^%S+') or ''
    if not seen[listener] then
      seen[listener] = true
      local message = 'recheck ' .. after .. ' ' .. lock_key
      if redis.call('SISMEMBER', offered_key, listener) == 0 and (publish(listener, message) or 0) > 0 then
        if after > ACCEPT_MS + 2 then return end
        after = after + SPREAD_MS
      end
    end
  end
end

-- Offers the lock to the first entry of the queue whose listener is subscribed, and returns that entry. Returns `own_entry`,
-- and changes nothing, where that is the first one. Returns nil where there is no such entry: the lock is then free.
local function hand_over(lock_key, holder_key, queue_key, offered_key, own_entry)
  for _ = 1, MAX_PASSED do
    local first = redis.call('ZRANGE', queue_key, 0, 0)[1]
    if not first then break end
    if first == own_entry then return own_entry end
    local listener, token = string.match(first, '^(%S+) (%S+)$')
    local receivers = 0
    if listener and redis.call('SISMEMBER', offered_key, listener) == 1 then
      publish(listener, 'passed ' .. token .. ' ' .. lock_key)
    elseif listener then
      local set = redis.pcall('SET', lock_key, token, 'PX', ACCEPT_MS) -- refused where the memory is used up
      receivers = not set.err and publish(listener, 'grant ' .. token .. ' ' .. lock_key)
      if not receivers then break end
    end
    redis.call('ZREM', queue_key, first)
    if receivers > 0 then
      redis.call('DEL', holder_key)
      redis.call('SADD', offered_key, listener)
      redis.call('PEXPIRE', offered_key, OFFERED_MS)
      send_rechecks(lock_key, queue_key, offered_key, listener)
      return first
    end
  end
  redis.call('DEL', lock_key, holder_key)
  return nil
end

