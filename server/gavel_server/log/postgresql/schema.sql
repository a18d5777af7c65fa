-- The schema of logs in PostgreSQL 14 or later: tables, functions and roles. `gavel postgresql-schema` prints it.
--
-- Run it once in each database, as a role that may create roles and schemas: gavel postgresql-schema | psql --single-transaction URL
-- Running it again changes nothing, or brings a schema of an earlier format, with its logs, to this one; stop the servers of the earlier
-- build first. It creates these roles, if they are missing, without passwords:
--
--   gavel_owner     owns everything here; nobody logs in as this role
--   gavel_server    a server: appends events through gavel.append; cannot insert, update or delete them by itself
--   gavel_archiver  may remove archived events through gavel.trim; GRANT gavel_archiver TO gavel_server, if the server archives
--   gavel_reader    reads logs, e.g. for gavel replay --log
--
-- Triggers refuse what would rewrite history, also to the owner: an update of an event, the removal of an event that was not trimmed, and a
-- head that goes back.

DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['gavel_owner NOLOGIN', 'gavel_server LOGIN', 'gavel_archiver NOLOGIN', 'gavel_reader LOGIN'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = split_part(name, ' ', 1)) THEN
      EXECUTE 'CREATE ROLE ' || name;
    END IF;
  END LOOP;
END $$;

GRANT gavel_owner TO CURRENT_USER;
CREATE SCHEMA IF NOT EXISTS gavel AUTHORIZATION gavel_owner;
SET ROLE gavel_owner;

-- A later format is not replaced by an earlier one.
DO $$
DECLARE
  version integer := 0;
BEGIN
  IF to_regprocedure('gavel.format_version()') IS NOT NULL THEN
    EXECUTE 'SELECT gavel.format_version()' INTO version;
  END IF;
  IF version > 3 THEN
    RAISE EXCEPTION 'the schema has format %, and this build knows 3: use the build that installed it', version;
  END IF;
END $$;

-- The version of this schema. A server refuses another one.
CREATE OR REPLACE FUNCTION gavel.format_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';

-- Events as they were appended; chain_hash is that of docs/hashing.md. There is no gap in the numbers of a bus.
CREATE TABLE IF NOT EXISTS gavel.events (
  bus text NOT NULL,
  sequence_number bigint NOT NULL,
  envelope bytea NOT NULL,
  chain_hash bytea NOT NULL,
  PRIMARY KEY (bus, sequence_number)
);

