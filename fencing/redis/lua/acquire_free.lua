-- The beginning of acquire.lua, for the common cases: the lock is free and nobody waits, or it was offered to the token; and no
-- argument is unusual. It comes before all functions, because making them takes time.

local call = redis.call
local common
if ARGV[7] then
  common = ARGV[4] == '0' and ARGV[5] == '1' and ARGV[2] ~= '' and call('GET', KEYS[1]) == ARGV[1]
    and string.sub(call('GET', KEYS[2]) or '', 1, 6) == 'offer '
else
  common = not ARGV[4] and call('EXISTS', KEYS[1], KEYS[4]) == 0
end
if common then
  local last = redis.pcall('INCR', KEYS[3]) -- a table where it holds no number: acquire.lua refuses then
  if type(last) == 'number' then
    local time = call('TIME')
    local clock = time[1] .. string.sub('00000' .. time[2], -6)
    local number
    if last > 0 and last <= 9007199254740991 then number = string.format('%.0f', last) end
    if last > 0 and last < tonumber(clock) and tonumber(clock) <= 9007199254740991 then
      number = clock
      call('SET', KEYS[3], clock)
    end
    if number then
      call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
      call('SET', KEYS[2], number .. ' ' .. ARGV[1] .. ' ' .. clock .. ' ' .. ARGV[3], 'PX', ARGV[2])
      return number
    end
    call('DECR', KEYS[3]) -- negative, or too great: acquire.lua refuses
  end
end

