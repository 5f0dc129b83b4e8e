-- Shared by the other scripts, which are sent with this file in front of them. Nothing runs by itself.
--
-- A mark is a hash without a ttl: number, token, seq, and writes: the ids of its last writes, the newest first. The newest id
-- names the state of the mark: every write puts a new random one in front. Numbers travel as strings: a Lua number becomes a
-- double on its way to the client.
--
-- Later versions write more, which this one reads and keeps. readers: the highest number of a reader that was admitted; not
-- there: none. An empty token: no writer was admitted yet, and number is what the first one must exceed, too. version: not
-- there, or '1': this form.

local KEPT_CHARACTERS = 16 * 13 - 1 -- 16 ids of 12 characters, and the spaces between them

-- Returns number, token, seq, writes, readers and version as an array; false for what is not there.
local function mark_at(key)
  return redis.call('HMGET', key, 'number', 'token', 'seq', 'writes', 'readers', 'version')
end

-- Returns whether a mark with readers or a version keeps the number out: it must exceed each reader, and nothing is above what is
-- no number. A newer version of the library writes another form, which this one must not change.
local function keeps_out(mark, number)
  return (mark[6] and mark[6] ~= '1') or (mark[5] and tonumber(number) <= (tonumber(mark[5]) or math.huge))
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
