"""All sections together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from storage.settings.attach import AttachSettings
from storage.settings.drafters import DrafterSettings
from storage.settings.explain import explain
from storage.settings.fleet import FleetSettings
from storage.settings.gamma import GammaSettings
from storage.settings.gate import GateSettings
from storage.settings.learn import LearnSettings
from storage.settings.ngram import NgramSettings
from storage.settings.privacy import PrivacySettings
from storage.settings.retention import RetentionSettings
from storage.settings.router import RouterSettings
from storage.settings.section import Section
from storage.settings.serve import ServeSettings
from storage.settings.server import ServerSettings
from storage.settings.storage import StorageSettings
from storage.settings.trace import TraceSettings
from storage.settings.trainer import TrainerSettings
from storage.settings.upstream import UpstreamSettings


class Settings(Section):
    """All of it. ``Settings()`` has every default; :func:`storage.settings.load_settings` reads file and
    environment."""

    storage: StorageSettings = StorageSettings()
    serve: ServeSettings = ServeSettings()
    gamma: GammaSettings = GammaSettings()
    drafters: DrafterSettings = DrafterSettings()
    ngram: NgramSettings = NgramSettings()
    server: ServerSettings = ServerSettings()
    fleet: FleetSettings = FleetSettings()
    router: RouterSettings = RouterSettings()
    learn: LearnSettings = LearnSettings()
    gate: GateSettings = GateSettings()
    trainer: TrainerSettings = TrainerSettings()
    retention: RetentionSettings = RetentionSettings()
    privacy: PrivacySettings = PrivacySettings()
    trace: TraceSettings = TraceSettings()
    attach: AttachSettings = AttachSettings()
    upstream: UpstreamSettings = UpstreamSettings()

    def changed(self, **sections: Mapping[str, Any]) -> Settings:
        """Return these settings with other values: section → {key: value}, a table's values likewise. Raises
        BadSetting."""
        try:
            return Settings(**self.with_changes(sections))
        except ValidationError as error:
            raise explain(error, "option", Settings) from None
