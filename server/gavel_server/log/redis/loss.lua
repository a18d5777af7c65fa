-- Reports that one bus's log has lost an acknowledged event; append.lua refuses appends until one accepts the loss.
--
-- Nothing is written about a log without events, or about an event whose loss was accepted before.
--
-- KEYS  1 head
-- ARGV  1 the lost event: its number, a colon, its chain hash in hexadecimal digits

local call = redis.call
local fields = call('HMGET', KEYS[1], 'sequence_number', 'losses', 'accepted_losses')
local losses, accepted = fields[2] or '', fields[3] or ''
if not fields[1] or string.find(losses .. accepted, ARGV[1] .. ' ', 1, true) then return 0 end
call('HSET', KEYS[1], 'losses', losses .. ARGV[1] .. ' ')
return 1
