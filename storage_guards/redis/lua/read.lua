-- Runs one command that reads.
-- KEYS: of the command
-- ARGV: the command
-- Returns: {its reply}

return {redis.pcall(unpack(ARGV))}
