-- A hash as of one moment, and the time.
-- KEYS[1]: the hash. ARGV: how many fields it may have, and how long one may be.
-- Answers the time and the fields; or instead of these how many there are, or the name of one that is too long.
local key = KEYS[1]
local now = redis.call('TIME')
now = string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
local count = redis.call('HLEN', key)
if count > tonumber(ARGV[1]) then
  return { now, count }
end
local fields, most = redis.call('HGETALL', key), tonumber(ARGV[2])
for at = 1, #fields, 2 do
  if #fields[at] > most or #fields[at + 1] > most then
    return { now, string.sub(fields[at], 1, 80) }
  end
end
return { now, fields }
