"""What a verdict and its comparisons say in fields instead of in words."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows of before have none of these facts."""
    op.add_column("verdicts", sa.Column("facts", sa.Text(), nullable=True))
    op.add_column("cases", sa.Column("limitations", sa.Text(), nullable=True))


def downgrade() -> None:
    """Would lose the facts."""
    raise NotImplementedError("restore the backup that was made beside the database")
