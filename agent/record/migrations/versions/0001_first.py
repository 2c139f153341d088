"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIMING = (
    "(median_us IS NOT NULL) = (status = 'correct') AND (low_us IS NOT NULL) = (status = 'correct') "
    "AND (high_us IS NOT NULL) = (status = 'correct') AND (n_blocks IS NOT NULL) = (status = 'correct') "
    "AND (n_launches IS NOT NULL) = (status = 'correct')"
)


def upgrade() -> None:
    """From nothing."""
    op.create_table(
        "texts",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "runs",
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("task_sha256", sa.Text(), nullable=False),
        sa.Column("task_source_ref", sa.String(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("author_why", sa.Text(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=True),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["task_source_ref"], ["texts.sha256"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("run_id"),
    )
    op.create_table(
        "events",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], initially="DEFERRED", deferrable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index("ix_events_attempt_id", "events", ["attempt_id"])
    op.create_index("ix_events_run_id", "events", ["run_id"])

    op.create_table(
        "attempts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("source_ref", sa.String(), nullable=False),
        sa.Column("rationale", sa.Text(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("prediction", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.ForeignKeyConstraint(["source_ref"], ["texts.sha256"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("attempt_id"),
        sa.UniqueConstraint("run_id", "number"),
    )
    op.create_table(
        "endings",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("best_attempt_id", sa.Text(), nullable=True),
        sa.Column("best_path", sa.Text(), nullable=True),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "messages",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("text_ref", sa.String(), nullable=False),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("raw_json_ref", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["raw_json_ref"], ["texts.sha256"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.ForeignKeyConstraint(["text_ref"], ["texts.sha256"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "resumptions",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("finished_attempts", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "warnings",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "reflections",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("prediction", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.attempt_id"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_reflections_attempt_id", "reflections", ["attempt_id"])

    op.create_table(
        "updates",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("plan_json_ref", sa.String(), nullable=True),
        sa.Column("plan_sha256", sa.Text(), nullable=True),
        sa.Column("library_ops", sa.Text(), nullable=False),
        sa.Column("variants", sa.Integer(), nullable=False),
        sa.Column("trace_s", sa.Float(), nullable=False),
        sa.Column("compile_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.attempt_id"]),
        sa.ForeignKeyConstraint(["plan_json_ref"], ["texts.sha256"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("attempt_id"),
    )
    op.create_table(
        "verdicts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=True),
        sa.Column("low_us", sa.Float(), nullable=True),
        sa.Column("high_us", sa.Float(), nullable=True),
        sa.Column("n_blocks", sa.Integer(), nullable=True),
        sa.Column("n_launches", sa.Integer(), nullable=True),
        sa.Column("coverage", sa.Float(), nullable=True),
        sa.Column("sol_fraction", sa.Float(), nullable=True),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("receipt_json_ref", sa.String(), nullable=False),
        sa.Column("bench_s", sa.Float(), nullable=True),
        sa.Column("best", sa.Boolean(), nullable=True),
        sa.Column("rank_key", sa.Text(), nullable=True),
        sa.CheckConstraint(TIMING, name="only_correct_has_timing"),
        sa.CheckConstraint("sol_fraction IS NULL OR status = 'correct'", name="only_correct_has_sol_fraction"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.attempt_id"]),
        sa.ForeignKeyConstraint(["receipt_json_ref"], ["texts.sha256"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("attempt_id", "tool"),
        sa.UniqueConstraint("seq", "status"),
    )
    op.create_table(
        "cases",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("case", sa.Text(), nullable=False),
        sa.Column("inputs", sa.Text(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("error_ratio", sa.Float(), nullable=False),
        sa.Column("max_abs_error", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["verdicts.seq"]),
        sa.PrimaryKeyConstraint("seq", "position"),
    )
    op.create_table(
        "comparisons",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("baseline", sa.Text(), nullable=False),
        sa.Column("baseline_us", sa.Float(), nullable=False),
        sa.Column("speedup", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=False),
        sa.Column("high", sa.Float(), nullable=False),
        sa.CheckConstraint("status = 'correct'", name="only_correct_is_compared"),
        sa.ForeignKeyConstraint(["seq", "status"], ["verdicts.seq", "verdicts.status"]),
        sa.PrimaryKeyConstraint("seq", "position"),
    )
    op.create_table(
        "kernels",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=False),
        sa.Column("spill_store_bytes", sa.Integer(), nullable=False),
        sa.Column("spill_load_bytes", sa.Integer(), nullable=False),
        sa.Column("stack_bytes", sa.Integer(), nullable=False),
        sa.Column("shared_bytes", sa.Integer(), nullable=False),
        sa.Column("num_warps", sa.Integer(), nullable=False),
        sa.Column("num_stages", sa.Integer(), nullable=False),
        sa.Column("occupancy", sa.Float(), nullable=False),
        sa.Column("cubin_sha256", sa.Text(), nullable=False),
        sa.Column("compile_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["updates.seq"]),
        sa.PrimaryKeyConstraint("seq", "position"),
    )


def downgrade() -> None:
    """There is nothing before the first schema."""
    raise NotImplementedError("the first schema has none before it; restore a backup")
