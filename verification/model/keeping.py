"""What happens around the clients: faults, leases, recovery, publishing, holes, retention, second lives of dead letters."""

from __future__ import annotations

from collections.abc import Iterator

from verification.model.running import ALONE, charge, promote
from verification.model.state import Claim, Client, Config, Life, Retry, Row, State, bits, members, span
from verification.model.taking import Step

# -- clients and their leases ------------------------------------------------------------------------------------------


def die(s: State, k: int) -> State | None:
    """A process is killed: what a client remembers is gone, what the tables say stays."""
    client = s.clients[k]
    if client.life is Life.DEAD or not s.faults:
        return None
    return s.with_client(k, client._replace(life=Life.DEAD, hold=None))._replace(faults=s.faults - 1)


def doubt(s: State, k: int) -> State | None:
    """A client is paused, or cannot renew: its trust ends before its lease does, whatever it was in the middle of."""
    client = s.clients[k]
    if client.life is not Life.TRUSTS or not s.faults:
        return None
    return s.with_client(k, client._replace(life=Life.DOUBTS))._replace(faults=s.faults - 1)


def renew(s: State, k: int) -> State | None:
    """A client that doubted renews in time; one whose lease is gone never does."""
    client = s.clients[k]
    if client.life is not Life.DOUBTS or not client.lease:
        return None
    return s.with_client(k, client._replace(life=Life.TRUSTS))


def leave(s: State, k: int) -> State | None:
    """A client that doubts ends its process."""
    client = s.clients[k]
    return s.with_client(k, client._replace(life=Life.DEAD, hold=None)) if client.life is Life.DOUBTS else None


def deregister(cfg: Config, s: State, k: int) -> State | None:
    """A client that stops well, with nothing left in hand, ends its lease."""
    client = s.clients[k]
    if not cfg.give_back or client.life is not Life.TRUSTS or client.hold is not None:
        return None
    return s.with_client(k, client._replace(life=Life.DEAD, lease=False))


def expire(s: State, k: int) -> State | None:
    """A lease runs out, never while it is trusted."""
    client = s.clients[k]
    if client.life is Life.TRUSTS or not client.lease:
        return None
    return s.with_client(k, client._replace(lease=False))


def register(s: State, k: int) -> State | None:
    """Another client comes in the place of one that left nothing behind."""
    client = s.clients[k]
    if client.life is not Life.DEAD or client.lease or any(claim.owner == k for claim in s.claims):
        return None
    return s.with_client(k, Client())


# -- recovery ----------------------------------------------------------------------------------------------------------


def recover(cfg: Config, s: State, claim: Claim) -> State | None:
    """One lost claim: done part kept, suspect charged if it is known, the rest waits for another owner."""
    orphaned = claim.owner >= 0 and not s.clients[claim.owner].lease
    if not orphaned and (cfg.mutant != "lease not looked at" or claim.owner < 0):
        return None
    blamed = suspect(cfg, s, claim)
    return _recover_retries(cfg, s, claim, blamed) if claim.of_retries else _recover_range(cfg, s, claim, blamed)


def suspect(cfg: Config, s: State, claim: Claim) -> int:
    """The message that is charged with the death of a claim's owner; 0: nobody is."""
    if claim.of_retries:
        known = min((r.offset for r in s.retries if r.token == claim.token), default=0)
    else:
        known = next((o for o in members(claim.live_stream) if s.row(o) is Row.MESSAGE), 0)
    return known if claim.running > claim.acked_to or cfg.mutant == "first of the rest charged" else 0


def _recover_range(cfg: Config, s: State, claim: Claim, blamed: int) -> State:
    rest = Claim(claim.acked_to + 1, claim.hi, claim.acked_to, -1, 0, isolation=min(claim.isolation + 1, ALONE))
    if blamed:
        s, _ = charge(cfg, s, blamed, ALONE)
        s = s._replace(done=s.done | span(claim.acked_to + 1, blamed))
        rest = rest._replace(lo=blamed + 1, acked_to=blamed, isolation=claim.isolation)
    return s.with_claim(claim, *([] if cfg.mutant == "rest forgotten" else [rest]))


def _recover_retries(cfg: Config, s: State, claim: Claim, blamed: int) -> State:
    died = False
    if blamed:
        s, died = charge(cfg, s, blamed, ALONE)
    freed = [r._replace(token=0, isolation=ALONE) for r in s.retries if r.token == claim.token]
    if cfg.mutant == "retries kept claimed":
        freed = [r._replace(isolation=ALONE) for r in s.retries if r.token == claim.token]
    s = s.with_retries(bits([r.offset for r in freed]), *freed).with_claim(claim)
    return promote(cfg, s, [blamed]) if died else s


def _recoveries(cfg: Config, s: State) -> Iterator[tuple[tuple[object, ...], State | None]]:
    lost = [claim for claim in s.claims if claim.owner >= 0]
    if cfg.mutant == "recovered from an old look":
        if s.look is None:
            yield from ((("look", c.lo), s._replace(look=c)) for c in lost if not s.clients[c.owner].lease)
        else:
            yield ("recover", s.look.lo, s.look.owner), recover(cfg, s._replace(look=None), s.look)
        return
    for claim in lost:
        yield ("recover", claim.lo, claim.owner, suspect(cfg, s, claim)), recover(cfg, s, claim)
    if cfg.mutant == "rest given back later" and s.look:
        yield ("add_waiting",), s.with_claim(None, s.look)._replace(look=None)


