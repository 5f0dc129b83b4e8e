-- Sent in front of what writes: checks that each mark admits its fence in the expected state, and counts the write. It is
-- accepted only in the history that it names: so it is known where it may still land.
-- KEYS: the marks, then those of the data
-- ARGV: 1 how many marks, 2 the id of this write, 3 the server's history; then of each mark: number, token, expected newest id
-- Returns: {'changed', which (from 0), mark}, {'elsewhere', the history of this server}, or goes on with `seqs`, the seq of each
-- mark after the write

local count, seqs, checked = tonumber(ARGV[1]), {}, {}
for i = 1, count do
  local mark = mark_at(KEYS[i])
  if mark[1] ~= ARGV[3 * i + 1] or mark[2] ~= ARGV[3 * i + 2] or newest_of(mark) ~= ARGV[3 * i + 3]
    or not mark[3] or keeps_out(mark, mark[1]) then
    return {'changed', i - 1, mark}
  end
  checked[i] = mark
end
local here = history()
if here ~= ARGV[3] then return {'elsewhere', here} end
for i = 1, count do seqs[i] = count_write(KEYS[i], checked[i], ARGV[2]) end

local function text_of(failure)
  return type(failure) == 'table' and failure.err or tostring(failure)
end
