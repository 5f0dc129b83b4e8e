-- Runs commands, in order, up to the first that fails. What was done before it stays done: Redis has no rollback.
-- KEYS, ARGV: as check.lua; ARGV then has each command: how many parts, the parts
-- Returns: {'ok', seqs, {replies}}, or {'failed', seqs, which (from 1), error}

local replies, at = {}, 3 * count + 4
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, last))
  if type(reply) == 'table' and reply.err then return {'failed', seqs, #replies + 1, reply.err} end
  replies[#replies + 1] = reply
  at = last + 1
end
return {'ok', seqs, replies}
