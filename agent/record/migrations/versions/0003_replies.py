"""Replies of models have a table of their own; a message says which conversation it belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXTS = ("text_ref", "thinking_ref", "calls_json_ref", "raw_json_ref")


def upgrade() -> None:
    """From a schema in which no model had ever replied."""
    op.add_column("messages", sa.Column("conversation", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "replies",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("text_ref", sa.String(), nullable=False),
        sa.Column("thinking_ref", sa.String(), nullable=False),
        sa.Column("calls_json_ref", sa.String(), nullable=False),
        sa.Column("stop", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("cost_usd", sa.Float(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("raw_json_ref", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        *(sa.ForeignKeyConstraint([column], ["texts.sha256"]) for column in TEXTS),
        sa.PrimaryKeyConstraint("seq"),
    )


def downgrade() -> None:
    """Replies have no place in the schema before."""
    raise NotImplementedError("restore the backup that was made beside the database")