-- The newest event of each bus, the first one that was not trimmed, and the number of the event with the grants in force, 0 for none.
-- An append with a fence other than this one is refused. losses: acknowledged events that servers have reported as lost, each as its
-- number in eight bytes and its chain hash; appends are refused until one accepts the losses. accepted_losses: those with the highest
-- numbers, descending.
CREATE TABLE IF NOT EXISTS gavel.heads (
  bus text PRIMARY KEY,
  sequence_number bigint NOT NULL,
  chain_hash bytea NOT NULL,
  first_sequence_number bigint NOT NULL DEFAULT 1,
  fence bigint NOT NULL DEFAULT 0,
  grants bigint NOT NULL DEFAULT 0,
  losses bytea[] NOT NULL DEFAULT '{}',
  accepted_losses bytea[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- Format 1 had neither losses nor the argument accepts_loss.
ALTER TABLE gavel.heads ADD COLUMN IF NOT EXISTS losses bytea[] NOT NULL DEFAULT '{}';
ALTER TABLE gavel.heads ADD COLUMN IF NOT EXISTS accepted_losses bytea[] NOT NULL DEFAULT '{}';
DROP FUNCTION IF EXISTS gavel.append(
  text, bigint, bytea, bigint, bytea, bytea[], bytea[], bytea[], bigint[], text[], bigint, bigint, bigint, bytea[], bigint, bigint, bigint
);

-- The SHA-256 of the event_ids of the idempotency window, by the day (since 1970) on which they were recorded.
CREATE TABLE IF NOT EXISTS gavel.event_ids (
  bus text NOT NULL,
  sha256 bytea NOT NULL,
  day integer NOT NULL,
  sequence_number bigint NOT NULL,
  decision_sequence_number bigint NOT NULL,
  PRIMARY KEY (bus, sha256, day)
);
CREATE INDEX IF NOT EXISTS event_ids_by_day ON gavel.event_ids (bus, day);

CREATE TABLE IF NOT EXISTS gavel.checkpoints (
  bus text PRIMARY KEY,
  note bytea NOT NULL
);

-- Work queues: entries, groups with the number of the last entry that they have taken and the caller that has created them, their consumers,
-- and the entries that a group has taken and not ended. An entry is pending with a consumer, delayed until a time, or parked. Times are in milliseconds since 1970.
CREATE TABLE IF NOT EXISTS gavel.work_entries (
  bus text NOT NULL,
  queue text NOT NULL,
  sequence_number bigint NOT NULL,
  PRIMARY KEY (bus, queue, sequence_number)
);
CREATE TABLE IF NOT EXISTS gavel.work_groups (
  bus text NOT NULL,
  queue text NOT NULL,
  name text NOT NULL,
  last_taken bigint NOT NULL DEFAULT 0,
  owner text NOT NULL DEFAULT '',
  PRIMARY KEY (bus, queue, name)
);
ALTER TABLE gavel.work_groups ADD COLUMN IF NOT EXISTS owner text NOT NULL DEFAULT '';
CREATE TABLE IF NOT EXISTS gavel.work_members (
  bus text NOT NULL,
  queue text NOT NULL,
  group_name text NOT NULL,
  consumer text NOT NULL,
  heard_ms bigint NOT NULL,
  PRIMARY KEY (bus, queue, group_name, consumer)
);
CREATE TABLE IF NOT EXISTS gavel.work_deliveries (
  bus text NOT NULL,
  queue text NOT NULL,
  group_name text NOT NULL,
  sequence_number bigint NOT NULL,
  state text NOT NULL CHECK (state IN ('pending', 'delayed', 'parked')),
  consumer text NOT NULL,
  deliveries bigint NOT NULL,
  heard_ms bigint NOT NULL,
  due_ms bigint NOT NULL DEFAULT 0,
  event_id text NOT NULL DEFAULT '',
  reason text NOT NULL DEFAULT '',
  parked_at_ms bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (bus, queue, group_name, sequence_number)
);

CREATE OR REPLACE FUNCTION gavel.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
  'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- How many accepted losses a head keeps.
CREATE OR REPLACE FUNCTION gavel.accepted_losses_max() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 32';

-- Appends a batch to the log of a bus: compares the head and writes everything, or nothing. The row of the head is the lock of the bus.
--
-- works has a work queue or '' for each entry. grants is the number of the entry with grants, or 0. ids and ids_to_check are SHA-256 of event_ids;
-- the latter must be unknown since first_day. accepts_loss: the batch ends a report of lost events. The batch may be written between
-- earliest_ms and latest_ms by the clock of this server only.
-- The status is OK, or nothing was written: MOVED (number, hash), FENCED (number), LOST, UNTIMELY (number), TAKEN (ids), CORRUPT.
CREATE OR REPLACE FUNCTION gavel.append(
  of_bus text, expected_number bigint, expected_hash bytea, expected_fence bigint, genesis_hash bytea,
  envelopes bytea[], hashes bytea[], ids bytea[], decision_numbers bigint[], works text[], grants_number bigint,
  accepts_loss boolean,
  of_day bigint, first_day bigint, ids_to_check bytea[], earliest_ms bigint, latest_ms bigint, requests_max bigint
) RETURNS TABLE (status text, number bigint, hash bytea, taken_ids bytea[], taken_numbers bigint[], taken_decisions bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = gavel, pg_temp AS $$
DECLARE
  head heads%ROWTYPE;
  count bigint := cardinality(envelopes);
  store_ms bigint;
BEGIN
  SELECT * INTO head FROM heads AS h WHERE h.bus = of_bus FOR UPDATE;
  IF NOT FOUND THEN
    INSERT INTO heads (bus, sequence_number, chain_hash) VALUES (of_bus, 0, genesis_hash) ON CONFLICT DO NOTHING;
    SELECT * INTO head FROM heads AS h WHERE h.bus = of_bus FOR UPDATE;
  END IF;
  number := head.sequence_number;
  hash := head.chain_hash;
  IF head.sequence_number <> expected_number OR head.chain_hash <> expected_hash THEN
    status := 'MOVED';
    RETURN NEXT;
    RETURN;
  END IF;
  IF head.fence <> expected_fence THEN
    status := 'FENCED';
    number := head.fence;
    RETURN NEXT;
    RETURN;
  END IF;
  IF cardinality(head.losses) > 0 AND NOT accepts_loss THEN
    status := 'LOST';
    RETURN NEXT;
    RETURN;
  END IF;
  store_ms := now_ms();
  IF store_ms NOT BETWEEN earliest_ms AND latest_ms THEN
    status := 'UNTIMELY';
    number := store_ms;
    RETURN NEXT;
    RETURN;
  END IF;
  IF number > 0 AND NOT EXISTS (
    SELECT FROM events AS e WHERE e.bus = of_bus AND e.sequence_number = head.sequence_number AND e.chain_hash = head.chain_hash
  ) THEN
    status := 'CORRUPT';
    RETURN NEXT;
    RETURN;
  END IF;
  IF cardinality(ids_to_check) > 0 THEN
    SELECT array_agg(i.sha256), array_agg(i.sequence_number), array_agg(i.decision_sequence_number)
      INTO taken_ids, taken_numbers, taken_decisions
      FROM event_ids AS i WHERE i.bus = of_bus AND i.sha256 = ANY(ids_to_check) AND i.day BETWEEN first_day AND of_day;
    IF taken_ids IS NOT NULL THEN
      status := 'TAKEN';
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;

  INSERT INTO events (bus, sequence_number, envelope, chain_hash)
    SELECT of_bus, expected_number + entry.place, entry.envelope, entry.chain_hash
    FROM unnest(envelopes, hashes) WITH ORDINALITY AS entry(envelope, chain_hash, place);
  INSERT INTO event_ids (bus, sha256, day, sequence_number, decision_sequence_number)
    SELECT DISTINCT ON (entry.sha256) of_bus, entry.sha256, of_day, expected_number + entry.place, entry.decision_number
    FROM unnest(ids, decision_numbers) WITH ORDINALITY AS entry(sha256, decision_number, place)
    ORDER BY entry.sha256, entry.place DESC
    ON CONFLICT (bus, sha256, day) DO UPDATE
      SET sequence_number = excluded.sequence_number, decision_sequence_number = excluded.decision_sequence_number;
  -- Each append forgets up to twice as many expired event_ids as it adds, so that none of them has to forget those of a whole day.
  DELETE FROM event_ids WHERE ctid = ANY(ARRAY(
    SELECT i.ctid FROM event_ids AS i WHERE i.bus = of_bus AND i.day < first_day - 1 LIMIT 2 * count));
  INSERT INTO work_entries (bus, queue, sequence_number)
    SELECT of_bus, entry.work, expected_number + entry.place
    FROM unnest(works) WITH ORDINALITY AS entry(work, place) WHERE entry.work <> '';
  number := expected_number + count;
  hash := hashes[count];
  -- Nobody has to consume requests, and no end of a decision removes them.
  IF number / 256 > expected_number / 256 THEN
    DELETE FROM work_entries AS w WHERE w.bus = of_bus AND w.queue = 'requests' AND w.sequence_number <= (
      SELECT o.sequence_number FROM work_entries AS o WHERE o.bus = of_bus AND o.queue = 'requests'
      ORDER BY o.sequence_number DESC OFFSET requests_max LIMIT 1);
  END IF;
  UPDATE heads AS h SET sequence_number = append.number, chain_hash = append.hash,
    grants = CASE WHEN grants_number > 0 THEN grants_number ELSE h.grants END
    WHERE h.bus = of_bus;
  IF cardinality(head.losses) > 0 THEN
    UPDATE heads AS h SET losses = '{}', accepted_losses = ARRAY(
      SELECT DISTINCT loss FROM unnest(h.accepted_losses || h.losses) AS loss ORDER BY loss DESC LIMIT accepted_losses_max())
      WHERE h.bus = of_bus;
  END IF;
  status := 'OK';
  RETURN NEXT;
END $$;

-- Raises the fence of a bus and returns it: appends that carry an older one are refused from now on. Waits for an append that is under way,
-- but not for standbys, which the append may be waiting for.
CREATE OR REPLACE FUNCTION gavel.raise_fence(of_bus text, genesis_hash bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = gavel, pg_temp AS $$
DECLARE
  raised bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'local', true);
  INSERT INTO heads AS h (bus, sequence_number, chain_hash, fence) VALUES (of_bus, 0, genesis_hash, 1)
    ON CONFLICT (bus) DO UPDATE SET fence = h.fence + 1 RETURNING h.fence INTO raised;
  RETURN raised;
END $$;

-- Reports that the log of a bus has lost an acknowledged event: appends are refused until one accepts the loss. Nothing is written about a log
-- without events, or about an event whose loss was accepted before. If the head has as many accepted losses as it keeps, earlier events count as
-- accepted too: gavel.append may have dropped them.
CREATE OR REPLACE FUNCTION gavel.report_loss(of_bus text, number bigint, hash bytea) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = gavel, pg_temp AS
  'UPDATE heads SET losses = losses || (int8send(number) || hash)
   WHERE bus = of_bus AND sequence_number > 0 AND (int8send(number) || hash) <> ALL(losses || accepted_losses)
     AND (int8send(number) <= substring(accepted_losses[accepted_losses_max()] FOR 8)) IS NOT TRUE';

-- Removes up to at_most events before a number, which must be in an archive, and returns the first number of the log. The newest event stays.
CREATE OR REPLACE FUNCTION gavel.trim(of_bus text, before_number bigint, at_most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = gavel, pg_temp AS $$
DECLARE
  head heads%ROWTYPE;
  first bigint;
BEGIN
  SELECT * INTO head FROM heads AS h WHERE h.bus = of_bus FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 1;
  END IF;
  first := least(before_number, head.sequence_number, head.first_sequence_number + at_most);
  IF first <= head.first_sequence_number THEN
    RETURN head.first_sequence_number;
  END IF;
  UPDATE heads AS h SET first_sequence_number = first WHERE h.bus = of_bus;
  DELETE FROM events AS e WHERE e.bus = of_bus AND e.sequence_number < first;
  RETURN first;
END $$;

CREATE OR REPLACE FUNCTION gavel.refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the history in %.% is never rewritten: % is refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE OR REPLACE FUNCTION gavel.refuse_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF old.sequence_number >= (SELECT h.first_sequence_number FROM gavel.heads AS h WHERE h.bus = old.bus) IS NOT FALSE THEN
    RAISE EXCEPTION 'event % of bus % was not trimmed: its removal is refused; remove archived events with gavel.trim',
      old.sequence_number, old.bus USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN old;
END $$;

CREATE OR REPLACE FUNCTION gavel.refuse_regression() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF new.bus <> old.bus OR new.fence < old.fence OR new.first_sequence_number < old.first_sequence_number
    OR new.first_sequence_number > greatest(new.sequence_number, 1) OR new.sequence_number < old.sequence_number
    OR (new.sequence_number = old.sequence_number AND new.chain_hash <> old.chain_hash)
  THEN
    RAISE EXCEPTION 'the head of bus % does not go back: the update is refused', old.bus USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN new;
END $$;

CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON gavel.events
  FOR EACH STATEMENT EXECUTE FUNCTION gavel.refuse_rewriting();
CREATE OR REPLACE TRIGGER trimmed_only BEFORE DELETE ON gavel.events FOR EACH ROW EXECUTE FUNCTION gavel.refuse_removal();
CREATE OR REPLACE TRIGGER heads_stay BEFORE DELETE OR TRUNCATE ON gavel.heads
  FOR EACH STATEMENT EXECUTE FUNCTION gavel.refuse_rewriting();
CREATE OR REPLACE TRIGGER heads_advance BEFORE UPDATE ON gavel.heads FOR EACH ROW EXECUTE FUNCTION gavel.refuse_regression();
-- Also in sessions that replicate, whose other triggers do not fire.
ALTER TABLE gavel.events ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE gavel.events ENABLE ALWAYS TRIGGER trimmed_only;
ALTER TABLE gavel.heads ENABLE ALWAYS TRIGGER heads_stay;
ALTER TABLE gavel.heads ENABLE ALWAYS TRIGGER heads_advance;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA gavel FROM PUBLIC;
GRANT USAGE ON SCHEMA gavel TO gavel_server, gavel_archiver, gavel_reader;
GRANT EXECUTE ON FUNCTION gavel.format_version(), gavel.now_ms() TO gavel_server, gavel_archiver, gavel_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA gavel TO gavel_server, gavel_reader;
GRANT EXECUTE ON FUNCTION gavel.append, gavel.raise_fence, gavel.report_loss TO gavel_server;
GRANT INSERT, UPDATE ON gavel.checkpoints TO gavel_server;
GRANT INSERT, UPDATE, DELETE ON gavel.work_entries, gavel.work_groups, gavel.work_members, gavel.work_deliveries TO gavel_server;
GRANT EXECUTE ON FUNCTION gavel.trim TO gavel_archiver;

RESET ROLE;
-- For the start-up checks: who replicates.
GRANT pg_read_all_stats TO gavel_server;
