-- Shared by renew.lua and remint.lua, which are sent with this file in front of them. Nothing runs by itself.
--
-- A token whose grant has ended can hold the lock again: its request arrived late. That grant has another number. Or the lock is
-- offered to the token, which has no number yet.

-- Returns whether the holder record, of a lock that the token holds, is of the grant whose record begins with `own`, which is
-- "<number> <token> ". A record that is lost, or of another token, says nothing else.
local function is_of_grant(record, token, own)
  if not record or string.sub(record, 1, #own) == own then return true end
  return string.sub(record, 1, 6) ~= 'offer ' and not string.find(record, ' ' .. token .. ' ', 1, true)
end

