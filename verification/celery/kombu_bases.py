"""kombu's own integration tests of a transport, with a connection to the broker of this run.

``python -m verification.celery`` runs it beside kombu's tests, from whose folder ``t`` comes.
"""

import os

import pytest
from kombu import Connection
from t.integration import common
from t.integration.common import (
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)


@pytest.fixture
def connection() -> Connection:
    """To the broker."""
    return Connection(os.environ["TEST_BROKER"])


@pytest.fixture
def invalid_connection() -> Connection:
    """To nobody."""
    return Connection(os.environ["TEST_DEAD_BROKER"])


@pytest.fixture
def failover_connection() -> Connection:
    """To nobody first, then to the broker; of `ems+mysql://` kombu would not tell apart host and port."""
    addresses = (os.environ["TEST_DEAD_BROKER"], os.environ["TEST_BROKER"])
    return Connection(";".join(address.replace("ems+mysql:", "ems:") for address in addresses))


class TestBasicFunctionality(BasicFunctionality):
    """Connections, channels, and both ways."""


class TestExchangeTypes(BaseExchangeTypes):
    """Direct, topic and fanout."""


class TestTimeToLive(BaseTimeToLive):
    """Messages that expire."""


class TestPriority(BasePriority):
    """The highest number first, as AMQP has it."""

    PRIORITY_ORDER = "asc"


class TestMessage(BaseMessage):
    """Ack, reject, requeue."""


if hasattr(common, "BaseEventLoop"):  # since kombu 5.7

    class TestEventLoop(common.BaseEventLoop):
        """Acks of other threads."""


class TestFailover(BaseFailover):
    """Several servers in one address."""
