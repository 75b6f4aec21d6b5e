-- Puts a body of a sketch: its cell, and the pages that changed since the put that it goes on from. Whatever is not plainly that is handed back as it is, and judged by the model.
-- KEYS[1]: the row. ARGV: the cell's id, epoch, seq, what is said of it, the stride of the row's version; the seq it goes on from, or nothing; 1 if the pages are all there are;
-- whose the body is, what it is, its length; then of each page its number and its bytes, none if it is zeros.
-- Answers 1, or the time and what the row has of the cell.
local key = KEYS[1]
local cell, asked, seq, said, stride, from = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local whole, writer, shape, length = ARGV[7] == '1', ARGV[8], ARGV[9], tonumber(ARGV[10])

local function time()
  local now = redis.call('TIME')
  return string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
end

local known = redis.call('HMGET', key, 'epoch', 'expires', 'c:' .. cell, 's:' .. cell, 'b:' .. writer)
local epoch, expires, held, spent, body = known[1], known[2], known[3], known[4], known[5]
local now = time()
local due = expires and tonumber(expires) <= tonumber(now)
-- Epochs and seqs are digits of fixed width: they compare as text.
local held_seq = held and string.sub(held, 1, 20)
local open = true
if held then
  open = string.sub(held, 22, 22) == 'o'
elseif spent then
  open = string.sub(spent, 64, 64) == 'o'
end
if (epoch and (due or asked ~= epoch)) or not open or (held_seq or '') ~= from or (held and held_seq >= seq) then
  return { now, epoch, expires, held, spent }
end

-- Pages that go: all, if the put has the whole body, else those beyond its end, and those that are zeros now.
local gone = {}
if body then
  local pages = math.ceil(tonumber(string.match(body, '(%d+)$')) / 1024)
  for page = whole and 0 or math.ceil(length / 1024), pages - 1 do
    gone[#gone + 1] = 'p:' .. writer .. '.' .. page
  end
end
local come = { 'c:' .. cell, seq .. ' ' .. said, 'bodies', '1', 'b:' .. writer, shape .. ' ' .. ARGV[10] }
if not epoch then
  for _, field in ipairs({ 'born', now, 'swaps', '0', 'puts', '0', 'epoch', asked }) do
    come[#come + 1] = field
  end
end
for at = 11, #ARGV, 2 do
  local page = 'p:' .. writer .. '.' .. ARGV[at]
  if ARGV[at + 1] == '' then
    gone[#gone + 1] = page
  else
    come[#come + 1] = page
    come[#come + 1] = ARGV[at + 1]
  end
end
-- Lua hands over some thousands of arguments at once, and no more.
for first = 1, #gone, 1000 do
  redis.call('HDEL', key, unpack(gone, first, math.min(first + 999, #gone)))
end
for first = 1, #come, 1000 do
  redis.call('HSET', key, unpack(come, first, math.min(first + 999, #come)))
end
redis.call('HINCRBY', key, 'puts', stride)
return 1
