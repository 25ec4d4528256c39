"""The one configuration of osd: ``osd.toml``, overridden by ``OSD_…`` variables, frozen once read.

    [learn]                         OSD_LEARN__INTERVAL_REQUESTS=8
    interval_requests = 8

A sentence stands under each setting, in the file of its subject.
"""

from storage.settings.drafting import DrafterSettings, GammaSettings, NgramSettings
from storage.settings.keeping import (
    EVERYTHING,
    Limits,
    PrivacySettings,
    RetentionSettings,
    StorageSettings,
    TraceSettings,
    VersionLimits,
)
from storage.settings.learning import GateSettings, LearnSettings, TrainerSettings
from storage.settings.registry import Registry
from storage.settings.section import OpenSection, Section
from storage.settings.serving import (
    AttachSettings,
    FleetSettings,
    RouterSettings,
    ServerSettings,
    ServeSettings,
    UpstreamSettings,
)
from storage.settings.settings import CONFIG_NAME, Settings, load_settings

__all__ = [
    "CONFIG_NAME", "EVERYTHING", "AttachSettings", "DrafterSettings", "FleetSettings", "GammaSettings",
    "GateSettings", "LearnSettings", "Limits", "NgramSettings", "OpenSection", "PrivacySettings", "Registry",
    "RetentionSettings", "RouterSettings", "Section", "ServeSettings", "ServerSettings", "Settings",
    "StorageSettings", "TraceSettings", "TrainerSettings", "UpstreamSettings", "VersionLimits", "load_settings",
]  # fmt: skip
