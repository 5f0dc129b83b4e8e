-- Takes the lock if it is free and nobody waits for it, or if it was offered to the token; mints its fencing number. The
-- same token again gets the same number, and its ttl anew. Otherwise, who waits is put into the queue.
-- KEYS: 1 lock, 2 holder record, 3 counter, 4 queue, 5 hubs with an offer (all in one slot)
-- ARGV: 1 token, 2 ttl in ms ('' for none), 3 floor: a number to exceed ('0' for none), 4 '1': the server's clock in us
--       is a floor too, 5 owner label, 6 hub that listens for the token ('': it does not wait), 7 ticket that it was
--       given before ('' for none)
-- Returns: {'granted', number}
--        | {'taken', ms until it frees itself, or -1, owner label, or ''}
--        | {'queued', ticket, ms after which to ask again, owner label, or ''}
--        | {'implausible', number, ceiling}

local holder = redis.call('GET', KEYS[1])
local queued = holder and 1 or redis.call('ZCARD', KEYS[4])
if queued == 0 and ARGV[6] == '' then return mint() end

if holder == ARGV[1] then
  local number = granted_before(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
  if number then return {'granted', number} end
end

local hub = ARGV[6]
local me = hub .. ' ' .. ARGV[1]

local function take()
  if hub ~= '' then
    heard_from(hub, KEYS[5])
    redis.call('ZREM', KEYS[4], me)
  end
  return mint()
end

local function queue_up()
  local ticket = ARGV[7]
  if ticket == '' then
    local last = redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
    ticket = text_of(math.max(server_clock_us(), (tonumber(last) or 0) + 1))
  end
  redis.call('ZADD', KEYS[4], 'NX', ticket, me)
  redis.call('PEXPIRE', KEYS[4], QUEUE_MS)
end

if holder == ARGV[1] then return take() end
if not holder then
  if queued == 0 then return take() end
  local last, refused = check_mint(KEYS[3], tonumber(ARGV[3]), ARGV[4], (server_clock_us()))
  if not last then return refused end
  heard_from(hub, KEYS[5])
  if hub ~= '' then queue_up() end
  local next = hand_over(KEYS[1], KEYS[2], KEYS[4], KEYS[5], me)
  if next == me or not next then return take() end
  holder = redis.call('GET', KEYS[1])
end

local its_number, _, owner = record_of(KEYS[2], holder)
local left = redis.call('PTTL', KEYS[1])
if hub == '' then return {'taken', left, owner or ''} end

heard_from(hub, KEYS[5])
queue_up()
local look = LONGEST_LOOK_MS
if left >= 0 then look = math.min(look, left + 2) end -- PTTL rounds, and a key lives to the end of its millisecond
if not its_number then look = math.min(look, FOREIGN_LOOK_MS) end
if redis.call('ZRANK', KEYS[4], me) > 0 then look = look + ACCEPT_MS end -- the first one looks first
return {'queued', text_of(tonumber(redis.call('ZSCORE', KEYS[4], me))), look, owner or ''}
