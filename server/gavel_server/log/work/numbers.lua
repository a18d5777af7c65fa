-- The numbers of the entries of a work queue, without their envelopes.
--
-- XRANGE copies whole entries into the script. It reads a few at a time, and stops at a limit in bytes: a reply with fewer numbers than
-- asked for is not the end of the queue.
--
-- KEYS  1 work queue
-- ARGV  1 after this number  2 count  3 limit in bytes
-- Reply numbers, ascending

local STEP = 8

local start, count, bytes_max = '(' .. ARGV[1] .. '-0', tonumber(ARGV[2]), tonumber(ARGV[3])
local numbers, bytes = {}, 0
while #numbers < count and bytes < bytes_max do
  local entries = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', math.min(STEP, count - #numbers))
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    numbers[#numbers + 1] = string.match(entry[1], '^(%d+)')
    bytes = bytes + #entry[2][2]
  end
  start = '(' .. entries[#entries][1]
end
return numbers
