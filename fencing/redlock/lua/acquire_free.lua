-- The beginning of acquire.lua, for the common case: this process is a member, the lock is free, and the proposal is the number.
-- It comes before all functions, because making them takes time.

local call = redis.call
if ARGV[4] == '0' and call('GET', 'fencing:1:member') == ARGV[6] and call('EXISTS', KEYS[1]) == 0 then
  local counter = call('GET', KEYS[3])
  local others = call('MGET', 'fencing:1:seed', 'fencing:1:highest')
  local time = call('TIME')
  local proposal = tonumber(ARGV[5])
  if (not counter or (string.find(counter, '^[1-9]%d*$') and tonumber(counter) < proposal))
    and tonumber(others[1] or '0') < proposal
    and proposal <= time[1] * 1000000 + time[2] + 60000000 and proposal <= 9007199254740991 then
    local number = ARGV[5]
    call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    call('SET', KEYS[2], number .. ' ' .. ARGV[1] .. ' ' .. time[1] .. string.sub('00000' .. time[2], -6) .. ' ' .. ARGV[3],
      'PX', ARGV[2])
    call('SET', KEYS[3], number)
    if tonumber(others[2] or '0') < proposal then call('SET', 'fencing:1:highest', number) end
    return number
  end
end

