"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _meta()
    _jobs()
    _specs()
    _tags()
    _events()
    _attempts()
    _shepherds()
    _ranks()
    _directives()
    _leases()
    _users()
    _tokens()
    _manifests()
    _pool_files()
    _webhooks()
    _deliveries()


def _meta() -> None:
    op.create_table(
        "meta",
        sa.Column("name", WORD, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_meta"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", WORD, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("project", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("submit_key", WORD, nullable=True),
        sa.Column("state", WORD, nullable=False),
        sa.Column("reason", WORD, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("framework", sa.Text(), nullable=False),
        sa.Column("strategy", sa.Text(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("retries_used", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=True),
        sa.Column("placed_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("stopping_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("stop_grace", sa.Double(), nullable=True),
        sa.Column("overran", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=True),
        sa.Column("in_place", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("owner", "submit_key", name="uq_jobs_owner_submit_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_name_seq", "jobs", ["name", "seq"], unique=False)
    op.create_index("ix_jobs_owner_seq", "jobs", ["owner", "seq"], unique=False)
    op.create_index("ix_jobs_project_seq", "jobs", ["project", "seq"], unique=False)
    op.create_index(
        "ix_jobs_queue",
        "jobs",
        ["turn", "seq"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index("ix_jobs_state_seq", "jobs", ["state", "seq"], unique=False)


def _specs() -> None:
    op.create_table(
        "specs",
        sa.Column("job_id", WORD, nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_specs_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name="pk_specs"),
    )


def _tags() -> None:
    op.create_table(
        "tags",
        sa.Column("tag", WORD, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["jobs.seq"], name="fk_tags_seq", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tag", "seq", name="pk_tags"),
    )
    op.create_index("ix_tags_seq", "tags", ["seq"], unique=False)


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("job_id", WORD, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_seq", "events", ["job_id", "seq"], unique=False)


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("key", WORD, nullable=False),
        sa.Column("job_id", WORD, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("complete_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("roster_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("joined", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("progress", sa.Double(), nullable=True),
        sa.Column("changes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name="pk_attempts"),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
    )
    op.create_index(
        "ix_attempts_open",
        "attempts",
        ["key"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def _shepherds() -> None:
    op.create_table(
        "shepherds",
        sa.Column("key", WORD, nullable=False),
        sa.Column("node", WORD, nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("ports", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.Column("last_event", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["attempts.key"], name="fk_shepherds_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "node", name="pk_shepherds"),
    )


def _ranks() -> None:
    op.create_table(
        "ranks",
        sa.Column("key", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("role", WORD, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("node", WORD, nullable=False),
        sa.Column("local", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.BigInteger(), nullable=True),
        sa.Column("oom", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failed_start", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("tail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("progress", sa.Text(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("fraction", sa.Double(), nullable=True),
        sa.Column("progress_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["key"], ["attempts.key"], name="fk_ranks_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "name", name="pk_ranks"),
    )
    op.create_index("ix_ranks_key_fraction", "ranks", ["key", "fraction"], unique=False)
    op.create_index("ix_ranks_key_node", "ranks", ["key", "node"], unique=False)


def _directives() -> None:
    op.create_table(
        "directives",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("key", WORD, nullable=False),
        sa.Column("node", WORD, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["attempts.key"], name="fk_directives_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name="pk_directives"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_directives_key_seq", "directives", ["key", "seq"], unique=False)


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", WORD, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def _users() -> None:
    op.create_table(
        "users",
        sa.Column("name", WORD, nullable=False),
        sa.Column("admin", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", WORD, nullable=False),
        sa.Column("user", WORD, nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name="fk_tokens_user", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_index("ix_tokens_user", "tokens", ["user"], unique=False)


def _manifests() -> None:
    op.create_table(
        "manifests",
        sa.Column("owner", WORD, nullable=False),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "digest", name="pk_manifests"),
    )


def _pool_files() -> None:
    op.create_table(
        "pool_files",
        sa.Column("owner", WORD, nullable=False),
        sa.Column("path", WORD, nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "path", name="pk_pool_files"),
    )


def _webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("owner", WORD, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("kinds", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_webhooks"),
    )


def _deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("seq", SERIAL, autoincrement=True, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("status", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tried_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_deliveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_next_at", "deliveries", ["next_at"], unique=False)
    op.create_index("ix_deliveries_owner_seq", "deliveries", ["owner", "seq"], unique=False)
