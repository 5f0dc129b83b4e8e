-- Shared by the other scripts, which are sent with this file in front of them. Nothing runs by itself.
--
-- The holder record is one string, "<number> <token> <grant time, us> <owner label>"; it is believed only while its
-- token equals the lock's. "<grant time>-<release time>" says that the holder has released the lock, which stays taken until
-- its ttl ends: this version never writes it. Numbers travel as strings: a Lua number becomes a double on its way to the client.

local MAX_NUMBER = 9007199254740991 -- 2^53 - 1
local PLAUSIBLE_STEP = 1125899906842624 -- 2^50: as microseconds about 35 years

local function text_of(number)
  return string.format('%.0f', number) -- tostring() would write 1e+15
end

-- Returns the server's clock in microseconds, as a number and as text.
local function server_clock_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], time[1] .. string.sub('00000' .. time[2], -6)
end

-- Returns number, grant time, owner label and "-<release time>", or '', from a holder record; nil where it is lost, or not of
-- this token.
local function parts_of(record, token)
  local number, record_token, granted, released, owner = string.match(record or '', '^(%d+) (%S+) (%d+)(%-?%d*) (.*)$')
  if record_token ~= token or released == '-' then return nil end
  return number, granted, owner, released
end

local function record_of(holder_key, token) return parts_of(redis.call('GET', holder_key), token) end

-- Returns what stands for a token where the token itself is not told: see kernel/fence.py.
local function digest_of(token) return string.sub(redis.sha1hex(token), 1, 16) end

-- Returns the counter; or nil and the reply that refuses: a later version may keep something else under this name.
local function counter_of(counter_key)
  local counter = redis.call('GET', counter_key) or '0'
  if counter == '0' or string.match(counter, '^[1-9]%d*$') then return tonumber(counter) end
  return nil, redis.error_reply('FENCING the counter ' .. counter_key .. ' does not hold a number')
end

-- Returns the next number, and the counter; or nil and the reply that refuses. Writes nothing.
local function check_mint(counter_key, floor, clock_floor, clock)
  local counter, refused = counter_of(counter_key)
  if not counter then return nil, refused end
  local ceiling = math.max(counter, clock) + PLAUSIBLE_STEP
  if floor > ceiling then return nil, {'implausible', text_of(floor), text_of(ceiling)} end
  local number = math.max(counter, floor) + 1
  if clock_floor == '1' then number = math.max(number, clock) end
  if number > MAX_NUMBER then return nil, {'implausible', text_of(number - 1), text_of(MAX_NUMBER - 1)} end
  return number, counter
end

local function set(key, value, ttl)
  if ttl == '' then redis.call('SET', key, value) else redis.call('SET', key, value, 'PX', ttl) end
end

-- Answers a repeated request of the token that holds the lock: gives it the full ttl again, and returns its number. Returns
-- nil where the token has no number yet.
local function granted_before(lock_key, holder_key, token, ttl)
  local number = record_of(holder_key, token)
  if number and ttl ~= '' then
    redis.call('PEXPIRE', lock_key, ttl)
    redis.call('PEXPIRE', holder_key, ttl)
  end
  return number
end

-- Mints the next number, gives the lock to the token, and returns the number. All checks come before the first write, because
-- Redis does not roll scripts back. The minting scripts share KEYS 1 to 3 and ARGV 1 to 5: 1 token, 2 ttl in ms ('' for none),
-- 3 owner label, 4 floor: a number to exceed ('0' for none), 5 '1': the server's clock in us is a floor too.
local function mint()
  local token, ttl, owner = ARGV[1], ARGV[2], ARGV[3]
  local clock, clock_text = server_clock_us()
  local next, counter = check_mint(KEYS[3], tonumber(ARGV[4] or '0'), ARGV[5] or '1', clock)
  if not next then return counter end
  redis.call('INCRBY', KEYS[3], text_of(next - counter))
  local number = text_of(next) -- exact below 2^53; INCRBY's own reply would reach the client as a double
  set(KEYS[1], token, ttl)
  set(KEYS[2], number .. ' ' .. token .. ' ' .. clock_text .. ' ' .. owner, ttl)
  return number
end

