"""Run by Alembic: apply migrations on the connection that `detcore.database` hands over."""

from __future__ import annotations

from alembic import context

from detcore.database._schema import metadata

# The caller holds the write lock and commits, so that a killed migration leaves nothing.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
)
with context.begin_transaction():
    context.run_migrations()
