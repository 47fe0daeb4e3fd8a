"""The inference endpoint: one OpenAI-compatible face over every replica in the route table.

A request's way: `door` (the client's connection, limits) → `admission` (model and key) → `exchange` (which replica,
retries, deadlines) → `pool` and `upstream` (the engine's connection) → `answer` (what the engine says, relayed) →
`door`. Everything on that way is callbacks, protocol to protocol. `pages` serves the rest as a small ASGI application;
`gateway` holds what all of them share.
"""
