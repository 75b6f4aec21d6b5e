-- Names of nodes.
CREATE TABLE IF NOT EXISTS "{p}_names" (
  node uuid PRIMARY KEY,
  name text NOT NULL
);
