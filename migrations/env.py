"""Alembic's environment: runs migrations on the connection, within the transaction, that storage.sql.schema passes."""

from alembic import context

connection = context.config.attributes["connection"]
metadata = context.config.attributes.get("metadata")  # only for writing a new revision from the tables

context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
