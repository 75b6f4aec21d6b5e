-- What is replaced as a whole with every version: functions, and views for people.
-- Functions compare, copy and replace. The only numbers they make are the time and the version of a row (see the function `puts`).

-- Milliseconds since 1970 by this server's clock, as it is now and not when the transaction began.
CREATE OR REPLACE FUNCTION "{p}_now"() RETURNS numeric LANGUAGE sql VOLATILE AS $$
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)
$$;

-- The part of a row's version that rises with every put that moved a cell: what the last swap left it at, and for each cell its seq times a number that
-- other writers do not have. A new cell counts too, even one whose seq is 0. Within the range of u64.
CREATE OR REPLACE FUNCTION "{p}_puts"(of_counter bigint) RETURNS numeric LANGUAGE sql VOLATILE AS $$
  SELECT mod(c.puts + coalesce(s.moved, 0), 18446744073709551616)
    FROM "{p}_counters" c
   CROSS JOIN LATERAL (
     SELECT sum((seq + 1) * (1 + shard
              + (('x' || substr(writer::text, 13, 1) || substr(writer::text, 15, 4))::bit(20)
                 # ('x' || right(writer::text, 5))::bit(20))::bigint)) AS moved
       FROM "{p}_cells" WHERE counter = of_counter AND seq IS NOT NULL) s
   WHERE c.id = of_counter
$$;

-- Puts cells: those that are plainly the newest. Of any other the row has something to say, which is returned as it is, and judged by the model.
-- `names` are sorted, each once, with the epoch of the first put of each, should there be no row yet. The other arrays have an element for each
-- put; `which` is the number of its name. Puts of the same cell are in different rounds, one round behind the other, `counts` long each; within a
-- round they are in the order of names and cells, which is the order of locks.
CREATE OR REPLACE FUNCTION "{p}_put"(
  names bytea[], firsts uuid[], counts integer[], which integer[], writers uuid[], shards integer[], epochs uuid[],
  seqs numeric[], amounts numeric[], totals numeric[]
) RETURNS TABLE (
  put integer, at numeric, epoch uuid, expires_at numeric, seq numeric, value numeric, total numeric, closed boolean,
  spent_epoch uuid, spent_seq numeric, spent_value numeric, spent_total numeric, spent_closed boolean, spent_expired numeric, spent_at numeric
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  ids bigint[];
  present uuid[];
  expiries numeric[];
  taking uuid[];
  some_expire boolean;
  clock numeric;
  done bigint;
  first integer := 1;
  final integer;
BEGIN
  -- Each statement of a function sees what was committed before that statement began. So what is read below, under the locks, is what
  -- the last swap left behind.
  FOR try IN 1..2 LOOP
    SELECT array_agg(l.id ORDER BY l.ord), array_agg(l.epoch ORDER BY l.ord), array_agg(l.expires_at ORDER BY l.ord),
           bool_or(l.expires_at IS NOT NULL)
      INTO ids, present, expiries, some_expire
      FROM (SELECT c.id, c.epoch, c.expires_at, n.ord
              FROM unnest(names) WITH ORDINALITY AS n (name, ord) JOIN "{p}_counters" c ON c.name = n.name
             ORDER BY n.ord
               FOR KEY SHARE OF c) l;
    EXIT WHEN cardinality(ids) = cardinality(names);
    IF try = 2 THEN
      RAISE EXCEPTION 'a counter was forgotten while it was put' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO "{p}_counters" (name, born_at, swaps, epoch)
    SELECT n.name, "{p}_now"(), 0, n.epoch
      FROM unnest(names, firsts) WITH ORDINALITY AS n (name, epoch, ord)
     WHERE NOT EXISTS (SELECT FROM "{p}_counters" c WHERE c.name = n.name)
     ORDER BY n.ord
        ON CONFLICT (name) DO NOTHING;
  END LOOP;

  clock := "{p}_now"();
  taking := present;
  IF some_expire THEN
    SELECT array_agg(CASE WHEN e.expires_at <= clock THEN NULL ELSE e.epoch END ORDER BY e.ord) INTO taking
      FROM unnest(present, expiries) WITH ORDINALITY AS e (epoch, expires_at, ord);
  END IF;

  FOR this IN 1..cardinality(counts) LOOP
    final := first + counts[this] - 1;
    INSERT INTO "{p}_cells" AS c (counter, writer, shard, seq, value, total)
    SELECT ids[which[p]], writers[p], shards[p], seqs[p], amounts[p], totals[p]
      FROM generate_series(first, final) p
     WHERE epochs[p] = taking[which[p]]
     ORDER BY p
        ON CONFLICT (counter, writer, shard) DO UPDATE SET seq = excluded.seq, value = excluded.value, total = excluded.total
     WHERE CASE WHEN c.seq IS NULL THEN NOT c.spent_closed ELSE NOT c.closed AND c.seq < excluded.seq END;
    GET DIAGNOSTICS done = ROW_COUNT;
    IF done < counts[this] THEN
      RETURN QUERY
      SELECT p, clock, present[which[p]], expiries[which[p]], c.seq, c.value, c.total, c.closed,
             c.spent_epoch, c.spent_seq, c.spent_value, c.spent_total, c.spent_closed, c.spent_expired, c.spent_at
        FROM generate_series(first, final) p
        LEFT JOIN "{p}_cells" c ON c.counter = ids[which[p]] AND c.writer = writers[p] AND c.shard = shards[p]
       WHERE NOT coalesce(epochs[p] = taking[which[p]] AND c.seq = seqs[p] AND NOT c.closed, false);
    END IF;
    first := final + 1;
  END LOOP;
END
$$;

-- Puts a body of a sketch: its cell, and the pages that changed since the put that it goes on from. Returns nothing if that was done; else what the row has of the cell,
-- which is judged by the model. The cell's row is locked by being changed first: two puts of one body do not mix.
CREATE OR REPLACE FUNCTION "{p}_put_body"(
  of_name bytea, of_writer uuid, of_shard integer, of_epoch uuid, new_seq numeric, new_value numeric, new_total numeric, from_seq numeric, is_whole boolean,
  new_kind integer, new_key numeric, new_length integer, numbers integer[], contents bytea[]
) RETURNS TABLE (
  put integer, at numeric, epoch uuid, expires_at numeric, seq numeric, value numeric, total numeric, closed boolean,
  spent_epoch uuid, spent_seq numeric, spent_value numeric, spent_total numeric, spent_closed boolean, spent_expired numeric, spent_at numeric
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  row_id bigint;
  row_epoch uuid;
  row_expires numeric;
  clock numeric;
  done bigint := 0;
BEGIN
  FOR try IN 1..2 LOOP
    SELECT c.id, c.epoch, c.expires_at INTO row_id, row_epoch, row_expires
      FROM "{p}_counters" c WHERE c.name = of_name FOR KEY SHARE OF c;
    EXIT WHEN FOUND;
    IF from_seq IS NOT NULL THEN
      RETURN QUERY SELECT 1, "{p}_now"(), of_epoch, NULL::numeric, NULL::numeric, NULL::numeric, NULL::numeric, NULL::boolean,
        NULL::uuid, NULL::numeric, NULL::numeric, NULL::numeric, NULL::boolean, NULL::numeric, NULL::numeric;
      RETURN;
    END IF;
    IF try = 2 THEN
      RAISE EXCEPTION 'a counter was forgotten while it was put' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO "{p}_counters" (name, born_at, swaps, epoch) VALUES (of_name, "{p}_now"(), 0, of_epoch) ON CONFLICT (name) DO NOTHING;
  END LOOP;

  clock := "{p}_now"();
  IF row_epoch = of_epoch AND (row_expires IS NULL OR row_expires > clock) THEN
    IF from_seq IS NULL THEN
      INSERT INTO "{p}_cells" AS c (counter, writer, shard, seq, value, total)
      VALUES (row_id, of_writer, of_shard, new_seq, new_value, new_total)
          ON CONFLICT (counter, writer, shard) DO UPDATE SET seq = excluded.seq, value = excluded.value, total = excluded.total
       WHERE c.seq IS NULL AND NOT c.spent_closed;
    ELSE
      UPDATE "{p}_cells" SET seq = new_seq, value = new_value, total = new_total
       WHERE counter = row_id AND writer = of_writer AND shard = of_shard AND NOT closed AND seq = from_seq AND seq < new_seq;
    END IF;
    GET DIAGNOSTICS done = ROW_COUNT;
  END IF;
  IF done = 0 THEN
    RETURN QUERY
    SELECT 1, clock, row_epoch, row_expires, c.seq, c.value, c.total, c.closed,
           c.spent_epoch, c.spent_seq, c.spent_value, c.spent_total, c.spent_closed, c.spent_expired, c.spent_at
      FROM (SELECT) AS one LEFT JOIN "{p}_cells" c ON c.counter = row_id AND c.writer = of_writer AND c.shard = of_shard;
    RETURN;
  END IF;

  INSERT INTO "{p}_bodies" AS b (counter, writer, kind, key, length) VALUES (row_id, of_writer, new_kind, new_key, new_length)
      ON CONFLICT (counter, writer) DO UPDATE SET kind = excluded.kind, key = excluded.key, length = excluded.length;
  DELETE FROM "{p}_pages" p
   WHERE p.counter = row_id AND p.writer = of_writer AND (is_whole OR p.page * 1024 >= new_length);
  DELETE FROM "{p}_pages" p USING unnest(numbers, contents) AS n (page, bytes)
   WHERE p.counter = row_id AND p.writer = of_writer AND p.page = n.page AND length(n.bytes) = 0;
  INSERT INTO "{p}_pages" AS p (counter, writer, page, bytes)
  SELECT row_id, of_writer, n.page, n.bytes FROM unnest(numbers, contents) AS n (page, bytes) WHERE length(n.bytes) > 0
      ON CONFLICT (counter, writer, page) DO UPDATE SET bytes = excluded.bytes;
END
$$;

-- Replaces the row that has this version by another, or by none. A version of zeros is that of no row. Bodies beside the row stay while its epoch does.
CREATE OR REPLACE FUNCTION "{p}_swap"(
  of_name bytea, seen_born numeric, seen_swaps numeric, seen_puts numeric, stays boolean,
  new_born numeric, new_swaps numeric, new_puts numeric, new_epoch uuid, new_base numeric, new_expires_at numeric, new_gone_at numeric, new_last uuid[],
  writers uuid[], shards integer[], seqs numeric[], amounts numeric[], totals numeric[], closeds boolean[],
  spent_epochs uuid[], spent_seqs numeric[], spent_values numeric[], spent_totals numeric[], spent_closeds boolean[],
  spent_expireds numeric[], spent_ats numeric[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  row_id bigint;
  row_born numeric;
  row_swaps numeric;
  row_epoch uuid;
BEGIN
  IF seen_born = 0 AND seen_swaps = 0 AND seen_puts = 0 THEN
    IF NOT stays THEN
      RETURN NOT EXISTS (SELECT FROM "{p}_counters" WHERE name = of_name);
    END IF;
    INSERT INTO "{p}_counters" (name, born_at, swaps, puts, epoch, base, expires_at, gone_at, last)
    VALUES (of_name, new_born, new_swaps, new_puts, new_epoch, new_base, new_expires_at, new_gone_at, new_last)
        ON CONFLICT (name) DO NOTHING RETURNING id INTO row_id;
    IF NOT FOUND THEN
      RETURN false;
    END IF;
  ELSE
    -- Waits for every put that holds the row; the next statements see what these left behind.
    SELECT id, born_at, swaps, epoch INTO row_id, row_born, row_swaps, row_epoch FROM "{p}_counters" WHERE name = of_name FOR UPDATE;
    IF NOT FOUND OR row_born <> seen_born OR row_swaps <> seen_swaps THEN
      RETURN false;
    END IF;
    IF "{p}_puts"(row_id) <> seen_puts THEN
      RETURN false;
    END IF;
    DELETE FROM "{p}_cells" WHERE counter = row_id;
    IF NOT stays OR new_epoch <> row_epoch THEN
      DELETE FROM "{p}_bodies" WHERE counter = row_id;
      DELETE FROM "{p}_pages" WHERE counter = row_id;
    END IF;
    IF NOT stays THEN
      DELETE FROM "{p}_counters" WHERE id = row_id;
      RETURN true;
    END IF;
    UPDATE "{p}_counters" SET born_at = new_born, swaps = new_swaps, puts = new_puts, epoch = new_epoch, base = new_base, expires_at = new_expires_at,
           gone_at = new_gone_at, last = new_last
     WHERE id = row_id;
  END IF;
  INSERT INTO "{p}_cells" (counter, writer, shard, seq, value, total, closed, spent_epoch, spent_seq, spent_value, spent_total,
                           spent_closed, spent_expired, spent_at)
  SELECT row_id, c.*
    FROM unnest(writers, shards, seqs, amounts, totals, closeds, spent_epochs, spent_seqs, spent_values, spent_totals, spent_closeds,
                spent_expireds, spent_ats) c;
  RETURN true;
END
$$;

-- Replaces bodies beside a row that the same transaction has swapped, and so locked: those of `named` go, and these come, with their pages.
CREATE OR REPLACE FUNCTION "{p}_replace_bodies"(
  of_name bytea, named uuid[], writers uuid[], kinds integer[], keys numeric[], lengths integer[],
  page_writers uuid[], numbers integer[], contents bytea[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  row_id bigint;
BEGIN
  SELECT id INTO STRICT row_id FROM "{p}_counters" WHERE name = of_name;
  DELETE FROM "{p}_bodies" WHERE counter = row_id AND writer = ANY (named);
  DELETE FROM "{p}_pages" WHERE counter = row_id AND writer = ANY (named);
  INSERT INTO "{p}_bodies" (counter, writer, kind, key, length)
  SELECT row_id, b.* FROM unnest(writers, kinds, keys, lengths) b;
  INSERT INTO "{p}_pages" (counter, writer, page, bytes)
  SELECT row_id, p.* FROM unnest(page_writers, numbers, contents) p;
  RETURN true;
END
$$;

-- Waits until every put that holds the row, and may have been judged before its time was over, is in.
CREATE OR REPLACE FUNCTION "{p}_wait"(of_name bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM "{p}_counters" WHERE name = of_name FOR UPDATE;
END
$$;

-- Claims a token that nobody holds; what is held, or asked too late, is returned as it is, and judged by the model.
-- Every claim also removes a few whose windows are over, oldest first, so that no more of these stay than come.
CREATE OR REPLACE FUNCTION "{p}_claim"(
  of_token bytea, new_owner uuid, new_attempt numeric, new_payload numeric, new_forget_at numeric, remove_max integer
) RETURNS TABLE (claimed boolean, at numeric, owner uuid, attempt numeric, payload numeric, forget_at numeric, reply bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  clock numeric := "{p}_now"();
BEGIN
  IF new_forget_at <= clock THEN
    RETURN QUERY SELECT false, clock, NULL::uuid, NULL::numeric, NULL::numeric, NULL::numeric, NULL::bytea;
    RETURN;
  END IF;
  INSERT INTO "{p}_claims" AS c (token, owner, attempt, payload, forget_at)
  VALUES (of_token, new_owner, new_attempt, new_payload, new_forget_at)
      ON CONFLICT (token) DO UPDATE SET owner = excluded.owner, attempt = excluded.attempt, payload = excluded.payload,
         forget_at = excluded.forget_at, reply = NULL
   WHERE c.forget_at <= clock;
  IF NOT FOUND THEN
    -- It is locked by the attempt above, so it is there.
    RETURN QUERY SELECT false, clock, c.owner, c.attempt, c.payload, c.forget_at, c.reply FROM "{p}_claims" c WHERE c.token = of_token;
    RETURN;
  END IF;
  DELETE FROM "{p}_claims" WHERE token IN (
    SELECT c.token FROM "{p}_claims" c WHERE c.forget_at <= clock ORDER BY c.forget_at LIMIT remove_max FOR UPDATE SKIP LOCKED);
  RETURN QUERY SELECT true, clock, NULL::uuid, NULL::numeric, NULL::numeric, NULL::numeric, NULL::bytea;
END
$$;

-- Ends an attempt's claim: with a reply, or given back if there is none yet.
CREATE OR REPLACE FUNCTION "{p}_end_claim"(of_token bytea, of_owner uuid, of_attempt numeric, new_reply bytea)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF new_reply IS NULL THEN
    DELETE FROM "{p}_claims" WHERE token = of_token AND owner = of_owner AND attempt = of_attempt AND reply IS NULL;
  ELSE
    UPDATE "{p}_claims" SET reply = coalesce(reply, new_reply) WHERE token = of_token AND owner = of_owner AND attempt = of_attempt;
  END IF;
  RETURN FOUND;
END
$$;

-- Puts a registration in the place of the one that has this version; 0 is the version of none.
CREATE OR REPLACE FUNCTION "{p}_register"(
  of_writer uuid, seen_version numeric, most integer, new_version numeric, new_holder numeric, new_lease_until numeric, new_stage text,
  new_since numeric
) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF seen_version = 0 THEN
    -- One newcomer at a time, so that they count one another.
    PERFORM FROM "{p}_schema" FOR UPDATE;
    IF EXISTS (SELECT FROM "{p}_writers" WHERE writer = of_writer) THEN
      RETURN 'moved';
    END IF;
    IF (SELECT count(*) FROM "{p}_writers") >= most THEN
      RETURN 'full';
    END IF;
    INSERT INTO "{p}_writers" (writer, version, holder, lease_until, stage, since)
    VALUES (of_writer, new_version, new_holder, new_lease_until, new_stage, new_since);
    RETURN 'registered';
  END IF;
  UPDATE "{p}_writers" SET version = new_version, holder = new_holder, lease_until = new_lease_until, stage = new_stage, since = new_since
   WHERE writer = of_writer AND version = seen_version;
  RETURN CASE WHEN FOUND THEN 'registered' ELSE 'moved' END;
END
$$;

-- For people: what counts now. `name` is compared with text as it is (where name = 'likes:42'); `shown` is it as text, with whatever is not
-- printable in octal.
CREATE OR REPLACE VIEW "{p}_totals" AS
SELECT c.name,
       encode(c.name, 'escape') AS shown,
       coalesce(c.base, 0) + coalesce(s.total, 0) AS total,
       s.cells,
       CASE WHEN c.expires_at < 253402300800000 THEN to_timestamp(c.expires_at::double precision / 1000)
            WHEN c.expires_at IS NOT NULL THEN 'infinity'::timestamptz END AS expires_at
  FROM "{p}_counters" c
 CROSS JOIN LATERAL (SELECT sum(value) AS total, count(*) AS cells FROM "{p}_cells" WHERE counter = c.id AND seq IS NOT NULL) s
 WHERE (c.base IS NOT NULL OR s.cells > 0)
   AND (c.expires_at IS NULL OR c.expires_at > floor(extract(epoch FROM clock_timestamp()) * 1000));
