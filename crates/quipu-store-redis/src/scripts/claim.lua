-- Claims a token that nobody holds; what is held, or asked too late, is handed back as it is, and judged by the model. So is what is not whole:
-- a claim that lost a field may have been applied.
-- KEYS[1]: the token. ARGV: owner, attempt, payload, the end of the window, and that again in the range of an expiry.
local key = KEYS[1]
local now = redis.call('TIME')
now = string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
local known = redis.call('HMGET', key, 'owner', 'attempt', 'payload', 'forget', 'reply')
local is_whole = known[1] and known[2] and known[3] and known[4] and string.find(known[4], '^%d+$')
local held
if is_whole then
  held = tonumber(known[4]) > tonumber(now)
else
  held = redis.call('HLEN', key) > 0
end
if held or tonumber(ARGV[4]) <= tonumber(now) then
  for at = 1, 5 do
    -- One byte more than the longest reply: a reply has a bound whatever stands there.
    known[at] = known[at] and string.sub(known[at], 1, 1025)
  end
  return { now, known[1], known[2], known[3], known[4], known[5] }
end
redis.call('DEL', key)
redis.call('HSET', key, 'owner', ARGV[1], 'attempt', ARGV[2], 'payload', ARGV[3], 'forget', ARGV[4])
redis.call('PEXPIREAT', key, ARGV[5])
return 1
