-- The numbers of the entries of a work queue, without their envelopes.
--
-- KEYS  1 work queue
-- ARGV  1 after this number  2 count
-- Reply numbers, ascending

local numbers = {}
for index, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])) do
  numbers[index] = string.match(entry[1], '^(%d+)')
end
return numbers
