-- Makes a small write if one bus's log has an event: the WAIT that follows on the same connection then covers the event.
--
-- After a failover the log may have another event with this number. Redis checks its memory only before the first write of a script, and
-- does not refuse HDEL, so a Redis that is full confirms events too.
--
-- KEYS  1 log  2 head
-- ARGV  1 sequence number  2 chain hash
-- Reply 1, or 0 if the log lacks the event: nothing was written

local id = ARGV[1] .. '-0'
local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
if not entry or entry[2][4] ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[2], 'none')
redis.call('HINCRBY', KEYS[2], 'confirmations', 1)
return 1
