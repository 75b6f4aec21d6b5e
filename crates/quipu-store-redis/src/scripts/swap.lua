-- Replaces the row that has this version by another, or by none. Bodies beside it stay while its epoch does, but for those that are named.
-- KEYS[1]: the row. ARGV: born, swaps and puts of the row that was seen (0 0 0: there was none); the epoch of the next one, or nothing; how many bodies go, and whose they are;
-- then the fields of the next one, and of the bodies that come.
-- Answers 1, or 0 if it has another version; in a list, how many fields there are, if these are more than a row may have.
local key = KEYS[1]
-- More than any row has, and few enough to be walked in a script.
local FIELDS_MAX = 1048576
local known = redis.call('HMGET', key, 'born', 'swaps', 'puts', 'bodies', 'epoch')
for at = 1, 3 do
  if (known[at] or '0') ~= ARGV[at] then
    return 0
  end
end
-- Fields without a version are no row, and not the absence of one.
if not known[1] and redis.call('HLEN', key) > 0 then
  return 0
end
local fields = 6 + tonumber(ARGV[5])
if known[4] and known[5] == ARGV[4] then
  local count = redis.call('HLEN', key)
  if count > FIELDS_MAX then
    return { count }
  end
  local named = {}
  for at = 6, fields - 1 do
    named[ARGV[at]] = true
  end
  local gone, stay = {}, false
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local kind = string.sub(field, 1, 2)
    -- A node and its life are digits of fixed width.
    if (kind == 'b:' or kind == 'p:') and not named[string.sub(field, 3, 35)] then
      stay = true
    elseif field ~= 'bodies' then
      gone[#gone + 1] = field
    end
  end
  if not stay then
    gone[#gone + 1] = 'bodies'
  end
  for first = 1, #gone, 1000 do
    redis.call('HDEL', key, unpack(gone, first, math.min(first + 999, #gone)))
  end
else
  redis.call('DEL', key)
end
-- Lua hands over some thousands of arguments at once, and no more.
for from = fields, #ARGV, 1000 do
  redis.call('HSET', key, unpack(ARGV, from, math.min(from + 999, #ARGV)))
end
return 1
