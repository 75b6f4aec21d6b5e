-- Replaces the row that has this version by another, or by none.
-- KEYS[1]: the row. ARGV: born, swaps and puts of the row that was seen (0 0 0: there was none); then the fields of the next one.
local key = KEYS[1]
local known = redis.call('HMGET', key, 'born', 'swaps', 'puts')
for at = 1, 3 do
  if (known[at] or '0') ~= ARGV[at] then
    return 0
  end
end
redis.call('DEL', key)
-- Lua hands over some thousands of arguments at once, and no more.
for from = 4, #ARGV, 1000 do
  redis.call('HSET', key, unpack(ARGV, from, math.min(from + 999, #ARGV)))
end
return 1
