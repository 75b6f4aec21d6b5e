-- What people call nodes: a table of its own, so that registrations stay as they are.
CREATE TABLE "{p}_names" (
  node uuid PRIMARY KEY,
  name text NOT NULL
);
