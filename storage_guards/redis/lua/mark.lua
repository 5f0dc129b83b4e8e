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

local function is_number(text) return text and #text < 17 and string.find(text, '^%d+$') end

-- Returns whether a mark keeps the number out: it must exceed each reader. A newer version of the library writes another form,
-- which this one must not change, and neither what is damaged. A seq of 18 digits can be counted up.
local function keeps_out(mark, number)
  return (mark[6] and mark[6] ~= '1')
    or (mark[5] and not (is_number(mark[5]) and tonumber(number) > tonumber(mark[5])))
    or (mark[3] and not (#mark[3] < 19 and string.find(mark[3], '^%d+$')))
end

-- Returns whether a mark has what every mark has, or is not there at all.
local function is_whole(mark)
  if mark[1] or mark[2] or mark[3] or mark[4] or mark[5] then
    local token = mark[2]
    return is_number(mark[1]) and token and (token == '' or #token > 21 and string.find(token, '^[%w_-]+$')) and mark[3]
      and mark[4] and string.find(mark[4], '^%S')
  end
  return true
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
