-- A hash as of one moment, and the time.
-- KEYS[1]: the hash.
local now = redis.call('TIME')
return { string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000)), redis.call('HGETALL', KEYS[1]) }
