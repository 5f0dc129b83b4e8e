-- Shared by the scripts that hand the lock over, which are sent with this file behind common.lua. Nothing runs by itself.
--
-- The queue is a sorted set of "<listener> <token>", in the order of tickets. A listener is one process, or one event loop,
-- that subscribes to the channel fencing:1:wake:<listener>. A hash has the number of entries of each listener. Messages:
-- "grant <token> <resource>": the lock is offered to that token. "passed * <resource>": the listener's entries were removed
-- from the queue; its waiters must ask again. "recheck <ms> <resource>": the listener's first waiter must ask again after
-- that time.
--
-- A waiter is new for NEW_MS after its ticket. As long as it is, each reply tells it to ask again when it is new no more. So it
-- finds every offer that is made meanwhile, and no message has to wake it for that.
--
-- An offer is the lock itself, with the token of the next in the queue, for ACCEPT_MS. The holder record is then
-- "offer <listener>". A waiter accepts it by an acquire with that token. If the lock is free and there is still such a record,
-- then that listener is silent: its process is stopped. All its entries are removed, so it costs the others one offer, however
-- many waiters it has. A waiter that is removed gets its old place again by an acquire with its old ticket.

local ACCEPT_MS = 250 -- a process under load needs some ms; all waiters lose this time when one process is stopped
local SPREAD_MS = 50 -- between the first and the last of the listeners that are told to recheck the same offer
local BEHIND_MS = 5 -- between two waiters that have found the same offer, and recheck at its end
local NEW_MS = 250 -- at most ACCEPT_MS: then a waiter that is new as an offer is made asks again before the offer ends
local OFFERED_MS = 2500 -- how long the record of an offer outlasts the offer
local QUEUE_MS = 30000 -- three times the longest recheck: by then every live waiter has asked again
local LONGEST_RECHECK_MS = 10000
local FOREIGN_RECHECK_MS = 1000 -- holders that use other libraries release without a message
local MAX_PASSED = 5000 -- entries of dead listeners that one call goes through
local MAX_SEARCHED = 20000 -- entries that are searched for those of one listener
local DRAWN = 8 -- listeners that are drawn at once
local MAX_DRAWS = 16
local NOTIFIED = 2 -- listeners that are told of an offer
local NOTIFIED_AFTER_LONG = 8 -- and where hand-overs are seldom: as many may be stopped at once
local LONG_MS = 25 -- a holding that makes them seldom

-- Publishes a message. Returns how many clients of this server received it; nil where the user may not publish on the channel.
-- In a Redis Cluster the name of a listener begins with 's{', and its channel is in the slot of the lock.
local function is_sharded(listener) return string.sub(listener, 1, 2) == 's{' end

local function publish(listener, text)
  local command = is_sharded(listener) and 'SPUBLISH' or 'PUBLISH'
  local receivers = redis.pcall(command, 'fencing:1:wake:' .. listener, text)
  return type(receivers) == 'number' and receivers or nil
end

-- Returns whether the listener has ended. A sharded one without a receiver may be on its way from the node that had the slot
-- before: it is treated as a frozen one, so it keeps its place for one offer. It asks again as soon as it is subscribed here.
local function is_dead(listener, receivers) return receivers == 0 and not is_sharded(listener) end

-- Counts an entry of the listener that has left the queue. Returns how many it has left.
local function count_down(listeners_key, listener)
  local left = redis.call('HINCRBY', listeners_key, listener, -1)
  if left < 1 then redis.call('HDEL', listeners_key, listener) end
  return left
end

-- Returns whether the entry was not in the queue, and is its listener's first one.
local function join_queue(queue_key, listeners_key, listener, entry, ticket)
  local is_first = redis.call('HEXISTS', listeners_key, listener) == 0 -- before the first write: it fails for other types
  local is_new = redis.call('ZADD', queue_key, 'NX', ticket, entry) == 1
  if is_new or is_first then redis.call('HINCRBY', listeners_key, listener, 1) end
  redis.call('PEXPIRE', queue_key, QUEUE_MS)
  redis.call('PEXPIRE', listeners_key, QUEUE_MS)
  return is_new and is_first
end

-- Returns how many entries and how many listeners have left the queue with it.
local function leave_queue(queue_key, listeners_key, listener, entry)
  if redis.call('ZREM', queue_key, entry) == 0 then return 0, 0 end
  return 1, count_down(listeners_key, listener) < 1 and 1 or 0
end

