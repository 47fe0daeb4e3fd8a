"""What is remembered: SQLite with one writer. `state/` holds the schema, this folder the code over it.

Reading functions take a `Database`, writing ones a `Tx`: a transaction whose events are told once it is committed.
"""
