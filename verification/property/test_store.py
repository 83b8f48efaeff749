"""Any sequence of the store's operations leaves the tables as the oracle says, and every promise kept."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from emsworker.core.model import Order
from tests.support.streams import Stream
from verification.property.byhand import StoreMachine
from verification.property.settings import LONG_S, SETTINGS, rounds


@pytest.mark.timeout(LONG_S * 2 + 300)
@pytest.mark.parametrize("order", list(Order))
def test_any_sequence_of_operations_keeps_the_promises(stream: Stream, order: Order) -> None:
    for _ in rounds(LONG_S):
        run_state_machine_as_test(lambda: StoreMachine(stream, order), settings=SETTINGS)
    sequences = stream.value("SELECT COUNT(*) FROM ems_topic")
    print(f"order={order.value}: {sequences} sequences")
