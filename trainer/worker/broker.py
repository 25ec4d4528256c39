"""Checks of a broker, with osd's own errors."""

from __future__ import annotations

from urllib.parse import urlsplit

from amqp.exceptions import AccessRefused, NotAllowed
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES

from storage.distribution import install_extra
from storage.errors import BadSetting

SECONDS = 5.0
RIGHT = "give redis://HOST:6379/0 or amqp://USER:PASSWORD@HOST//, or none for files in the data directory"
REFUSED = (AccessRefused, NotAllowed)


def require_url(url: str) -> None:
    """Raise BadSetting for a URL of no broker, without repeating what may contain a password."""
    try:
        scheme, _port = urlsplit(url).scheme, urlsplit(url).port
    except ValueError as error:
        raise _bad(f"it is no URL ({error}); {RIGHT}") from None
    if scheme.partition("+")[0] not in TRANSPORT_ALIASES:
        raise _bad(f"{scheme or 'a URL without a scheme'} is not known to Celery; {RIGHT}")


def connect_once(app: Celery) -> None:
    """Connect to the broker once.

    Raises BadSetting for a broker that refuses this login, OperationalError or OSError for one that is unreachable,
    ImportError where its client is not installed.
    """
    with app.connection_for_write(connect_timeout=SECONDS) as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=SECONDS)
        except REFUSED as error:
            what = "the user, password or virtual host is refused"
            raise _bad(f"{connection.as_uri()}: {what} ({error.reply_text}); correct it") from None


def require_broker(app: Celery) -> None:
    """Raise BadSetting for what waiting does not mend. A broker that is unreachable is waited for."""
    try:
        connect_once(app)
    except (OperationalError, OSError):
        return
    except ImportError as error:
        raise _bad(f"{error}; install the broker's client, {install_extra('redis')}") from None


def _bad(reason: str) -> BadSetting:
    return BadSetting(source="settings", key="trainer.broker", reason=reason)
