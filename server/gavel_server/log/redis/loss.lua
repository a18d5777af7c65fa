-- Reports that one bus's log has lost an acknowledged event; append.lua refuses appends until one accepts the loss.
--
-- Nothing is written about a log without events, or about an event whose loss was accepted before. If the head has as many accepted losses
-- as it keeps, earlier events count as accepted too: append.lua may have dropped them. A Redis that is full takes the report: the first
-- write is HDEL, as in confirm.lua.
--
-- KEYS  1 head
-- ARGV  1 the lost event: its number, a colon, its chain hash in hexadecimal digits
--       2 accepted losses that the head keeps, sorted by number

local call = redis.call
local fields = call('HMGET', KEYS[1], 'sequence_number', 'losses', 'accepted_losses')
local losses, accepted = fields[2] or '', fields[3] or ''
if not fields[1] or string.find(losses .. accepted, ARGV[1] .. ' ', 1, true) then return 0 end
local _, count = string.gsub(accepted, '%S+', '')
if count >= tonumber(ARGV[2]) and tonumber(string.match(ARGV[1], '^%d+')) <= tonumber(string.match(accepted, '^%d+') or 0) then return 0 end
call('HDEL', KEYS[1], 'none')
call('HSET', KEYS[1], 'losses', losses .. ARGV[1] .. ' ')
return 1
