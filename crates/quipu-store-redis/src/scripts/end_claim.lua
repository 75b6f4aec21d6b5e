-- Ends an attempt's claim.
-- KEYS[1]: the token. ARGV: owner, attempt, and the reply if it was applied.
local key = KEYS[1]
local known = redis.call('HMGET', key, 'owner', 'attempt', 'reply')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then
  return 0
end
if ARGV[3] then
  redis.call('HSETNX', key, 'reply', ARGV[3])
  return 1
end
if known[3] then
  return 0
end
redis.call('DEL', key)
return 1
