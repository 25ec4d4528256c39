"""The schema's history. Migrations import SQLAlchemy and Alembic only, so that an old one never changes its meaning."""
