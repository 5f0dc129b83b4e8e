-- The beginning of renew.lua, for one lock, as mostly in a Cluster, where a call has one slot. It comes before all functions,
-- because making them takes time.

local call = redis.call
if #KEYS == 2 and redis.pcall('GET', KEYS[1]) == ARGV[2] then
  local record, own = redis.pcall('GET', KEYS[2]), ARGV[3] .. ' ' .. ARGV[2] .. ' '
  if type(record) == 'string' and string.sub(record, 1, #own) == own then
    call('PEXPIRE', KEYS[1], ARGV[1])
    call('PEXPIRE', KEYS[2], ARGV[1])
    return 'r'
  end
end

