-- One append to one bus's log: compare the head, then write everything or nothing.
--
-- A Redis script runs alone but is not undone when one of its commands fails. Everything that could fail is therefore checked before
-- the first write. Out of memory, a full disk and a read-only replica make Redis refuse the first write, never a later one.
-- Needs Redis 6.2 or Valkey. All keys have the bus as hash tag, so that a cluster keeps them on one node.
--
-- KEYS  1 log  2 head  3 work:decisions  4 work:executions  5 work:requests  6 ids of the batch's day
--       7… ids of the earlier days of the idempotency window, only if there are ids to check
-- ARGV  1 expected sequence number  2 expected chain hash  3 fence  4 genesis hash  5 format version
--       6 seconds to keep ids  7 one letter per entry: d, x or r for its work queue, g for grants, l for an accepted loss, - for none
--       8 count of ids to check
--       9 the chain hashes of all entries, one after the other
--       10 and 11 the earliest and the latest time of Redis at which the batch may be written, in milliseconds
--       12 entries that work:requests keeps: nobody has to consume them, and no end of a decision removes them
--       13 accepted losses that the head keeps
--       then the envelopes; then for each entry event_id, value; then the ids to check
-- Reply {'OK', why a work queue was begun anew, …}, {'MOVED', number, hash}, {'FENCED', fence}, {'LOST'}, {'UNTIMELY', time},
-- {'TAKEN', id, value, …}, {'FORMAT', version} or {'CORRUPT', why}

local call, byte = redis.call, string.byte
local FIXED_ARGUMENTS = 13
local HASH_BYTES = 32
-- Far below the 8000 values that Lua can unpack at once.
local CHUNK = 2000
local DECISIONS, EXECUTIONS, REQUESTS, GRANTS = byte('d'), byte('x'), byte('r'), byte('g')

local log_key, head_key, ids_key = KEYS[1], KEYS[2], KEYS[6]
local number, flags, hashes = tonumber(ARGV[1]), ARGV[7], ARGV[9]
local entries = #flags
local first_id = FIXED_ARGUMENTS + entries + 1
local first_check = first_id + 2 * entries
local last_check = first_check + tonumber(ARGV[8]) - 1

local head = call('HMGET', head_key, 'sequence_number', 'chain_hash', 'count', 'format_version', 'fence', 'losses')
local head_number, head_hash, count = head[1] or '0', head[2] or ARGV[4], tonumber(head[3] or '0')
if head[4] and head[4] ~= ARGV[5] then return {'FORMAT', head[4]} end
if head_number ~= ARGV[1] or head_hash ~= ARGV[2] then return {'MOVED', head_number, head_hash} end
if (head[5] or '0') ~= ARGV[3] then return {'FENCED', head[5] or '0'} end
-- A server has reported that this log has lost acknowledged events (ADR 0065).
if head[6] and not string.find(flags, 'l', 1, true) then return {'LOST'} end

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if now_ms < tonumber(ARGV[10]) or now_ms > tonumber(ARGV[11]) then return {'UNTIMELY', string.format('%d', now_ms)} end

if not count then return {'CORRUPT', 'the count in the head is not a number'} end
local stored = call('XLEN', log_key)
if stored ~= count then
  return {'CORRUPT', 'the head counts ' .. count .. ' entries, the stream holds ' .. stored}
end

local taken = {'TAKEN'}
for key = 6, #KEYS do
  for first = first_check, last_check, CHUNK do
    local last = math.min(first + CHUNK - 1, last_check)
    local values = call('HMGET', KEYS[key], unpack(ARGV, first, last))
    for index = 1, last - first + 1 do
      if values[index] then
        taken[#taken + 1] = ARGV[first + index - 1]
        taken[#taken + 1] = values[index]
      end
    end
  end
end
if #taken > 1 then return taken end

local ids_kind = call('TYPE', ids_key).ok
if ids_kind ~= 'none' and ids_kind ~= 'hash' then return {'CORRUPT', ids_key .. ' is a ' .. ids_kind .. ', not a hash'} end

local rebuilt = {'OK'}

-- The accepted losses with the highest numbers (ADR 0065). Returns a text.
local function merge_losses(losses)
  local merged, numbers = {}, {}
  for loss in string.gmatch(losses, '%S+') do
    if not numbers[loss] then
      merged[#merged + 1] = loss
      numbers[loss] = tonumber(string.match(loss, '^%d+') or 0)
    end
  end
  table.sort(merged, function(one, other)
    if numbers[one] ~= numbers[other] then return numbers[one] < numbers[other] end
    return one < other
  end)
  return table.concat(merged, ' ', math.max(1, #merged - tonumber(ARGV[13]) + 1)) .. ' '
end

local accepted_losses = head[6] and merge_losses((call('HGET', head_key, 'accepted_losses') or '') .. head[6])

-- A work queue is a hint and never stops an append (ADR 0015). One that refuses the entry, because it is not a stream or has an id beyond
-- the head, does not belong to this log: it is deleted and begun anew. What it held is found in the log.
local function enqueue(queue, id, envelope, hash)
  local added = redis.pcall('XADD', queue, id, 'e', envelope, 'h', hash)
  if type(added) == 'table' and added.err then
    redis.pcall('UNLINK', queue)
    redis.pcall('XADD', queue, id, 'e', envelope, 'h', hash)
    rebuilt[#rebuilt + 1] = queue .. ': ' .. added.err
  end
end

local hash
-- The number of the event with the grants in force, 0 for none. Logs that were begun without this field lack it until their next grants.
local grants = head_number == '0' and 0 or nil
for index = 1, entries do
  local id = string.format('%d-0', number + index)
  local envelope = ARGV[FIXED_ARGUMENTS + index]
  hash = string.sub(hashes, (index - 1) * HASH_BYTES + 1, index * HASH_BYTES)
  call('XADD', log_key, id, 'e', envelope, 'h', hash)
  local flag = byte(flags, index)
  if flag == DECISIONS then
    enqueue(KEYS[3], id, envelope, hash)
  elseif flag == EXECUTIONS then
    enqueue(KEYS[4], id, envelope, hash)
  elseif flag == REQUESTS then
    enqueue(KEYS[5], id, envelope, hash)
    call('XTRIM', KEYS[5], 'MAXLEN', '~', ARGV[12])
  elseif flag == GRANTS then
    grants = number + index
  end
end

for first = first_id, first_check - 1, CHUNK do
  call('HSET', ids_key, unpack(ARGV, first, math.min(first + CHUNK - 1, first_check - 1)))
end
call('EXPIRE', ids_key, ARGV[6])
call('HSET', head_key, 'sequence_number', string.format('%d', number + entries), 'chain_hash', hash,
  'count', string.format('%d', count + entries), 'format_version', ARGV[5])
if accepted_losses then
  call('HSET', head_key, 'accepted_losses', accepted_losses)
  call('HDEL', head_key, 'losses')
end
if grants then call('HSET', head_key, 'grants', string.format('%d', grants)) end
return rebuilt
