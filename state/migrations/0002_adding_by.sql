-- Whose `node add` is under way for a node, so that another one can name it.
ALTER TABLE nodes ADD COLUMN adding_by TEXT;
