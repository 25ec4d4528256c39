"""Runs migrations on the connection, and within the transaction, that storage.sql.schema hands over."""

from alembic import context

connection = context.config.attributes["connection"]
metadata = context.config.attributes.get("metadata")  # only to write a new revision from the tables

context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