# -- the stream --------------------------------------------------------------------------------------------------------


def allocate(s: State) -> State | None:
    """A producer takes the next offset, outside of any transaction."""
    if s.allocated >= len(s.rows):
        return None
    return s._replace(allocated=s.allocated + 1, held=s.held | 1 << (s.allocated + 1))


def insert(cfg: Config, s: State, offset: int) -> State:
    """It writes its message there, if the primary key and the log start offset let it, and is confirmed; or it allocates anew."""
    s = s._replace(held=s.held & ~(1 << offset))
    row = s.row(offset)
    free = row is Row.NONE or (row is Row.TOMBSTONE and cfg.mutant == "tombstone overwritten")
    if (free and offset >= s.log_start) or (row is Row.GONE and cfg.mutant == "log start offset not checked"):
        effects = tuple(0 if o == offset else n for o, n in enumerate(s.effects, 1))
        s = s.with_rows(1 << offset, Row.MESSAGE)._replace(effects=effects, ran=s.ran & ~(1 << offset))
        return s._replace(confirmed=s.confirmed | 1 << offset)
    present = [o for o, row in enumerate(s.rows, 1) if row is not Row.NONE]
    return s._replace(allocated=max([s.allocated, s.log_start - 1, *present]))


def close_hole(cfg: Config, s: State) -> State | None:
    """The offsets between the cursor and the next row are closed; the time that it takes is any time."""
    behind = [o for o, row in enumerate(s.rows, 1) if o > s.cursor and row is not Row.NONE]
    if s.row(s.cursor) is not Row.NONE or not behind or cfg.mutant == "hole never closed":
        return None
    return s.with_rows(span(s.cursor, behind[0] - 1), Row.TOMBSTONE)


def _publishing(cfg: Config, s: State) -> Iterator[tuple[tuple[object, ...], State | None]]:
    yield ("allocate",), allocate(s)
    for offset in members(s.held):
        yield ("insert", offset), insert(cfg, s, offset)
        if s.faults:
            yield ("producer_dies", offset), s._replace(held=s.held & ~(1 << offset), faults=s.faults - 1)
    if s.rewinds and s.allocated:
        yield ("rewind",), s._replace(allocated=0, rewinds=s.rewinds - 1)
    yield ("close_hole",), close_hole(cfg, s)


# -- retention and dead letters ----------------------------------------------------------------------------------------


def needed(cfg: Config, s: State) -> int:
    """The lowest offset that the group still needs."""
    parts = {
        "cursor": [s.cursor],
        "claims": [claim.acked_to + 1 for claim in s.claims if not claim.of_retries],
        "retries": [retry.offset for retry in s.retries],
    }
    parts.pop(cfg.mutant.removeprefix("log start offset above "), None)
    return min([len(s.rows) + 1, *(o for part in parts.values() for o in part)])


def raise_log_start(cfg: Config, s: State, to: int) -> State | None:
    """Raise the log start offset over what nobody needs; only rows are passed."""
    passed = all(s.row(o) is not Row.NONE for o in range(s.log_start, to))
    return s._replace(log_start=to) if s.log_start < to <= needed(cfg, s) and passed else None


def delete_below(cfg: Config, s: State) -> State | None:
    """Delete what lies below the log start offset, but what was put back for a second life."""
    spared = 0 if cfg.mutant == "second life not spared" else s.restored
    below = [o for o in range(1, s.log_start) if s.row(o) is not Row.GONE and not spared >> o & 1]
    return s.with_rows(bits(below), Row.GONE) if below else None


def delete_restored(s: State) -> State | None:
    """Delete what was put back and has ended since."""
    waiting = bits([retry.offset for retry in s.retries])
    ended = s.restored & ~waiting
    return s.with_rows(ended, Row.GONE)._replace(restored=s.restored & ~ended) if ended else None


def requeue(cfg: Config, s: State, offset: int) -> State | None:
    """A dead letter gets a second life, with its body."""
    if not s.dead >> offset & 1 or not s.requeues:
        return None
    dead = s.dead if cfg.mutant == "dead letter kept" else s.dead & ~(1 << offset)
    restored = s.restored | (1 << offset if offset < s.log_start else 0)
    s = s.with_rows(1 << offset, Row.MESSAGE).with_retries(0, Retry(offset, 0))
    return s._replace(dead=dead, restored=restored, requeues=s.requeues - 1)


def choices(cfg: Config, s: State) -> Iterator[Step]:
    """Everything that can happen around the clients."""
    found: list[tuple[tuple[object, ...], State | None]] = []
    for k in range(len(s.clients)):
        found += [((what.__name__, k), what(s, k)) for what in (die, doubt, renew, leave, expire, register)]
        found.append((("deregister", k), deregister(cfg, s, k)))
    found += _recoveries(cfg, s)
    found += _publishing(cfg, s)
    if cfg.retention:
        found += [(("raise_log_start", s.log_start + 1), raise_log_start(cfg, s, s.log_start + 1))]
        found += [(("delete_below",), delete_below(cfg, s)), (("delete_restored",), delete_restored(s))]
    if s.requeues:
        found += [(("requeue", o), requeue(cfg, s, o)) for o in members(s.dead)]
    yield from ((label, new) for label, new in found if new is not None)
