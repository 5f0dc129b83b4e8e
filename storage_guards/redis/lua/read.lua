-- Runs one command that reads, if each mark is still as the block has found it. So the reply comes from a server that has them.
-- KEYS: the marks, then those of the command
-- ARGV: 1 how many marks; then of each mark: number, token, expected newest id; then the command
-- Returns: {'changed', which (from 0), mark}, or {'ok', its reply}

local count = tonumber(ARGV[1])
for i = 1, count do
  local mark = mark_at(KEYS[i])
  if mark[1] ~= ARGV[3 * i - 1] or mark[2] ~= ARGV[3 * i] or newest_of(mark) ~= ARGV[3 * i + 1]
    or keeps_out(mark, mark[1]) then
    return {'changed', i - 1, mark}
  end
end
return {'ok', redis.pcall(unpack(ARGV, 3 * count + 2))}
