-- The beginning of acquire.lua, for the common case: this process is a member, the lock is free, and the proposal is the number.
-- It comes before all functions, because making them takes time. Its first write is the one that fails if the lock is taken.

local call = redis.call
local known = call('MGET', KEYS[4], KEYS[6], KEYS[7])
if known[1] == ARGV[6] and ARGV[4] == '0' then
  local number, counter, time = ARGV[5], call('GET', KEYS[3]), call('TIME')
  local proposal = tonumber(number)
  if (not counter or (string.find(counter, '^[1-9]%d*$') and tonumber(counter) < proposal))
    and tonumber(known[2] or '0') < proposal
    and proposal <= time[1] * 1000000 + time[2] + 60000000 and proposal <= 9007199254740991
    and call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    call('SET', KEYS[2], number .. ' ' .. ARGV[1] .. ' ' .. time[1] .. string.sub('00000' .. time[2], -6) .. ' ' .. ARGV[3],
      'PX', ARGV[2])
    call('SET', KEYS[3], number)
    if tonumber(known[3] or '0') < proposal then call('SET', KEYS[7], number) end
    return number
  end
end

