-- Shared by the scripts that only a member runs, which are sent with this file behind common.lua. Nothing runs by itself.
--
-- KEYS: the last four are fencing:1:member, fencing:1:back, fencing:1:seed and fencing:1:highest
--
-- A member is a process of Redis that was admitted. fencing:1:member holds "<run id> <longest ttl, ms> <restart wait, 0 or 1>".
-- A client sends the same words as the last argument, with the run id of the process that it is connected to. After a restart,
-- or after a loss of all data, they differ, and the node grants nothing: see join.lua.
--
-- A later version may put "2:" in front of either, and then keeps all keys of this node in its own way.
--
-- The state of a process that is no member is "<run id> <since when, us> us", in fencing:1:back. A later loss of data makes
-- another one.

local MEMBER, BACK, SEED, HIGHEST = unpack(KEYS, #KEYS - 3)

-- Returns how many ms this process must still wait before it is admitted. The first call notes the moment.
local function ms_to_wait(run_id, longest)
  local now, since_now = server_clock_us()
  local back_id, since = string.match(redis.call('GET', BACK) or '', '^(%S+) (%d+) us$')
  if back_id ~= run_id then
    since = since_now
    redis.call('SET', BACK, run_id .. ' ' .. since .. ' us')
  end
  return math.max(0, tonumber(longest) - math.floor((now - tonumber(since)) / 1000))
end

-- Returns nil if this process is a member, or else the reply that refuses.
local function refuse_stranger()
  local given = ARGV[#ARGV]
  local member = redis.call('GET', MEMBER)
  if member == given then return nil end
  for _, key in ipairs({MEMBER, BACK}) do
    if string.find(redis.call('GET', key) or '', '^%d+:') then
      return redis.error_reply('FENCING the key ' .. key .. ' does not hold what this version knows')
    end
  end
  local run_id, longest, wait = string.match(given, '^(%S+) (%d+) ([01])$')
  local old_id, old_longest, old_wait = string.match(member or '', '^(%S+) (%d+) ([01])$')
  if old_id then
    if old_longest ~= longest or old_wait ~= wait then return {'setting', old_longest, old_wait} end
    if wait == '0' or old_id == run_id then
      redis.call('SET', MEMBER, given)
      return nil
    end
  end
  return {'back', ms_to_wait(run_id, longest), redis.call('GET', HIGHEST) or '0'}
end

-- Raises the counter, and the highest number of this node, which is never lowered. A counter that holds no number stays.
local function raise_numbers(counter_key, number)
  local counter = counter_of(counter_key)
  if counter and counter < number then redis.call('SET', counter_key, text_of(number)) end
  if tonumber(redis.call('GET', HIGHEST) or '0') < number then redis.call('SET', HIGHEST, text_of(number)) end
end

