"""The promises of the design, as properties of the model: of every state, of every step, and of where each state can lead."""

from __future__ import annotations

from collections.abc import Callable

from verification.model.state import Config, Order, Row, State, bits, members, span

Label = tuple[object, ...]


def cursor_is_resolved(cfg: Config, s: State) -> bool:
    """A cursor never passes an offset that is not resolved."""
    return all(s.row(o) is not Row.NONE for o in range(1, s.cursor))


def one_place(cfg: Config, s: State) -> bool:
    """Every offset below the cursor is in exactly one place: done, in a live claim, in retry, or dead; those above in none."""
    places = [claim.live_stream for claim in s.claims] + [s.dead] + [1 << retry.offset for retry in s.retries]
    seen = 0
    for place in places:
        if place & seen:
            return False
        seen |= place
    passed = span(1, s.cursor - 1)
    return not seen & ~passed and not passed & ~(seen | s.done)


def claimed_retry_has_its_claim(cfg: Config, s: State) -> bool:
    """A retry that is claimed belongs to a live claim."""
    return all(not r.token or any(c.of_retries and c.token == r.token for c in s.claims) for r in s.retries)


def nothing_lost(cfg: Config, s: State) -> bool:
    """What counts as done has run, if its sending was confirmed; what has not been claimed is there."""
    elsewhere = s.dead | bits([retry.offset for retry in s.retries])
    for claim in s.claims:
        elsewhere |= claim.live_stream
    over = span(1, s.cursor - 1) & ~elsewhere
    ahead = s.confirmed & ~span(1, s.cursor - 1)
    return not over & s.confirmed & ~s.ran and all(s.row(o) is Row.MESSAGE for o in members(ahead))


def effects_once(cfg: Config, s: State) -> bool:
    """What a handler commits together with its acked offset happens once."""
    return max(s.effects) <= 1


def log_start_is_below_needed(cfg: Config, s: State) -> bool:
    """The log start offset never passes what the group still needs, but for second lives, which are spared."""
    lowest = [s.cursor] + [claim.acked_to + 1 for claim in s.claims if not claim.of_retries]
    lowest += [retry.offset for retry in s.retries if not s.restored >> retry.offset & 1]
    return s.log_start <= min(lowest)


def bodies_are_kept(cfg: Config, s: State) -> bool:
    """What is to be run has its body."""
    wanted = bits([retry.offset for retry in s.retries])
    for claim in s.claims:
        wanted |= claim.live_stream
    return all(s.row(o) in (Row.MESSAGE, Row.TOMBSTONE) for o in members(wanted))


def one_owner(cfg: Config, s: State) -> bool:
    """In an ordered group a partition has at most one owner."""
    return cfg.order is Order.NONE or sum(claim.owner >= 0 for claim in s.claims) <= 1


STATE: dict[str, Callable[[Config, State], bool]] = {
    "cursor never passes unresolved": cursor_is_resolved,
    "exactly one place": one_place,
    "claimed retry has its claim": claimed_retry_has_its_claim,
    "nothing lost": nothing_lost,
    "effect exactly once": effects_once,
    "log start offset never above needed": log_start_is_below_needed,
    "body kept while needed": bodies_are_kept,
    "one owner in ordered groups": one_owner,
}


def begins_as_owner(cfg: Config, s: State, label: Label) -> bool:
    """Nobody begins a message of a claim that is has another owner."""
    k = label[1]
    assert isinstance(k, int)
    hold = s.clients[k].hold
    claim = s.claim(hold.token) if hold else None
    return hold is None or not hold.running or (claim is not None and claim.owner == k)


def begins_in_order(cfg: Config, s: State, label: Label) -> bool:
    """In an ordered group nothing begins before all that is earlier, in its partition or key, has ended."""
    k = label[1]
    assert isinstance(k, int)
    hold = s.clients[k].hold
    if cfg.order is Order.NONE or hold is None or not hold.running:
        return True
    item = hold.items[hold.place]
    key = cfg.key(item)
    if cfg.order is Order.KEY and not key:
        return True
    earlier = [o for o in range(1, item) if cfg.order is Order.PARTITION or cfg.key(o) == key]
    return all(s.row(o) is not Row.MESSAGE or (s.ran | s.dead) >> o & 1 for o in earlier)


def charges_the_guilty(cfg: Config, s: State, label: Label) -> bool:
    """Nobody is charged for a death but the message that was begun last."""
    _, _, owner, charged = label if len(label) == 4 else (*label, 0)
    assert isinstance(owner, int)
    return not charged or charged == s.clients[owner].last


STEP: dict[str, tuple[str, Callable[[Config, State, Label], bool]]] = {
    "only the owner begins": ("begin", begins_as_owner),
    "in order": ("begin", begins_in_order),
    "only the suspect is charged": ("recover", charges_the_guilty),
}


def settled(cfg: Config, s: State) -> bool:
    """Nothing is left to be done: every state must be able to lead here."""
    return (
        not s.claims
        and not s.retries
        and not s.held
        and all(s.row(o) is Row.NONE for o in range(s.cursor, len(s.rows) + 1))
    )


SETTLES = "can always settle"


def broken(cfg: Config, label: Label, s: State) -> str | None:
    """The first property that a step or the state after it breaks."""
    for name, (kind, holds) in STEP.items():
        if label[0] == kind and not holds(cfg, s, label):
            return name
    return next((name for name, holds in STATE.items() if not holds(cfg, s)), None)
