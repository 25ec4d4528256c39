"""The schema's migrations. They import SQLAlchemy and Alembic alone, so that an old one never changes its meaning."""
