-- Puts a body of a sketch: its cell, and the pages that changed since the put that it goes on from. Whatever is not plainly that is handed back as it is, and judged by the model.
-- KEYS[1]: the row. ARGV: the cell's id, epoch, seq, what is said of it, the stride of the row's version; the seq it goes on from, or nothing; 1 if the pages are all there are;
-- whose the body is, what it is, its length; then of each page its number and its bytes, none if it is zeros.
-- Answers 1, or the time and what the row has of the cell; and the row's version and what the body is, if these or another field cannot be used.
local key = KEYS[1]
local cell, asked, seq, said, stride, from = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local whole, writer, shape, length = ARGV[7] == '1', ARGV[8], ARGV[9], tonumber(ARGV[10])
-- The model's. What is longer has pages that no put of ours has made, and more of them than can be walked in a script.
local BODY_BYTES_MAX = 16777216

local function time()
  local now = redis.call('TIME')
  return string.format('%s%03d', now[1], math.floor(tonumber(now[2]) / 1000))
end

-- What Lua compares and adds: no sign, no exponent, no other base.
local function is_number(text)
  return #text <= 20 and string.find(text, '^%d+$')
end

-- What the row has, as far as this program can have written it: a reply has a bound whatever stands there.
local function head(text)
  return text and string.sub(text, 1, 256)
end

local known = redis.call('HMGET', key, 'epoch', 'expires', 'c:' .. cell, 's:' .. cell, 'puts', 'b:' .. writer)
local epoch, expires, held, spent, puts, body = known[1], known[2], known[3], known[4], known[5], known[6]
local now = time()
local body_bytes = 0
local odd
if epoch then
  odd = not puts or not is_number(puts) or (expires and not is_number(expires))
else
  odd = redis.call('HLEN', key) > 0
end
if body and #body <= 256 then
  local digits = string.match(body, '^%d+ %x+ (%d+)$')
  body_bytes = digits and is_number(digits) and tonumber(digits)
end
if odd or (body and (#body > 256 or not body_bytes or body_bytes > BODY_BYTES_MAX)) then
  return { now, head(epoch), head(expires), head(held), head(spent), head(puts), head(body) }
end
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
  return { now, head(epoch), head(expires), head(held), head(spent) }
end

-- Pages that go: all, if the put has the whole body, else those beyond its end, and those that are zeros now.
local gone = {}
if body then
  for page = whole and 0 or math.ceil(length / 1024), math.ceil(body_bytes / 1024) - 1 do
    gone[#gone + 1] = 'p:' .. writer .. '.' .. page
  end
end
local come = { 'c:' .. cell, seq .. ' ' .. said, 'bodies', '1', 'b:' .. writer, shape .. ' ' .. ARGV[10] }
if not epoch then
  for _, field in ipairs({ 'born', now, 'swaps', '0', 'puts', stride, 'epoch', asked }) do
    come[#come + 1] = field
  end
else
  -- The one that may fail comes first: a number that the server cannot add to changes nothing.
  redis.call('HINCRBY', key, 'puts', stride)
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
return 1
