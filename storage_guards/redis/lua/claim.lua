-- Raises the marks to the fences: all or none. A claim of the mark's own fence changes nothing. Readers are kept, and each one
-- must be exceeded.
-- KEYS: the marks
-- ARGV: 1 '1': return INFO memory too; 2 an id for marks that are made; then of each mark: number, token
-- Returns: {'ok', INFO memory or '', the server's history, {mark 1, mark 2 …}}, or {'stale', which (from 0), mark}, also where a
-- newer version has written it, or it is damaged. The marks are an array of their own: unpack() fails where there are 8,000, and
-- then they are raised already.

local marks = {}
for i, key in ipairs(KEYS) do
  local number, token, mark = ARGV[2 * i + 1], ARGV[2 * i + 2], mark_at(key)
  local is_own = mark[1] == number and mark[2] == token
  if keeps_out(mark, number) or not is_whole(mark) or (mark[1] and not is_own and tonumber(number) <= tonumber(mark[1])) then
    return {'stale', i - 1, mark}
  end
  marks[i] = mark
end
for i, key in ipairs(KEYS) do
  local number, token, mark = ARGV[2 * i + 1], ARGV[2 * i + 2], marks[i]
  if not (mark[1] == number and mark[2] == token) then
    marks[i] = {number, token, '0', mark[4] or ARGV[2], mark[5], mark[6]}
    redis.call('HSET', key, 'number', number, 'token', token, 'seq', '0', 'writes', marks[i][4])
  end
end
return {'ok', ARGV[1] == '1' and redis.call('INFO', 'memory') or '', history(), marks}
