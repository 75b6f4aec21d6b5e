-- Puts a registration in the place of the one that has this version, or removes it.
-- KEYS[1]: the registry. ARGV: the writer, the version that was seen, the most there may be, and the next registration unless it is removed.
-- Answers a word; or, in a list, what stands there instead of a registration.
local key = KEYS[1]
local known = redis.call('HGET', key, ARGV[1])
local version = '0'
if known then
  version = string.match(known, '^(%d+) ')
  if not version then
    -- Not none: a registration that cannot be read is not replaced.
    return { string.sub(known, 1, 256) }
  end
end
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
