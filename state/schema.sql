CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    node TEXT NOT NULL,
    command TEXT NOT NULL,
    detail TEXT NOT NULL,
    exit_status INTEGER,
    outcome TEXT NOT NULL,
    seconds REAL NOT NULL
);

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    severity TEXT NOT NULL,
    message TEXT NOT NULL,
    node TEXT,
    model TEXT,
    replica TEXT,
    data TEXT NOT NULL
);

CREATE TABLE intents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    replica TEXT,
    rank INTEGER,
    attempt INTEGER,
    term INTEGER NOT NULL,
    created_at REAL NOT NULL,
    closed_at REAL,
    outcome TEXT
);

CREATE INDEX intents_open ON intents (node) WHERE closed_at IS NULL;

CREATE TABLE keys (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    models TEXT NOT NULL,
    created_at REAL NOT NULL,
    revoked_at REAL
);

CREATE TABLE lease (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    term INTEGER NOT NULL,
    controller TEXT NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since REAL NOT NULL
);

CREATE TABLE models (
    name TEXT PRIMARY KEY,
    entry TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);

CREATE TABLE node_engines (
    node TEXT NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    engine TEXT NOT NULL,
    version TEXT NOT NULL,
    build TEXT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL,
    path TEXT,
    checked_at REAL,
    attempts INTEGER NOT NULL,
    next_try_at REAL,
    PRIMARY KEY (node, engine, version)
);

CREATE TABLE nodes (
    id TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    host_key TEXT NOT NULL,
    options TEXT NOT NULL,
    labels TEXT NOT NULL,
    state TEXT NOT NULL,
    cordoned INTEGER NOT NULL,
    cordoned_before_drain INTEGER NOT NULL,
    drain TEXT NOT NULL,
    link TEXT NOT NULL,
    link_since REAL,
    link_error TEXT,
    quarantined TEXT,
    problems TEXT NOT NULL,
    machine_id TEXT,
    boot_id TEXT,
    root TEXT,
    python TEXT,
    created TEXT NOT NULL,
    added_at REAL NOT NULL,
    seen_at REAL,
    probed_at REAL
, adding_by TEXT);

CREATE TABLE probes (
    node TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    at REAL NOT NULL,
    latest TEXT NOT NULL,
    previous TEXT
);

CREATE TABLE replicas (
    id TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    revision TEXT NOT NULL,
    profile TEXT NOT NULL,
    engine TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    progress REAL,
    wanted INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    state_since REAL NOT NULL,
    ready_at REAL,
    failures INTEGER NOT NULL,
    next_try_at REAL
);

CREATE TABLE shards (
    replica TEXT NOT NULL REFERENCES replicas (id) ON DELETE CASCADE,
    rank INTEGER NOT NULL,
    node TEXT NOT NULL REFERENCES nodes (id),
    attempt INTEGER NOT NULL,
    port INTEGER,
    pid INTEGER,
    start_ticks INTEGER,
    boot_id TEXT,
    PRIMARY KEY (replica, rank)
);

CREATE INDEX shards_by_node ON shards (node);

CREATE TABLE usage (
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    day TEXT NOT NULL,
    requests INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (key, model, day)
);
