"""The clients' tests that our own server passes, over a front whose replica is that server."""

import pytest

from tests.osd.server.test_openai_client import *  # noqa: F403
from tests.osd.server.test_other_clients import *  # noqa: F403

pytestmark = pytest.mark.long
