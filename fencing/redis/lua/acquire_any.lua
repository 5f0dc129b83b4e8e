-- Takes the first slot that is free and has no waiters, from a place on, and mints its fencing number. A token that holds a slot
-- gets the same slot and number again, and the full ttl: it is looked for in all of them first, so it never has two.
-- KEYS: for each slot lock, holder record, queue, listeners; and at the end the counter (all in one slot of a Cluster)
-- ARGV: 1 token, 2 ttl in ms ('' for none), 3 owner label, 4 floor ('0': none), 5 '1': the server's clock in us is a floor too,
--       6 the place: the slot that is tried first, from 0 on
-- Returns: '<number> <slot>', slots from 0 on
--        | {'taken', ms until the first of them frees itself, or -1, its holder's label, or '', a slot that is free and has
--          waiters, or -1}
--        | {'implausible', number, ceiling}

local token, first = ARGV[1], tonumber(ARGV[6])
local slots, counter_key = (#KEYS - 1) / 4, KEYS[#KEYS]
local function lock_of(slot) return KEYS[4 * slot + 1] end
local function record_key_of(slot) return KEYS[4 * slot + 2] end

-- Mints for a slot, and returns the reply: a refusal is no text. Nothing else may follow: it replaces the keys that mint() reads.
local function grant(slot)
  KEYS[1], KEYS[2], KEYS[3] = lock_of(slot), record_key_of(slot), counter_key
  local number = mint()
  return type(number) == 'string' and number .. ' ' .. slot or number
end

local holders = {}
for slot = 0, slots - 1 do
  holders[slot] = redis.pcall('GET', lock_of(slot)) -- a table where another kind of data has the name
  if holders[slot] == token then
    local number = granted_before(lock_of(slot), record_key_of(slot), token, ARGV[2])
    return number and number .. ' ' .. slot or grant(slot)
  end
end

local waited_for, least, soonest = -1, -1, -1
for i = 0, slots - 1 do
  local slot = (first + i) % slots
  if not holders[slot] then
    if redis.call('EXISTS', KEYS[4 * slot + 3]) == 0 then return grant(slot) end
    if waited_for < 0 then waited_for = slot end
  else
    local left = redis.call('PTTL', lock_of(slot))
    if soonest < 0 or (left >= 0 and (least < 0 or left < least)) then least, soonest = left, slot end
  end
end
local _, owner
if soonest >= 0 then _, _, owner = record_of(record_key_of(soonest), holders[soonest]) end
return {'taken', least, owner or '', waited_for}
