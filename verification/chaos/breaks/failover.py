"""The primary is killed under load, and its semi-synchronous replica is promoted."""

from verification.chaos.arena import Arena
from verification.chaos.sites import turn_to_replica


def fail_over(arena: Arena) -> None:
    """Clients are told of both servers and find the one that takes writes; what was confirmed is there."""
    pair = arena.site.pair
    assert pair
    arena.goes_on(40)
    with arena.fault("failover"):
        pair.fail_over()
        turn_to_replica(arena.site)
        arena.looker.close()
    arena.goes_on(40)
