"""Where jobs come from, what their attempts ran in and what they read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "origins",
        sa.Column("job_id", WORD, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("diff", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_origins_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name="pk_origins"),
    )
    op.create_table(
        "records",
        sa.Column("key", WORD, nullable=False),
        sa.Column("node", WORD, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["attempts.key"], name="fk_records_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "node", name="pk_records"),
    )
    op.create_table(
        "inputs",
        sa.Column("key", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("mixed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["attempts.key"], name="fk_inputs_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "name", name="pk_inputs"),
    )
