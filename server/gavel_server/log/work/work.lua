-- One step of one group of a work queue: take, claim, settle or list entries.
--
-- New and idle entries are those of the stream's consumer group. An entry that is rejected or parked leaves the group's pending entries: it
-- waits in the sorted set of delayed entries, by the time at which it is due, or in the hash of parked ones.
-- Needs Redis 6.2 or Valkey. All keys have the bus as hash tag, so that a cluster keeps them on one node.
--
-- KEYS  1 work queue  2 delayed entries (member "NUMBER:DELIVERIES")  3 parked entries (NUMBER -> "DELIVERIES PARKED_AT EVENT_ID REASON")
-- ARGV  1 the step  2 group  3 consumer  then the arguments of the step
-- Reply of steps that take: {{number, envelope, chain hash, deliveries}, …}

local call = redis.call
local queue, delayed, parked = KEYS[1], KEYS[2], KEYS[3]
local step, group, consumer = ARGV[1], ARGV[2], ARGV[3]

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function id_of(number) return number .. '-0' end

local function number_of(id) return string.match(id, '^(%d+)') end

-- The row of XPENDING for an entry, {id, consumer, idle, deliveries}, or nil if it is not pending.
local function pending(number)
  return call('XPENDING', queue, group, id_of(number), id_of(number), 1)[1]
end

local function is_held(number)
  local row = pending(number)
  return row and row[2] == consumer and row
end

-- Takes entries of the queue one by one until there are `count`, or their envelopes reach the limit in bytes.
local function take_all(count, bytes_max, next_entry)
  local taken, bytes = {}, 0
  while #taken < count and bytes < bytes_max do
    local entry, deliveries = next_entry()
    if not entry then break end
    local fields = entry[2]
    bytes = bytes + #fields[2]
    taken[#taken + 1] = {number_of(entry[1]), fields[2], fields[4], deliveries}
  end
  return taken
end

-- Drops the parked entries that the queue has lost. It loses its oldest ones, or all of them: those whose work has ended are removed from
-- the parked ones too.
local function drop_lost()
  local oldest = call('XRANGE', queue, '-', '+', 'COUNT', 1)[1]
  local first = oldest and tonumber(number_of(oldest[1])) or math.huge
  for _, number in ipairs(call('HKEYS', parked)) do
    if tonumber(number) < first then call('HDEL', parked, number) end
  end
end

local function has_room(number, parked_max)
  return call('HLEN', parked) < parked_max or call('HEXISTS', parked, number) == 1
end

local steps = {}

-- 4 count  5 limit in bytes
function steps.new()
  return take_all(tonumber(ARGV[4]), tonumber(ARGV[5]), function()
    local reply = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', queue, '>')
    if reply then return reply[1][2][1], 1 end
  end)
end

-- 4 count  5 limit in bytes
function steps.due()
  local members = call('ZRANGEBYSCORE', delayed, '-inf', now_ms, 'LIMIT', 0, ARGV[4])
  local index = 0
  return take_all(tonumber(ARGV[4]), tonumber(ARGV[5]), function()
    while index < #members do
      index = index + 1
      local number, deliveries = string.match(members[index], '^(%d+):(%d+)$')
      local found = call('XRANGE', queue, id_of(number), id_of(number))[1]
      call('ZREM', delayed, members[index])
      -- An entry that the queue has lost, or whose work has ended, is forgotten.
      if found then
        call('XCLAIM', queue, group, consumer, 0, id_of(number), 'RETRYCOUNT', deliveries + 1, 'FORCE', 'JUSTID')
        return found, deliveries + 1
      end
    end
  end)
end

-- 4 idle time  5 after this number  6 count.  Reply: numbers
function steps.idle()
  local rows = call('XPENDING', queue, group, 'IDLE', ARGV[4], '(' .. ARGV[5] .. '-0', '+', ARGV[6])
  local numbers = {}
  for index, row in ipairs(rows) do numbers[index] = number_of(row[1]) end
  return numbers
end

-- 4 idle time  5 limit in bytes  6… numbers
function steps.claim()
  local index = 5
  return take_all(#ARGV, tonumber(ARGV[5]), function()
    while index < #ARGV do
      index = index + 1
      local number = ARGV[index]
      local row = pending(number)
      if row and row[3] >= tonumber(ARGV[4]) then
        local found = call('XRANGE', queue, id_of(number), id_of(number))[1]
        if found then
          call('XCLAIM', queue, group, consumer, 0, id_of(number), 'RETRYCOUNT', row[4] + 1, 'JUSTID')
          return found, row[4] + 1
        end
        call('XACK', queue, group, id_of(number))
      end
    end
  end)
end

-- 4… numbers.  Reply: those that the consumer holds
function steps.renew()
  local held = {}
  for index = 4, #ARGV do
    if is_held(ARGV[index]) then
      call('XCLAIM', queue, group, consumer, 0, id_of(ARGV[index]), 'JUSTID')
      held[#held + 1] = ARGV[index]
    end
  end
  return held
end

-- 4 number  5 receiver.  Reply: 1 if the consumer held it
function steps.transfer()
  if not is_held(ARGV[4]) then return 0 end
  call('XCLAIM', queue, group, ARGV[5], 0, id_of(ARGV[4]), 'JUSTID')
  return 1
end

-- 4… numbers
function steps.acknowledge()
  for index = 4, #ARGV do call('XACK', queue, group, id_of(ARGV[index])) end
  return 0
end

-- 4 idle time  5… number, deliveries
function steps.release()
  for index = 5, #ARGV, 2 do
    if is_held(ARGV[index]) then
      call('XCLAIM', queue, group, consumer, 0, id_of(ARGV[index]), 'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[index + 1], 'JUSTID')
    end
  end
  return 0
end

-- 4 number  5 deliveries  6 delay.  Reply: 1 if the consumer held it
function steps.reject()
  if not is_held(ARGV[4]) then return 0 end
  call('ZADD', delayed, now_ms + ARGV[6], ARGV[4] .. ':' .. ARGV[5])
  call('XACK', queue, group, id_of(ARGV[4]))
  return 1
end

-- 4 number  5 deliveries  6 event_id  7 reason  8 most entries.  Reply: 0 if there are too many
function steps.park()
  if not is_held(ARGV[4]) then return 1 end
  local parked_max = tonumber(ARGV[8])
  if not has_room(ARGV[4], parked_max) then
    drop_lost()
    if not has_room(ARGV[4], parked_max) then return 0 end
  end
  call('HSET', parked, ARGV[4], string.format('%s %d %s %s', ARGV[5], now_ms, ARGV[6], ARGV[7]))
  call('XACK', queue, group, id_of(ARGV[4]))
  return 1
end

-- Reply: the numbers of the parked entries
function steps.parked()
  drop_lost()
  return call('HKEYS', parked)
end

-- 4… numbers; none for all.  Reply: how many were parked, and are not lost
function steps.retry()
  drop_lost()
  local numbers, count = {}, 0
  if #ARGV < 4 then
    numbers = call('HKEYS', parked)
  else
    for index = 4, #ARGV do numbers[#numbers + 1] = ARGV[index] end
  end
  for _, number in ipairs(numbers) do
    if call('HDEL', parked, number) == 1 then
      call('ZADD', delayed, 0, number .. ':0')
      count = count + 1
    end
  end
  return count
end

-- Removes the consumer unless it holds entries.
function steps.leave()
  if #call('XPENDING', queue, group, '-', '+', 1, consumer) == 0 then call('XGROUP', 'DELCONSUMER', queue, group, consumer) end
  return 0
end

return steps[step]()
