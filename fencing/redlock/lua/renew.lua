-- Gives each lock its full ttl again, if its token still holds it here with no higher number; the number becomes the record's
-- then. With one lock this is also the second round of a grant. Never takes a lock that is gone.
-- KEYS: lock 1, holder record 1, counter 1, lock 2 … (at most 300, so that one call is short); the last four are those of
--       member.lua
-- ARGV: 1 ttl in ms, 2 token of lock 1, 3 number of lock 1, 4 token of lock 2 …; the last argument is that of member.lua
-- Returns: one character per lock: 'r' renewed; 'g' gone, or another one's; 'o': the record has a higher number
--        | {'back', ms to wait, highest number} | {'setting', longest ttl in ms, restart wait}

local refused = refuse_stranger()
if refused then return refused end
local call = redis.call
local results = {}
for i = 1, (#KEYS - 4) / 3 do
  local lock, holder, counter, token, number = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], ARGV[2 * i], ARGV[2 * i + 1]
  results[i] = 'g'
  if redis.pcall('GET', lock) == token then
    local own, granted, owner = record_of(holder, token)
    local given = tonumber(number)
    if own and tonumber(own) > given then
      results[i] = 'o'
    else
      results[i] = 'r'
      if own ~= number then
        if not own then granted, owner = select(2, server_clock_us()), '' end
        call('SET', holder, number .. ' ' .. token .. ' ' .. granted .. ' ' .. owner)
        raise_numbers(counter, given)
      end
      call('PEXPIRE', lock, ARGV[1])
      call('PEXPIRE', holder, ARGV[1])
    end
  end
end
return table.concat(results)
