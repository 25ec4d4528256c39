"""The Celery application, where ``celery -A trainer`` looks for it: ``status``, ``inspect active``, ``call osd.turn``,
``worker`` (which trains as ``osd trainer`` does).

It has the settings of every command: ``$OSD_CONFIG``, else ``osd.toml`` here, and ``OSD_…`` variables.
"""

from __future__ import annotations

from storage.settings import load_settings
from trainer.worker.app import equip
from trainer.worker.broker import make_app

_settings = load_settings()
app = make_app(_settings)
equip(app, _settings)
