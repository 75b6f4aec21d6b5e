-- The time where this key lives.
local now = redis.call('TIME')
return string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
