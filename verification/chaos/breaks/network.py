"""The network between clients and the server breaks."""

import time

from verification.chaos.arena import Arena
from verification.chaos.breaks.processes import BEYOND_LEASE_S


def cut_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.cut()
        time.sleep(BEYOND_LEASE_S)
        arena.network.heal()
    arena.goes_on()


def freeze_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.freeze()
        time.sleep(BEYOND_LEASE_S)
        arena.network.heal()
    arena.goes_on()


def half_open_network(arena: Arena) -> None:
    """A firewall forgets the connections: whoever waits for an answer hears of it when the other end is reset."""
    assert arena.network
    with arena.fault("network"):
        arena.network.half_open()
        time.sleep(BEYOND_LEASE_S)
        arena.network.reset()
    arena.goes_on()


def slow_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        arena.network.delay_s = 0.05
        time.sleep(4)
        arena.network.heal()
    arena.goes_on()


def reset_network(arena: Arena) -> None:
    assert arena.network
    with arena.fault("network"):
        for _ in range(12):
            arena.network.reset()
            time.sleep(arena.chance.uniform(0.05, 0.5))
    arena.goes_on()
