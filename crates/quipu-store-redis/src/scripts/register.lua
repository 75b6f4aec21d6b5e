-- Puts a registration in the place of the one that has this version, or removes it.
-- KEYS[1]: the registry. ARGV: the writer, the version that was seen, the most there may be, and the next registration unless it is removed.
local key = KEYS[1]
local known = redis.call('HGET', key, ARGV[1])
local version = known and string.match(known, '^%d+') or '0'
if version ~= ARGV[2] then
  return 'moved'
end
if ARGV[4] then
  if not known and redis.call('HLEN', key) >= tonumber(ARGV[3]) then
    return 'full'
  end
  redis.call('HSET', key, ARGV[1], ARGV[4])
elseif known then
  redis.call('HDEL', key, ARGV[1])
else
  return 'moved'
end
return 'registered'
