-- Shared by the scripts that hand the lock on, which are sent with this file behind common.lua. Nothing runs by itself.
--
-- The queue is a sorted set of "<hub> <token>", in the order of tickets. A hub is one process, or event loop, that
-- listens on the channel fencing:1:wake:<hub>. What it is sent: "grant <token> <resource>", the lock is offered to that
-- token; "passed <token> <resource>", that token is out of the queue; "look <ms> <resource>", after so long somebody who
-- waits is to ask again.
--
-- An offer is the lock itself, with the token of the next in the queue, for ACCEPT_MS, without a holder record. To accept
-- it is to acquire with that token. The hubs that were offered the lock and have not been heard from since are kept in a
-- set: a process that is stopped costs the others one offer, however many of it wait. Who is passed over for that, or lets
-- an offer go by, is out of the queue, and has the old place again by asking with the old ticket.

local ACCEPT_MS = 250 -- a process under load needs some ms; all that wait lose so much when one is stopped
local SPREAD_MS = 50 -- between two that look after the same offer
local OFFERED_MS = 2500 -- how long a hub that has not answered is passed over, if nobody else is
local QUEUE_MS = 30000 -- three times the longest look: by then all that are alive have asked again
local LONGEST_LOOK_MS = 10000
local FOREIGN_LOOK_MS = 1000 -- holders of other libraries release without telling anybody
local MOST_PASSED = 1000 -- entries of the dead and the stopped that one call goes through
local MOST_SEARCHED = 128 -- entries among which two other hubs are looked for

-- How many have received it; nil where the user may not publish on the channel.
local function tell(hub, text)
  local said = redis.pcall('PUBLISH', 'fencing:1:wake:' .. hub, text)
  return type(said) == 'number' and said or nil
end

-- Somebody asks for this hub, so its process runs.
local function heard_from(hub, offered_key)
  if hub ~= '' then redis.call('SREM', offered_key, hub) end
end

-- Two other hubs are told of an offer, so that somebody notices if it is never accepted.
local function tell_next(lock_key, queue_key, offered_key, grantee)
  local told = {[grantee] = true}
  local its = grantee .. ' '
  local after = ACCEPT_MS + 2
  for _, entry in ipairs(redis.call('ZRANGE', queue_key, 0, MOST_SEARCHED - 1)) do
    local hub = string.sub(entry, 1, #its) == its and grantee or string.match(entry, '^%S+') or ''
    if not told[hub] then
      told[hub] = true
      if redis.call('SISMEMBER', offered_key, hub) == 0 and (tell(hub, 'look ' .. after .. ' ' .. lock_key) or 0) > 0 then
        if after > ACCEPT_MS + 2 then return end
        after = after + SPREAD_MS
      end
    end
  end
end

-- Offers the lock to the first in the queue who listens, and returns that entry; or returns `me`, unchanged, where that is
-- the first. Where nobody is there the lock is free: nil.
local function hand_over(lock_key, holder_key, queue_key, offered_key, me)
  for _ = 1, MOST_PASSED do
    local first = redis.call('ZRANGE', queue_key, 0, 0)[1]
    if not first then break end
    if first == me then return me end
    local hub, token = string.match(first, '^(%S+) (%S+)$')
    local receivers = 0
    if hub and redis.call('SISMEMBER', offered_key, hub) == 1 then
      tell(hub, 'passed ' .. token .. ' ' .. lock_key)
    elseif hub then
      local set = redis.pcall('SET', lock_key, token, 'PX', ACCEPT_MS) -- refused where the memory is used up
      receivers = not set.err and tell(hub, 'grant ' .. token .. ' ' .. lock_key)
      if not receivers then break end
    end
    redis.call('ZREM', queue_key, first)
    if receivers > 0 then
      redis.call('DEL', holder_key)
      redis.call('SADD', offered_key, hub)
      redis.call('PEXPIRE', offered_key, OFFERED_MS)
      tell_next(lock_key, queue_key, offered_key, hub)
      return first
    end
  end
  redis.call('DEL', lock_key, holder_key)
  return nil
end

