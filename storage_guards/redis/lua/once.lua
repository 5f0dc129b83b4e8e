-- Sent within check.lua, in front of the line that counts the write: looks whether a key was done before. Where as many keys are
-- noted as may be, the lowest goes and becomes the floor: an absent key at or below it is refused. Defines note(), which is called
-- behind check.lua.
-- KEYS: the mark, the hash of what was done, those of the data
-- ARGV: those of check.lua; the key, the most keys; then what check.lua goes on with
-- Returns: {'done', '<number> <µs> <id>'}, {'too old', the floor}, or goes on without these keys and arguments

-- By bytes: Lua itself compares as the server's locale does.
local function is_above(key, other)
  for i = 1, math.min(#key, #other) do
    local mine, its = string.byte(key, i), string.byte(other, i)
    if mine ~= its then return mine > its end
  end
  return #key > #other
end

local done, key, most = KEYS[2], ARGV[7], tonumber(ARGV[8])
local before, floor = redis.call('HGET', done, key), redis.call('HGET', done, '')
if before then return {'done', before} end
if floor and not is_above(key, floor) then return {'too old', floor} end
local time = redis.call('TIME')
local value = string.format('%s %d%06d %s', ARGV[4], tonumber(time[1]), tonumber(time[2]), ARGV[2])
if redis.call('HLEN', done) - (floor and 1 or 0) >= most then
  local lowest = key
  for _, each in ipairs(redis.call('HKEYS', done)) do
    if each ~= '' and is_above(lowest, each) then lowest = each end
  end
  redis.call('HSET', done, '', lowest)
  if lowest == key then value = nil else redis.call('HDEL', done, lowest) end
end

-- Notes the key: called when the write was counted, for until then a permission may turn out to be missing.
local function note()
  if value then redis.call('HSET', done, key, value) end
end

local kept_keys, kept_args = {KEYS[1]}, {unpack(ARGV, 1, 6)}
for i = 3, #KEYS do kept_keys[i - 1] = KEYS[i] end
for i = 9, #ARGV do kept_args[i - 2] = ARGV[i] end
local KEYS, ARGV = kept_keys, kept_args
