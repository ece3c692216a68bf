# SPDX-License-Identifier: Apache-2.0
"""Run by alembic: migrates over the connection that `migration` gives.

That connection holds the lock and, on SQLite, the transaction; both end
outside.
"""

from __future__ import annotations

from alembic import context

from cyborg.db import models

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.Base.metadata,
    compare_type=True,
    mysql_engine=context.config.attributes["mysql_engine"],
    patience=context.config.attributes["patience"],
    transactional_ddl=False,
)

with context.begin_transaction():
    context.run_migrations()
