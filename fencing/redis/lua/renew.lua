-- Gives each lock its full ttl again, if its token still holds it. Never takes a lock that is gone. Never changes a fence.
-- KEYS: lock 1, holder record 1, lock 2, holder record 2 … (at most 200 in all, so that one call is short)
-- ARGV: for each lock its ttl in ms, its token, and "<number> <token> ", with which the record of its grant begins
-- Returns: one character per lock: 'r' renewed, also where its record is lost, or is of another token; 'g' gone; 'o': the
--          grant with this number has ended, and a late request of its token has taken the lock again, or was offered it;
--          or the fence was forged

local call, find, keys, args = redis.call, string.find, KEYS, ARGV -- reading a global takes time
local values = call('MGET', unpack(keys)) -- false where there is none, or one of another type, which is none of ours
local results = {}
for i = 1, #keys / 2 do
  local lock, holder, token, own = 2 * i - 1, 2 * i, args[3 * i - 1], args[3 * i]
  local record = values[holder]
  if values[lock] ~= token then
    results[i] = 'g'
  elseif record and find(record, own, 1, true) ~= 1 and not is_of_grant(record, token, own) then -- mostly without a call
    results[i] = 'o'
  else
    results[i] = 'r'
    call('PEXPIRE', keys[lock], args[3 * i - 2])
    call('PEXPIRE', keys[holder], args[3 * i - 2])
  end
end
return table.concat(results)
