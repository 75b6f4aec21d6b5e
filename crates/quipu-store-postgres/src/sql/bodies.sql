-- Bodies of sketches beside the rows, and their pages. As with cells: no foreign key, and room for the next version of a row.
CREATE TABLE "{p}_bodies" (
  counter bigint NOT NULL,
  writer  uuid NOT NULL,
  kind    integer NOT NULL,
  key     numeric NOT NULL,
  length  integer NOT NULL,
  PRIMARY KEY (counter, writer)
) WITH (fillfactor = 50);

-- What is put has no redundancy that is worth looking for.
CREATE TABLE "{p}_pages" (
  counter bigint NOT NULL,
  writer  uuid NOT NULL,
  page    integer NOT NULL,
  bytes   bytea NOT NULL,
  PRIMARY KEY (counter, writer, page)
) WITH (fillfactor = 50);
ALTER TABLE "{p}_pages" ALTER COLUMN bytes SET STORAGE EXTERNAL;
