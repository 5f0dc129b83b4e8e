-- Gives each lock its full ttl again, if its token still holds it here with no higher number; the number becomes the record's
-- then. With one lock this is also the second round of a grant. Never takes a lock that is gone.
-- KEYS: lock 1, holder record 1, counter 1, lock 2 … (at most 300, so that one call is short); the last four are those of
--       member.lua
-- ARGV: for each lock its ttl in ms, its token, and "<number> <token> ", with which the record of its grant begins; the last
--       argument is that of member.lua
-- Returns: one character per lock: 'r' renewed; 'g' gone, or another one's; 'o': the record has a higher number
--        | {'back', ms to wait, highest number} | {'setting', longest ttl in ms, restart wait}

local refused = refuse_stranger()
if refused then return refused end
local call, find, keys, args = redis.call, string.find, KEYS, ARGV -- reading a global takes time
local values = call('MGET', unpack(keys, 1, #keys - 4)) -- false where there is none, or one of another type
local results = {}
for i = 1, (#keys - 4) / 3 do
  local lock, holder, token, own = 3 * i - 2, 3 * i - 1, args[3 * i - 1], args[3 * i]
  local record = values[holder]
  results[i] = values[lock] == token and 'r' or 'g'
  if results[i] == 'r' and not (record and find(record, own, 1, true) == 1) then -- mostly it is of this grant
    local number, granted, owner, released = parts_of(record, token)
    local given = string.match(own, '^%d+')
    if number and tonumber(number) > tonumber(given) then
      results[i] = 'o'
    else
      if not number then granted, owner, released = select(2, server_clock_us()), '', '' end
      call('SET', keys[holder], own .. granted .. released .. ' ' .. owner)
      raise_numbers(keys[3 * i], tonumber(given))
    end
  end
  if results[i] == 'r' then
    call('PEXPIRE', keys[lock], args[3 * i - 2])
    call('PEXPIRE', keys[holder], args[3 * i - 2])
  end
end
return table.concat(results)
