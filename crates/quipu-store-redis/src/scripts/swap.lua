-- Replaces the row that has this version by another, or by none. Bodies beside it stay while its epoch does, but for those that are named.
-- KEYS[1]: the row. ARGV: born, swaps and puts of the row that was seen (0 0 0: there was none); the epoch of the next one, or nothing; how many bodies go, and whose they are;
-- then the fields of the next one, and of the bodies that come.
local key = KEYS[1]
local known = redis.call('HMGET', key, 'born', 'swaps', 'puts', 'bodies', 'epoch')
for at = 1, 3 do
  if (known[at] or '0') ~= ARGV[at] then
    return 0
  end
end
local fields = 6 + tonumber(ARGV[5])
if known[4] and known[5] == ARGV[4] then
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
