-- Shared by the other scripts, which are sent with this file in front of them. Nothing runs by itself.
--
-- A mark is a hash without a ttl: number, token, seq, and writes: the ids of its last writes, the newest first. The newest id
-- names the state of the mark: every write puts a new random one in front. Numbers travel as strings: a Lua number becomes a
-- double on its way to the client.

local KEPT_CHARACTERS = 16 * 13 - 1 -- 16 ids of 12 characters, and the spaces between them

-- Returns number, token, seq and writes as an array; without the last ones, if the mark is absent or damaged.
local function mark_at(key)
  return redis.call('HMGET', key, 'number', 'token', 'seq', 'writes')
end

local function newest_of(mark)
  return string.match(mark[4] or '', '^%S+') or ''
end

-- Gives the mark a new state, and returns its seq as text.
local function count_write(key, mark, id)
  redis.call('HSET', key, 'writes', string.sub(id .. ' ' .. mark[4], 1, KEPT_CHARACTERS))
  redis.call('HINCRBY', key, 'seq', 1)
  return redis.call('HGET', key, 'seq')
end

-- Returns the id of this server's history of writes; with 'master_replid2' that of the one that it continues. A server that is
-- promoted, or that starts again, begins a new history. Empty: it does not tell.
local function history(which)
  return string.match(redis.call('INFO', 'replication'), (which or 'master_replid') .. ':(%x+)') or ''
end
