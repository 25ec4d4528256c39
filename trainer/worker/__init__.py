"""The Celery worker: when to train, on what, at whose cost."""
