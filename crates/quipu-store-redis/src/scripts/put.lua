-- Puts cells of one counter, in order. Compares and replaces; whatever is not plainly the newest is handed back as it is, and judged by the model.
-- KEYS[1]: the row. ARGV, per cell: its id, its epoch, its seq, what is said of it ("open <value> <total>"), and the stride of the row's version.
-- Answers, per cell: 1, or the time and what the row has of the cell; and the row's version, if that or another field cannot be used.
local key = KEYS[1]

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

local answers = {}
for at = 1, #ARGV, 5 do
  local cell, asked, seq, said, stride = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local known = redis.call('HMGET', key, 'epoch', 'expires', 'c:' .. cell, 's:' .. cell, 'puts')
  local epoch, expires, held, spent, puts = known[1], known[2], known[3], known[4], known[5]
  local answer = 1
  if not epoch and redis.call('HLEN', key) == 0 then
    redis.call('HSET', key, 'born', time(), 'swaps', '0', 'puts', stride, 'epoch', asked, 'c:' .. cell, seq .. ' ' .. said)
  elseif not epoch or not puts or not is_number(puts) or (expires and not is_number(expires)) then
    answer = { time(), head(epoch), head(expires), head(held), head(spent), head(puts) }
  else
    local now = expires and time()
    local due = expires and tonumber(expires) <= tonumber(now)
    -- Epochs and seqs are digits of fixed width: they compare as text.
    local held_seq = held and string.sub(held, 1, 20)
    local open = true
    if held then
      open = string.sub(held, 22, 22) == 'o'
    elseif spent then
      open = string.sub(spent, 64, 64) == 'o'
    end
    if due or asked ~= epoch or not open or (held and seq < held_seq) then
      answer = { now or time(), head(epoch), head(expires), head(held), head(spent) }
    elseif not held or held_seq < seq then
      if #puts < 16 then
        -- One command: a tenth less time than two, and one to replicate instead of four (MULTI, both, EXEC). Lua counts exactly so far.
        puts = string.format('%.0f', tonumber(puts) + tonumber(stride))
        redis.call('HSET', key, 'c:' .. cell, seq .. ' ' .. said, 'puts', puts)
      else
        -- The one that may fail comes first: a number that the server cannot add to changes nothing.
        redis.call('HINCRBY', key, 'puts', stride)
        redis.call('HSET', key, 'c:' .. cell, seq .. ' ' .. said)
      end
    end
  end
  answers[#answers + 1] = answer
end
return answers
