"""``--middleware osd_vllm.harvest.Harvest``: harvests this server's answers."""

from __future__ import annotations

from functools import cache

from .middleware import App, HarvestMiddleware
from .options import Options
from .sender import Sender


@cache
def options() -> Options:
    """Return the options of this process. Raises BadOption."""
    return Options.read()


@cache
def sender() -> Sender:
    """Return the one sender of this process."""
    return Sender(options())


class Harvest(HarvestMiddleware):
    """The middleware with this process's sender."""

    def __init__(self, app: App) -> None:
        super().__init__(app, sender())
        sender().harvests = True
