"""The one configuration of osd: ``osd.toml``, overridden by ``OSD_…`` variables, frozen once read.

A file a section, a sentence under each setting.

    [learn]                         OSD_LEARN__INTERVAL_REQUESTS=8
    interval_requests = 8
"""

from storage.settings.attach import AttachSettings
from storage.settings.drafters import DrafterSettings
from storage.settings.fleet import FleetSettings
from storage.settings.gamma import GammaSettings
from storage.settings.gate import GateSettings
from storage.settings.learn import LearnSettings
from storage.settings.load import CONFIG_NAME, load_settings
from storage.settings.ngram import NgramSettings
from storage.settings.privacy import EVERYTHING, PrivacySettings
from storage.settings.registry import Registry
from storage.settings.retention import Limits, RetentionSettings, VersionLimits
from storage.settings.router import RouterSettings
from storage.settings.section import OpenSection, Section
from storage.settings.serve import ServeSettings
from storage.settings.server import ServerSettings
from storage.settings.settings import Settings
from storage.settings.storage import StorageSettings
from storage.settings.trace import TraceSettings
from storage.settings.trainer import TrainerSettings
from storage.settings.upstream import UpstreamSettings

__all__ = [
    "CONFIG_NAME", "EVERYTHING", "AttachSettings", "DrafterSettings", "FleetSettings", "GammaSettings",
    "GateSettings", "LearnSettings", "Limits", "NgramSettings", "OpenSection", "PrivacySettings", "Registry",
    "RetentionSettings", "RouterSettings", "Section", "ServeSettings", "ServerSettings", "Settings",
    "StorageSettings", "TraceSettings", "TrainerSettings", "UpstreamSettings", "VersionLimits", "load_settings",
]  # fmt: skip
