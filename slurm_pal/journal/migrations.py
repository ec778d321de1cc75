# SPDX-License-Identifier: MIT
"""The schema of the journal, as the statements that led to it: a table for each noun of `journal`."""

from __future__ import annotations

_LEASE = (
    "kind TEXT NOT NULL, ours TEXT NOT NULL, own TEXT NOT NULL, made_s REAL NOT NULL, until_s REAL NOT NULL, "
    "restarts INTEGER NOT NULL, reason TEXT NOT NULL"
)
"""The columns of a lease, but for its job."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # AUTOINCREMENT everywhere: the number of a forgotten row is never given again.
        """CREATE TABLE moves (
            move_id INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id INTEGER NOT NULL,
            user TEXT NOT NULL,
            made_s REAL NOT NULL,
            restarts INTEGER NOT NULL,
            source TEXT NOT NULL,
            target TEXT NOT NULL,   -- JSON list of node names
            target_gpus TEXT NOT NULL,
            own_req TEXT NOT NULL,
            before REAL NOT NULL,
            after REAL NOT NULL,
            gain_s REAL NOT NULL,
            cost_s REAL NOT NULL,
            checkpoint INTEGER NOT NULL,
            ack TEXT NOT NULL,
            step TEXT NOT NULL,
            step_s REAL NOT NULL,
            outcome TEXT NOT NULL,  -- "" while open
            detail TEXT NOT NULL,
            ended_s REAL NOT NULL,
            observed REAL
        )""",
        "CREATE UNIQUE INDEX one_open_move ON moves (job_id) WHERE outcome = ''",
        "CREATE INDEX moves_by_job ON moves (job_id)",
        """CREATE TABLE steps (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            move_id INTEGER NOT NULL,
            step TEXT NOT NULL,
            at_s REAL NOT NULL
        )""",
        "CREATE INDEX steps_by_move ON steps (move_id)",
        f"""CREATE TABLE leases (
            job_id INTEGER PRIMARY KEY,
            {_LEASE}
        )""",
        f"""CREATE TABLE ended_leases (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id INTEGER NOT NULL,
            {_LEASE},
            why TEXT NOT NULL,
            ended_s REAL NOT NULL
        )""",
        "CREATE INDEX ended_leases_by_job ON ended_leases (job_id)",
        """CREATE TABLE observations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL,
            job_id INTEGER NOT NULL,
            restarts INTEGER NOT NULL,
            sensitivity TEXT NOT NULL,
            gpus TEXT NOT NULL,     -- JSON list of [node, index]
            predicted REAL NOT NULL,
            step_s REAL NOT NULL,
            at_s REAL NOT NULL,
            UNIQUE (job_id, restarts)
        )""",
        "CREATE TABLE samples (job_id INTEGER PRIMARY KEY, restarts INTEGER NOT NULL, iteration INTEGER NOT NULL, "
        "at_s REAL NOT NULL)",
        "CREATE TABLE hands_off (job_id INTEGER PRIMARY KEY, why TEXT NOT NULL, at_s REAL NOT NULL)",
        "CREATE TABLE waited (job_id INTEGER PRIMARY KEY, seconds REAL NOT NULL)",
        "CREATE TABLE weights (node TEXT PRIMARY KEY, base INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE ticks (id INTEGER PRIMARY KEY CHECK (id = 1), at_s REAL NOT NULL)",
    ),
    (
        f"""CREATE TABLE partitions (
            job_id INTEGER PRIMARY KEY,
            {_LEASE}
        )""",
        "ALTER TABLE moves ADD COLUMN partition TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE moves ADD COLUMN own_partitions TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE moves ADD COLUMN old_partitions TEXT NOT NULL DEFAULT ''",
    ),
    (
        # The leases of both sorts in one table: a job may have one of each.
        "ALTER TABLE leases RENAME TO leases_of_nodes",
        f"""CREATE TABLE leases (
            job_id INTEGER NOT NULL,
            sort TEXT NOT NULL,
            {_LEASE},
            PRIMARY KEY (job_id, sort)
        ) WITHOUT ROWID""",
        *(
            "INSERT INTO leases "
            f"SELECT job_id, '{sort}', kind, ours, own, made_s, until_s, restarts, reason FROM {table}"
            for sort, table in (("nodes", "leases_of_nodes"), ("partitions", "partitions"))
        ),
        "DROP TABLE leases_of_nodes",
        "DROP TABLE partitions",
    ),
    (
        # The order of the queue: values of ours, what jobs lost by it, and how long earlier ones ran.
        """CREATE TABLE given_places (
            job_id INTEGER PRIMARY KEY,
            lever TEXT NOT NULL,
            own INTEGER NOT NULL,
            ours INTEGER NOT NULL,
            before INTEGER NOT NULL,
            made_s REAL NOT NULL,
            why TEXT NOT NULL,
            ended_s REAL NOT NULL   -- 0 while the job bears it
        )""",
        "CREATE TABLE overtaken (job_id INTEGER PRIMARY KEY, gpu_s REAL NOT NULL)",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id INTEGER NOT NULL,
            user TEXT NOT NULL,
            name TEXT NOT NULL,
            gpus INTEGER NOT NULL,
            run_s REAL NOT NULL,
            limit_s REAL NOT NULL,  -- 0: none
            ended_s REAL NOT NULL
        )""",
    ),
    (
        # Owners and guests: the list of the guests' partition, what was ordered, what owners used.
        "ALTER TABLE moves ADD COLUMN owners TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE moves ADD COLUMN ran_s REAL NOT NULL DEFAULT 0",
        """CREATE TABLE loan_lists (
            guest TEXT PRIMARY KEY,
            own TEXT NOT NULL,      -- nodes as the site wrote them, a hostlist
            ours TEXT NOT NULL,
            before TEXT NOT NULL,   -- ours until this one was set
            made_s REAL NOT NULL,
            until_s REAL NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE loan_orders (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            guest TEXT NOT NULL,
            at_s REAL NOT NULL,
            due INTEGER NOT NULL,   -- 0: between two orders, since an owner's jobs wait
            total INTEGER NOT NULL,
            used INTEGER NOT NULL,
            waiting INTEGER NOT NULL,
            predicted REAL,         -- NULL: nothing is known
            allowed INTEGER NOT NULL,
            open TEXT NOT NULL,     -- the owner's nodes that are open to guests from then on, a hostlist
            why TEXT NOT NULL
        )""",
        "CREATE TABLE demand (owners TEXT NOT NULL, hour INTEGER NOT NULL, nodes REAL NOT NULL, "
        "PRIMARY KEY (owners, hour)) WITHOUT ROWID",
        """CREATE TABLE scalings (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id INTEGER NOT NULL,
            at_s REAL NOT NULL,
            workers INTEGER NOT NULL,
            why TEXT NOT NULL
        )""",
        "CREATE INDEX scalings_by_job ON scalings (job_id)",
        "CREATE TABLE rates (key TEXT NOT NULL, workers INTEGER NOT NULL, rate REAL NOT NULL, at_s REAL NOT NULL, "
        "PRIMARY KEY (key, workers)) WITHOUT ROWID",
    ),
    (
        # The level of the network apart from the GPUs; of rows on several nodes it is not known, a tick makes new ones.
        "DELETE FROM observations "
        "WHERE (SELECT count(DISTINCT json_extract(value, '$[0]')) FROM json_each(observations.gpus)) > 1",
        "ALTER TABLE observations RENAME COLUMN predicted TO slowdown",
        "ALTER TABLE observations ADD COLUMN level INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE observations ADD COLUMN locality REAL NOT NULL DEFAULT 1",
    ),
    ("ALTER TABLE moves ADD COLUMN saving REAL NOT NULL DEFAULT 0",),
)
"""Statements that lead from one schema version to the next; the version is their number. Append only."""
