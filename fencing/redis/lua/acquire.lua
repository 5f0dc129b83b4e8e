-- Takes the lock if it is free and has no waiters, or if it was offered to the token; mints its fencing number. The same
-- token again gets the same number, and the full ttl again. Otherwise a caller that waits is put into the queue,
-- unless it is full.
-- KEYS: 1 lock, 2 holder record, 3 counter, 4 queue, 5 listeners (all in one slot)
-- ARGV: 1 token, 2 ttl in ms ('' for none), 3 owner label; and, unless all the rest are the default ones:
--       4 floor: a number to exceed ('0' for none), 5 '1': the server's clock in us is a floor too, 6 listener of the
--       waiter ('': the caller does not wait), 7 ticket that the waiter got before ('' for none); and, where their number is
--       limited, 8 how many may wait
-- Returns: number
--        | {'taken', ms until it frees itself, or -1, owner label, or ''}
--        | {'queued', ticket, ms after which to ask again, owner label, or ''}
--        | {'full', how many wait, owner label, or ''}
--        | {'implausible', number, ceiling}
--        The refusals end with 'offered' where the lock is being offered to an earlier waiter.

local token, listener = ARGV[1], ARGV[6] or ''
local own_entry = listener .. ' ' .. token
local holder = redis.call('GET', KEYS[1])
local queued = holder and 1 or redis.call('ZCARD', KEYS[4])

if holder == token then
  local number = granted_before(KEYS[1], KEYS[2], token, ARGV[2])
  if number then return number end
end
-- The queue was lost, or the listener was removed from it. Its other waiters must come back, too.
local function call_others_back() publish(listener, 'passed * ' .. KEYS[1]) end

if holder == token or queued == 0 then
  if listener ~= '' then leave_queue(KEYS[4], KEYS[5], listener, own_entry) end
  if not holder and (ARGV[7] or '') ~= '' then call_others_back() end -- it waited, and is not in the queue
  return mint()
end

-- Returns how many wait where no more may; nil where the caller may, or is in the queue already, or was.
local function waiting_if_full()
  local limit = tonumber(ARGV[8] or '')
  if not limit or ARGV[7] ~= '' or redis.call('ZSCORE', KEYS[4], own_entry) then return nil end
  local waiting = redis.call('ZCARD', KEYS[4])
  if waiting >= limit then waiting = waiting - drop_dead(KEYS[4], KEYS[5]) end
  return waiting >= limit and waiting or nil
end

local function enqueue()
  local ticket = ARGV[7]
  if ticket == '' then
    local last = redis.call('ZREVRANGE', KEYS[4], 0, 0, 'WITHSCORES')[2]
    ticket = text_of(math.max(server_clock_us(), (tonumber(last) or 0) + 1))
  end
  if join_queue(KEYS[4], KEYS[5], listener, own_entry, ticket) and ARGV[7] ~= '' then call_others_back() end
end

if not holder then
  local next, refused = check_mint(KEYS[3], tonumber(ARGV[4] or '0'), ARGV[5] or '1', (server_clock_us()))
  if not next then return refused end
  if listener ~= '' and not waiting_if_full() then enqueue() end
  local entries, listeners = sizes_of(KEYS[4], KEYS[5])
  local dropped, ended = drop_silent(KEYS[1], KEYS[2], KEYS[4], KEYS[5], listener)
  local offered = hand_over(KEYS[1], KEYS[2], KEYS[4], KEYS[5], own_entry, entries - dropped, listeners - ended)
  if offered == own_entry or not offered then
    if listener ~= '' then leave_queue(KEYS[4], KEYS[5], listener, own_entry) end
    return mint()
  end
  holder = redis.call('GET', KEYS[1])
end

local record_number, _, owner = record_of(KEYS[2], holder)
local left = redis.call('PTTL', KEYS[1])

-- Returns the refusal. An offer has the lock for a moment only, and its record is no holder's.
local function refusal(...)
  local reply = {...}
  local is_offer = not record_number and left >= 0 and left <= ACCEPT_MS
  if is_offer and string.match(redis.call('GET', KEYS[2]) or '', '^offer %S+$') then reply[#reply + 1] = 'offered' end
  return reply
end

if listener == '' then return refusal('taken', left, owner or '') end

local counter, refused = counter_of(KEYS[3]) -- of a newer version: then the queue is, too
if not counter then return refused end
local waiting = waiting_if_full()
if waiting then return refusal('full', waiting, owner or '') end
enqueue()
local recheck = LONGEST_RECHECK_MS
if left >= 0 then recheck = math.min(recheck, left + 2) end -- PTTL rounds; a key lives to the end of its millisecond
if not record_number then recheck = math.min(recheck, FOREIGN_RECHECK_MS) end
local before = redis.call('ZRANK', KEYS[4], own_entry) -- the first waiter rechecks first, and the others soon if it is an offer
if before > 0 then recheck = recheck + (record_number and ACCEPT_MS or math.min(before * BEHIND_MS, SPREAD_MS)) end
local ticket = tonumber(redis.call('ZSCORE', KEYS[4], own_entry))
local new_for = new_for_ms(ticket)
if new_for > 0 then recheck = math.min(recheck, new_for + 1) end -- the next time it is new no more
return refusal('queued', text_of(ticket), recheck, owner or '')
