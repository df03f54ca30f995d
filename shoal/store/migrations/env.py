"""Run by Alembic: brings the connection it is given to the newest revision, inside the transaction that is open."""

from __future__ import annotations

from alembic import context

from shoal.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
)
context.run_migrations()
