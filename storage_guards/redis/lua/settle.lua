-- Finds out whether a write whose reply was lost has landed. Where it still may, gives the mark a new state: then it cannot.
-- "Never" is said only in the history that the write names, or in the one that continues it: a former primary knows nothing of
-- what its successor has accepted.
-- KEYS: the mark
-- ARGV: 1 number, 2 token, 3 the write's id, 4 the newest id that it expected, 5 the history that it names, 6 a new id
-- Returns: {'landed'}, {'never'} or {'unknown'}, or {'changed', 0, mark}: a newer version has written it, or it is damaged

local mark, found = mark_at(KEYS[1]), {}
if (mark[6] and mark[6] ~= '1') or not is_whole(mark) then return {'changed', 0, mark} end
for id in string.gmatch(mark[4] or '', '%S+') do found[id] = true end
if found[ARGV[3]] then return {'landed'} end
if ARGV[5] == '' or (ARGV[5] ~= history() and ARGV[5] ~= history('master_replid2')) then return {'unknown'} end
if not found[ARGV[4]] then return {'unknown'} end
local is_own = newest_of(mark) == ARGV[4] and mark[1] == ARGV[1] and mark[2] == ARGV[2]
if is_own and not keeps_out(mark, mark[1]) then count_write(KEYS[1], mark, ARGV[6]) end
return {'never'}
