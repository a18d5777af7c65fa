-- The next events of a log, up to a number of bytes.
--
-- XRANGE limits its reply by the number of entries alone, and an event has between some hundred bytes and 1 MiB. The entries are
-- therefore read a few at a time, until they have the bytes. Nothing is written.
--
-- KEYS  1 log
-- ARGV  1 first number  2 last number  3 entries at most  4 bytes of envelopes after which no further entry is returned
-- Reply of XRANGE

local ENTRIES_AT_A_TIME = 8

local start, last, entries_max, bytes_max = ARGV[1] .. '-0', ARGV[2] .. '-0', tonumber(ARGV[3]), tonumber(ARGV[4])
local entries, bytes = {}, 0
while #entries < entries_max do
  local count = math.min(ENTRIES_AT_A_TIME, entries_max - #entries)
  local found = redis.call('XRANGE', KEYS[1], start, last, 'COUNT', count)
  for _, entry in ipairs(found) do
    entries[#entries + 1] = entry
    bytes = bytes + #(entry[2][2] or '')
    if bytes >= bytes_max then return entries end
  end
  if #found < count then break end
  start = '(' .. found[count][1]
end
return entries
