-- The beginning of release.lua, for the common case: nobody waits. It comes before all functions, because making them takes
-- time.

local call = redis.call
if not ARGV[2] and call('GET', KEYS[1]) == ARGV[1] and call('EXISTS', KEYS[3]) == 0 then
  return call('DEL', KEYS[1], KEYS[2])
end

