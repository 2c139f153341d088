"""Run by Alembic: migrates over the connection, and inside the transaction, that `agent.record.schema` hands over."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

from agent.record import tables


def plain_type(kind: str, item: Any, _: AutogenContext) -> str | Literal[False]:
    """A migration must not change with our code, so it names the SQL type, not our class around it."""
    if kind == "type" and isinstance(item, tables.Real):
        return "sa.Float()"
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{type(item.impl_instance).__name__}()"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    render_item=plain_type,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
