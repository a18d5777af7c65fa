-- The head of one bus's log and the end of its stream, read together.
--
-- Nothing is written unless the fence is to be raised. A Redis that is full answers and raises the fence: the script begins with HDEL, as
-- confirm.lua does. XINFO returns whole entries; of them only the last hash leaves Redis.
--
-- KEYS  1 log  2 head
-- ARGV  1 "raise" to raise the fence, "" to read it
-- Reply {fence or false, fields of the head, entries, last id, last hash or false, first id or false}. The fields, or the number of entries, are an error
--       where the key has another type.

local call, pcall = redis.call, redis.pcall

local fence
if ARGV[1] == 'raise' then
  call('HDEL', KEYS[2], 'none')
  fence = call('HINCRBY', KEYS[2], 'fence', 1)
else
  fence = pcall('HGET', KEYS[2], 'fence')
end
local fields = pcall('HMGET', KEYS[2], 'sequence_number', 'chain_hash', 'count', 'format_version', 'losses')
if fields.err then return {false, fields} end

if call('EXISTS', KEYS[1]) == 0 then return {fence, fields, 0, '0-0', false, false} end
local stream = pcall('XINFO', 'STREAM', KEYS[1])
if stream.err then return {fence, fields, stream} end
local length, last_id, last_hash, first_id = 0, '0-0', false, false
for index = 1, #stream, 2 do
  local name, value = stream[index], stream[index + 1]
  if name == 'length' then
    length = value
  elseif name == 'last-generated-id' then
    last_id = value
  elseif name == 'last-entry' and value then
    last_hash = value[2][4] or ''
  elseif name == 'first-entry' and value then
    first_id = value[1]
  end
end
return {fence, fields, length, last_id, last_hash, first_id}
