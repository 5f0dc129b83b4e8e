-- Gives each lock its full ttl again, if its token still holds it. Never takes a lock that is gone. Never changes a fence.
-- KEYS: lock 1, holder record 1, lock 2, holder record 2 … (at most 200 in all, so that one call is short)
-- ARGV: 1 ttl in ms, 2 token of lock 1, 3 number of lock 1, 4 token of lock 2, 5 number of lock 2 …
-- Returns: one character per lock: 'r' renewed, also where its record is lost; 'g' gone; 'o': the grant with this number has
--          ended, and a late request of its token has taken the lock again, or was offered it; or the fence was forged

-- Returns the value of a key; false where it has none, or is of another type: then it is no lock, and no record, of ours.
local function read(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'table' then return value end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then error(value.err) end
  return false
end

local results = {}
for i = 1, #KEYS / 2 do
  local lock, holder, token, number = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i], ARGV[2 * i + 1]
  results[i] = 'g'
  if read(lock) == token then
    local record, own = read(holder), number .. ' ' .. token .. ' '
    if record and string.sub(record, 1, #own) == own or is_of_grant(record, token, number) then -- mostly without a call
      results[i] = 'r'
      call('PEXPIRE', lock, ARGV[1])
      call('PEXPIRE', holder, ARGV[1])
    else
      results[i] = 'o'
    end
  end
end
return table.concat(results)
