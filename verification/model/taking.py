"""How a client comes by work.

Each function is one transaction: it returns the state after it, or ``None`` where it is not enabled. What hangs on
``cfg.mutant`` is a fault planted on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from verification.model.state import Claim, Config, Hold, Life, Order, Retry, Row, State, bits

Step = tuple[tuple[object, ...], State]


def may_take(cfg: Config, s: State, k: int) -> bool:
    """A client has nothing in hand; the packet may be on its way though the client doubts, so the server looks at the lease."""
    client = s.clients[k]
    return client.life is not Life.DEAD and client.hold is None and client.lease


def range_end(cfg: Config, s: State) -> int:
    """The last offset of the longest claimable run from the cursor on; below the cursor if there is none."""
    last = s.cursor - 1
    for offset in range(s.cursor, s.cursor + cfg.batch):
        if s.row(offset) is not Row.NONE and (last == offset - 1 or cfg.mutant == "hole skipped"):
            last = offset
    return last


def hold_range(s: State, k: int, claim: Claim, keys: tuple[str, ...] = ()) -> State:
    """A client remembers a claim of the stream; tombstones are nothing to run."""
    items = tuple(o for o in range(claim.lo, claim.hi + 1) if s.row(o) is Row.MESSAGE)
    return s.with_hold(k, Hold(claim.token, False, items, claim.isolation, blocked_keys=keys))


def blocked_keys(cfg: Config, s: State, lo: int, hi: int) -> tuple[str, ...]:
    """The keys of a range that have a message waiting in ``ems_retry``."""
    if cfg.order is not Order.KEY or cfg.mutant == "blocked key not told":
        return ()
    waiting = {cfg.key(retry.offset) for retry in s.retries} - {""}
    return tuple(sorted({cfg.key(o) for o in range(lo, hi + 1)} & waiting))


def take_range(cfg: Config, s: State, k: int, hi: int) -> State | None:
    """Claim from the cursor to ``hi``."""
    if not may_take(cfg, s, k) or not s.cursor <= hi <= range_end(cfg, s):
        return None
    claim = Claim(s.cursor, hi, s.cursor - 1, k, s.fresh_token())
    taken = s.with_claim(None, claim)._replace(cursor=hi + 1)
    return hold_range(taken, k, claim, blocked_keys(cfg, s, claim.lo, hi))


def adopt(cfg: Config, s: State, k: int, lo: int, hi: int) -> State | None:
    """Adopt a waiting claim, or its first part."""
    old = next((claim for claim in s.claims if claim.owner < 0 and claim.lo == lo), None)
    if old is None or not may_take(cfg, s, k) or not lo <= hi <= old.hi:
        return None
    claim = old._replace(hi=hi, owner=k, token=s.fresh_token())
    rest = old._replace(lo=hi + 1, acked_to=hi)
    return hold_range(s.with_claim(old, claim, rest), k, claim, blocked_keys(cfg, s, lo, hi))


def take_retries(cfg: Config, s: State, k: int, offsets: tuple[int, ...]) -> State | None:
    """Claim retries whose time has come: any time may be the time."""
    chosen = [retry for retry in s.retries if retry.offset in offsets and not retry.token]
    if not chosen or len(chosen) != len(offsets) or not may_take(cfg, s, k):
        return None
    token, isolation = s.fresh_token(), max(retry.isolation for retry in chosen)
    claim = Claim(offsets[0], offsets[-1], offsets[0] - 1, k, token, True, isolation)
    taken = s.with_retries(bits(offsets), *(retry._replace(token=token) for retry in chosen)).with_claim(None, claim)
    return taken.with_hold(k, Hold(token, True, offsets, isolation))


def choices(cfg: Config, s: State, k: int) -> Iterator[Step]:
    """Everything that a client could take."""
    if may_take(cfg, s, k):
        taken = _in_order(cfg, s, k) if cfg.order is not Order.NONE else _unordered(cfg, s, k)
        yield from ((label, new) for label, new in taken if new is not None)


Choice = tuple[tuple[object, ...], State | None]


def _unordered(cfg: Config, s: State, k: int) -> Iterator[Choice]:
    if cfg.mutant in ("cursor not locked", "cursor moved first"):
        yield from _range_in_two(cfg, s, k)
    else:
        hi = range_end(cfg, s)
        yield ("take_range", k, hi), take_range(cfg, s, k, hi)
    for claim in s.claims:
        if claim.owner < 0:
            yield from _adoptions(cfg, s, k, claim)
    if due := tuple(retry.offset for retry in s.retries if not retry.token and not retry.isolation):
        yield ("take_retries", k, due[: cfg.batch]), take_retries(cfg, s, k, due[: cfg.batch])
    for retry in s.retries:
        if retry.isolation and not retry.token:
            yield ("take_retries", k, (retry.offset,)), take_retries(cfg, s, k, (retry.offset,))


def _adoptions(cfg: Config, s: State, k: int, claim: Claim) -> Iterator[Choice]:
    hi = min(claim.hi, claim.lo + (0 if claim.isolation else cfg.batch - 1))
    yield ("adopt", k, claim.lo, hi), adopt(cfg, s, k, claim.lo, hi)


def _range_in_two(cfg: Config, s: State, k: int) -> Iterator[Choice]:
    hi = range_end(cfg, s)
    if s.look is None and hi >= s.cursor:
        seen = s._replace(look=Claim(s.cursor, hi, s.cursor - 1, k, 0))
        yield ("look", k), seen._replace(cursor=hi + 1) if cfg.mutant == "cursor moved first" else seen
    if hi >= s.cursor and cfg.mutant == "cursor not locked":
        yield ("take_range", k, hi), take_range(cfg, s, k, hi)
    if s.look and s.look.owner == k:
        claim = s.look._replace(token=s.fresh_token())
        taken = s.with_claim(None, claim)._replace(cursor=claim.hi + 1, look=None)
        yield ("take_looked_at", k), hold_range(taken, k, claim)


def _in_order(cfg: Config, s: State, k: int) -> Iterator[Choice]:
    """One owner at a time; what is to run again comes first, then what was given back, then what is new."""
    if any(claim.owner >= 0 for claim in s.claims) and cfg.mutant != "owner not looked at":
        return
    yield from _retries_in_order(cfg, s, k)
    if cfg.order is Order.PARTITION and s.retries and cfg.mutant != "retry passed":
        return
    waiting = [claim for claim in s.claims if claim.owner < 0]
    if waiting and cfg.mutant != "waiting claim passed":
        yield from _adoptions(cfg, s, k, waiting[0])
    else:
        hi = range_end(cfg, s)
        yield ("take_range", k, hi), take_range(cfg, s, k, hi)


def _retries_in_order(cfg: Config, s: State, k: int) -> Iterator[Choice]:
    if cfg.order is Order.PARTITION:
        if s.retries and not s.retries[0].token:
            first = (s.retries[0].offset,)
            yield ("take_retries", k, first), take_retries(cfg, s, k, first)
        return
    for head in s.retries:
        if not head.blocked and not head.token:
            chain = (head.offset, *_behind(cfg, s, head))
            yield ("take_retries", k, chain), take_retries(cfg, s, k, chain)


def _behind(cfg: Config, s: State, head: Retry) -> list[int]:
    """What waits behind the first of a key comes along, unless that is under suspicion."""
    key = cfg.key(head.offset)
    if head.isolation or not key:
        return []
    same = [retry for retry in s.retries if cfg.key(retry.offset) == key and retry.offset > head.offset]
    return [retry.offset for retry in same if not retry.token and not retry.isolation]
