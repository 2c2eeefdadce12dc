CREATE TABLE state(next INTEGER, has_rows INTEGER, labels_version INTEGER);
INSERT INTO state VALUES (0, 0, 0);
CREATE TABLE rollouts(
  id INTEGER PRIMARY KEY, step INTEGER, row_index INTEGER, attempt INTEGER, place INTEGER, outcome TEXT, reward REAL,
  tokens INTEGER, cost REAL, duration REAL, turns INTEGER, tools INTEGER, started REAL, category TEXT, model TEXT,
  prompt TEXT, answer TEXT, failure TEXT, finish TEXT, issue TEXT, row_hash TEXT, row_key TEXT, extra TEXT);
CREATE UNIQUE INDEX by_place ON rollouts(step, row_index, attempt);
CREATE INDEX by_row ON rollouts(step, row_index, outcome);
CREATE INDEX by_key ON rollouts(row_key);
CREATE INDEX by_hash ON rollouts(row_hash) WHERE row_key IS NULL;
CREATE TABLE scores(name TEXT, rollout INTEGER, value REAL, PRIMARY KEY(rollout, name)) WITHOUT ROWID;
CREATE TABLE tools(name TEXT, rollout INTEGER, PRIMARY KEY(name, rollout)) WITHOUT ROWID;
CREATE TABLE names(id INTEGER PRIMARY KEY, kind TEXT, name TEXT, amount INTEGER, UNIQUE(kind, name));
CREATE TABLE rows(row_index INTEGER PRIMARY KEY, hash TEXT, data TEXT);
CREATE TABLE labels(
  step INTEGER, row_index INTEGER, attempt INTEGER, label TEXT,
  PRIMARY KEY(step, row_index, attempt, label)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize="unicode61 remove_diacritics 2");
