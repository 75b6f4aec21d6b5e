-- Puts back a claim that the store has lost, with its reply. An open claim of the same node gets the reply; any other, and what is not whole, is handed
-- back as it is, and judged by the model.
-- KEYS[1]: the token. ARGV: owner, attempt, payload, the end of the window, that again in the range of an expiry, and the reply if there is one.
local key = KEYS[1]
local now = redis.call('TIME')
now = string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
local known = redis.call('HMGET', key, 'owner', 'attempt', 'payload', 'forget', 'reply')
local is_whole = known[1] and known[2] and known[3] and known[4] and string.find(known[4], '^%d+$')
local is_late = tonumber(ARGV[4]) <= tonumber(now)
if is_whole and not is_late and tonumber(known[4]) > tonumber(now) then
  -- Up to the dot, an owner is a node.
  local is_own = string.sub(known[1], 1, 17) == string.sub(ARGV[1], 1, 17)
  if is_own and not known[5] and known[3] == ARGV[3] then
    if ARGV[6] then
      redis.call('HSET', key, 'reply', ARGV[6])
    end
    return 1
  end
elseif not is_late and (is_whole or redis.call('HLEN', key) == 0) then
  redis.call('DEL', key)
  redis.call('HSET', key, 'owner', ARGV[1], 'attempt', ARGV[2], 'payload', ARGV[3], 'forget', ARGV[4])
  if ARGV[6] then
    redis.call('HSET', key, 'reply', ARGV[6])
  end
  redis.call('PEXPIREAT', key, ARGV[5])
  return 1
end
for at = 1, 5 do
  -- One byte more than the longest reply: a reply has a bound whatever stands there.
  known[at] = known[at] and string.sub(known[at], 1, 1025)
end
return { now, known[1], known[2], known[3], known[4], known[5] }
