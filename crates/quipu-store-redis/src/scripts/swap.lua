-- Replaces the row that has this version by another, or by none. Bodies beside it stay while its epoch does.
-- KEYS[1]: the row. ARGV: born, swaps and puts of the row that was seen (0 0 0: there was none); the epoch of the next one, or nothing; then its fields.
local key = KEYS[1]
local known = redis.call('HMGET', key, 'born', 'swaps', 'puts', 'bodies', 'epoch')
for at = 1, 3 do
  if (known[at] or '0') ~= ARGV[at] then
    return 0
  end
end
if known[4] and known[5] == ARGV[4] then
  local gone = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local kind = string.sub(field, 1, 2)
    if field ~= 'bodies' and kind ~= 'b:' and kind ~= 'p:' then
      gone[#gone + 1] = field
    end
  end
  for first = 1, #gone, 1000 do
    redis.call('HDEL', key, unpack(gone, first, math.min(first + 999, #gone)))
  end
else
  redis.call('DEL', key)
end
-- Lua hands over some thousands of arguments at once, and no more.
for from = 5, #ARGV, 1000 do
  redis.call('HSET', key, unpack(ARGV, from, math.min(from + 999, #ARGV)))
end
return 1
