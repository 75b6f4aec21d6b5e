CREATE TABLE "{p}_counters" (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       bytea NOT NULL,
  born_at    numeric NOT NULL,
  swaps      numeric NOT NULL,
  puts       numeric NOT NULL DEFAULT 0,
  epoch      uuid NOT NULL,
  base       numeric,
  expires_at numeric,
  gone_at    numeric,
  last       uuid[] NOT NULL DEFAULT '{}',
  CONSTRAINT "{p}_counters_name" UNIQUE (name)
);

-- No foreign key: a put has locked the counter already, and a second lock for each cell would say the same.
-- Half of each page is left free, so that a put finds room for the next version of a row beside it and no index has to know.
CREATE TABLE "{p}_cells" (
  counter       bigint NOT NULL,
  writer        uuid NOT NULL,
  shard         integer NOT NULL,
  seq           numeric,
  value         numeric,
  total         numeric,
  closed        boolean NOT NULL DEFAULT false,
  spent_epoch   uuid,
  spent_seq     numeric,
  spent_value   numeric,
  spent_total   numeric,
  spent_closed  boolean NOT NULL DEFAULT false,
  spent_expired numeric,
  spent_at      numeric,
  PRIMARY KEY (counter, writer, shard)
) WITH (fillfactor = 50);

CREATE TABLE "{p}_claims" (
  token     bytea PRIMARY KEY,
  owner     uuid NOT NULL,
  attempt   numeric NOT NULL,
  payload   numeric NOT NULL,
  forget_at numeric NOT NULL,
  reply     bytea
);
CREATE INDEX "{p}_claims_forget_at" ON "{p}_claims" (forget_at);

CREATE TABLE "{p}_writers" (
  writer      uuid PRIMARY KEY,
  version     numeric NOT NULL,
  holder      numeric,
  lease_until numeric NOT NULL,
  stage       text NOT NULL,
  since       numeric
);
