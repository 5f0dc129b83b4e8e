-- Shared by the scripts that grant, which are sent with this file behind common.lua and member.lua. Nothing runs by itself.
-- KEYS: 1 lock, 2 holder record, 3 counter; the last four are those of member.lua
-- ARGV: 1 token, 2 ttl in ms, 3 owner label, 4 floor: a number to exceed ('0' for none), 5 proposal: a number that all nodes
--       are given alike, so that they mint the same one

local PROPOSAL_AHEAD = 60000000 -- us: a proposal that is further ahead of this node's clock is ignored

-- Gives the lock to the token, and returns the number: above the counter, the seed and the floor, and at least the proposal.
local function grant()
  local token, ttl, owner = ARGV[1], ARGV[2], ARGV[3]
  local clock, clock_text = server_clock_us()
  local next, refused = check_mint(KEYS[3], tonumber(ARGV[4]), '0', clock)
  if not next then return refused end
  local proposal = tonumber(ARGV[5])
  if proposal > clock + PROPOSAL_AHEAD then proposal = 1 end
  next = math.max(next, tonumber(redis.call('GET', SEED) or '0') + 1, proposal)
  if next > MAX_NUMBER then return {'implausible', text_of(next - 1), text_of(MAX_NUMBER - 1)} end
  local number = text_of(next)
  redis.call('SET', KEYS[1], token, 'PX', ttl)
  redis.call('SET', KEYS[2], number .. ' ' .. token .. ' ' .. clock_text .. ' ' .. owner, 'PX', ttl)
  raise_numbers(KEYS[3], next)
  return number
end

-- Describes the holder in a refusal. Its token stays secret: clients compare a digest.
local function taken(holder)
  local _, _, owner = record_of(KEYS[2], holder)
  return {'taken', redis.call('PTTL', KEYS[1]), owner or '', digest_of(holder)}
end

