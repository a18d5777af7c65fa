-- Removes the events before a number from one bus's log, and corrects the count in the head. The newest event always stays.
--
-- KEYS  1 log  2 head
-- ARGV  1 the first number that stays
-- Reply {'OK', entries removed} or {'CORRUPT', why}

local call = redis.call
local head = call('HMGET', KEYS[2], 'sequence_number', 'count')
local number, count = tonumber(head[1] or '0'), tonumber(head[2] or '0')
if not number or not count then return {'CORRUPT', 'the head has no numbers'} end
local stored = call('XLEN', KEYS[1])
if stored ~= count then
  return {'CORRUPT', 'the head counts ' .. count .. ' entries, the stream holds ' .. stored}
end
local first = math.min(tonumber(ARGV[1]), number)
if first <= 1 then return {'OK', 0} end
local removed = call('XTRIM', KEYS[1], 'MINID', string.format('%d-0', first))
call('HSET', KEYS[2], 'count', string.format('%d', count - removed))
return {'OK', removed}
