-- Replaces the published checkpoint of one bus, if it is still the one that the caller has seen.
--
-- KEYS  1 checkpoint
-- ARGV  1 the note  2 the note that it replaces; missing: there is none
-- Reply 1 replaced, 0 not

local published = redis.call('GET', KEYS[1])
if published ~= (ARGV[2] or false) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