-- Removes all entries of a listener, and its count with them: a listener without a count is not drawn for rechecks. Returns
-- how many entries and how many listeners have left.
local function drop(queue_key, listeners_key, listener)
  local prefix = listener .. ' '
  local found = {}
  for _, entry in ipairs(redis.call('ZRANGE', queue_key, 0, MAX_SEARCHED - 1)) do
    if string.sub(entry, 1, #prefix) == prefix then found[#found + 1] = entry end
  end
  for first = 1, #found, 1000 do -- unpack has a limit
    redis.call('ZREM', queue_key, unpack(found, first, math.min(first + 999, #found)))
  end
  return #found, redis.call('HDEL', listeners_key, listener)
end

-- Removes the entries of listeners that have ended, of a few that are drawn. Nobody is woken. Returns how many have left. One
-- whose slot moves comes back by its old ticket.
local function drop_dead(queue_key, listeners_key)
  local dropped = 0
  for _, listener in ipairs(redis.call('HRANDFIELD', listeners_key, DRAWN) or {}) do
    local command = is_sharded(listener) and 'SHARDNUMSUB' or 'NUMSUB'
    local found = redis.pcall('PUBSUB', command, 'fencing:1:wake:' .. listener) -- an error: no permission; then it stays
    if tonumber(found[2] or 1) == 0 then
      local entries = drop(queue_key, listeners_key, listener)
      dropped = dropped + entries
    end
  end
  return dropped
end

-- Removes the entries of the listener that did not accept the last offer. The lock is free. Returns how many entries and how
-- many listeners have left.
local function drop_silent(lock_key, holder_key, queue_key, listeners_key, own_listener)
  local silent = string.match(redis.call('GET', holder_key) or '', '^offer (%S+)$')
  if not silent then return 0, 0 end
  redis.call('DEL', holder_key)
  if silent == own_listener then return 0, 0 end
  local left = tonumber(redis.call('HGET', listeners_key, silent) or '0')
  local entries, listeners = 0, 0
  if left > 0 then entries, listeners = drop(queue_key, listeners_key, silent) end
  publish(silent, 'passed * ' .. lock_key)
  return entries, listeners
end

-- Returns how many entries the queue has, and how many listeners. It comes before the first write of a script, because it
-- fails for other types. After that the scripts count: in a slot of a Cluster that moves, a key that a script has emptied is
-- an error for this very script.
local function sizes_of(queue_key, listeners_key)
  return redis.call('ZCARD', queue_key), redis.call('HLEN', listeners_key)
end

-- Returns in how many ms a waiter with this ticket is new no more. It is more than NEW_MS where the clock has gone back, or the
-- ticket is a little ahead of it.
local function new_for_ms(ticket) return NEW_MS - math.floor((server_clock_us() - ticket) / 1000) end

-- Returns whether all in the queue are new, and will ask again before an offer that is made now ends. It is not empty.
local function are_all_new(queue_key)
  local left = new_for_ms(redis.call('ZRANGE', queue_key, 0, 0, 'WITHSCORES')[2])
  return left > 0 and left <= NEW_MS + 1
end

-- Returns how many listeners are told of an offer. The holder record is still that of the last grant.
local function how_many_to_notify(holder_key)
  local record = redis.pcall('GET', holder_key) -- an error: another type, which the record of the offer replaces
  local granted = type(record) == 'string' and string.match(record, '^%d+ %S+ (%d+)%-?%d* ')
  return granted and server_clock_us() - granted < LONG_MS * 1000 and NOTIFIED or NOTIFIED_AFTER_LONG
end

-- Sends a recheck to `most` other listeners, so that an offer that is never accepted is noticed. The token, which is random, says
-- which ones: they may be stopped, too, and then the next offer needs others. `entries` and `listeners`: how many there are.
local function send_rechecks(lock_key, queue_key, listeners_key, grantee, token, entries, listeners, most)
  local seen = {[grantee] = true}
  local notified = 0
  for _ = 1, MAX_DRAWS do
    if listeners < 1 then return end
    local drawn = redis.call('HRANDFIELD', listeners_key, DRAWN) or {} -- an emulator of Redis has no answer where there is none
    local others = {}
    for _, listener in ipairs(drawn) do
      if not seen[listener] then others[#others + 1] = listener end
    end
    table.sort(others)
    for place = 1, #others do
      local listener = others[(place + string.byte(token, -1)) % #others + 1]
      seen[listener] = true
      local after = ACCEPT_MS + 2 + math.floor(notified * SPREAD_MS / (most - 1))
      local receivers = publish(listener, 'recheck ' .. after .. ' ' .. lock_key)
      if is_dead(listener, receivers) and entries > 0 and listeners > 0 then
        local dropped, ended = drop(queue_key, listeners_key, listener)
        entries, listeners = entries - dropped, listeners - ended
      end
      if (receivers or 0) > 0 then notified = notified + 1 end
      if notified == most then return end
    end
    if #drawn < DRAWN or #others == 0 then return end
  end
end

-- Offers the lock to the first entry of the queue whose listener is not dead, and returns that entry. Returns `own_entry`,
-- and offers nothing, where that is the first one. Returns nil where there is no such entry: the lock is then free.
-- `entries` and `listeners`: how many there are, see sizes_of.
local function hand_over(lock_key, holder_key, queue_key, listeners_key, own_entry, entries, listeners)
  for _ = 1, MAX_PASSED do
    if entries < 1 then break end
    local first = redis.call('ZRANGE', queue_key, 0, 0)[1]
    local listener, token = string.match(first, '^(%S+) (%S+)$')
    local receivers = nil
    if listener and first ~= own_entry then
      local set = redis.pcall('SET', lock_key, token, 'PX', ACCEPT_MS) -- refused where the memory is used up
      receivers = not set.err and publish(listener, 'grant ' .. token .. ' ' .. lock_key)
      if not receivers then break end
    end
    entries = entries - redis.call('ZREM', queue_key, first)
    local left = 0
    if listener and listeners > 0 then
      left = count_down(listeners_key, listener)
      if left < 1 then listeners = listeners - 1 end
    end
    if first == own_entry then return own_entry end
    if listener and not is_dead(listener, receivers) then
      local most = (entries < 1 or not are_all_new(queue_key)) and how_many_to_notify(holder_key)
      redis.call('SET', holder_key, 'offer ' .. listener, 'PX', OFFERED_MS)
      if most then send_rechecks(lock_key, queue_key, listeners_key, listener, token, entries, listeners, most) end
      return first
    end
    if left ~= 0 and entries > 0 then
      local dropped, ended = drop(queue_key, listeners_key, listener)
      entries, listeners = entries - dropped, listeners - ended
    end
  end
  redis.call('DEL', lock_key, holder_key)
  return nil
end
