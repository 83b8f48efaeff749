"""What a client does with what it holds: it begins and ends messages, writes its progress down, gives back."""

from __future__ import annotations

from collections.abc import Iterator

from verification.model.state import Claim, Config, Hold, Life, Order, Retry, State, bits, span
from verification.model.taking import Step

ALONE = 2  # the isolation under which each message is written down before it begins


def own(cfg: Config, s: State, k: int) -> Claim | None:
    """The fence: the claim that a client holds, if it is still its owner's."""
    hold = s.clients[k].hold
    claim = s.claim(hold.token) if hold else None
    return claim if claim and claim.owner == k else None


def lost(s: State, k: int) -> State:
    """A client meets the fence: it drops what it holds."""
    return s.with_hold(k, None)


def begin(cfg: Config, s: State, k: int) -> State | None:
    """Begin the next message; only while the lease is trusted, under suspicion only after writing it down."""
    client, hold = s.clients[k], s.clients[k].hold
    trusts = client.life is Life.TRUSTS or (client.life is Life.DOUBTS and cfg.mutant == "lease trusted too long")
    if hold is None or not trusts or hold.running or hold.owed or hold.place >= len(hold.items):
        return None
    if cfg.order is Order.PARTITION and (hold.fails or hold.held) and cfg.mutant != "failure passed":
        return None
    item = hold.items[hold.place]
    if hold.isolation >= ALONE:
        claim = own(cfg, s, k)
        if hold.flushed != hold.place:
            return None
        if claim is None:
            return lost(s, k)
        s = s.with_claim(claim, claim._replace(running=item))
    return s.with_client(k, client._replace(hold=hold._replace(running=True), last=item))


def unname(cfg: Config, s: State, k: int) -> State | None:
    """Others start beside the message that was written down, or nothing proves it: its owner's death charges nobody."""
    claim = own(cfg, s, k) if s.clients[k].hold is not None else None
    return s.with_claim(claim, claim._replace(running=0)) if claim is not None and claim.running else None


def end(cfg: Config, s: State, k: int, failed: bool) -> State | None:
    """The running message ends."""
    hold = s.clients[k].hold
    if hold is None or not hold.running or (failed and not s.failures):
        return None
    item = hold.items[hold.place]
    hold = hold._replace(running=False, place=hold.place + 1)
    if failed:
        return s.with_hold(k, hold._replace(fails=(*hold.fails, item)))._replace(failures=s.failures - 1)
    s = _counted(s, [item]) if cfg.mutant == "effects apart" else s
    return s.with_hold(k, hold)._replace(ran=s.ran | 1 << item)


def skip_blocked(cfg: Config, s: State, k: int) -> State | None:
    """A message whose key waits for an earlier one is not run but blocked."""
    hold = s.clients[k].hold
    if cfg.order is not Order.KEY or hold is None or hold.running or hold.place >= len(hold.items):
        return None
    item = hold.items[hold.place]
    held_up = {*hold.blocked_keys, *(cfg.key(o) for o in (*hold.fails, *hold.blocked))} - {""}
    if cfg.key(item) not in held_up or cfg.mutant == "key not blocked":
        return None
    return s.with_hold(k, hold._replace(place=hold.place + 1, blocked=(*hold.blocked, item)))


def must_block(cfg: Config, s: State, k: int) -> bool:
    """Whether the next message may not begin because of its key."""
    return skip_blocked(cfg, s, k) is not None


def flush(cfg: Config, s: State, k: int, ends: bool = True) -> State | None:
    """Write progress down, as the owner or not at all.

    The claim ends with its last message. Not so if the flusher is quicker than the end (``ends`` is false): then all
    is written down of a claim that its owner still holds, with the tombstones behind its last message.
    """
    hold = s.clients[k].hold
    if hold is None or hold.running or hold.owed:
        return None
    finished = ends and hold.place == len(hold.items)
    if hold.flushed == hold.place and not finished:
        return None
    claim = own(cfg, s, k)
    if claim is None:
        if cfg.mutant != "fence dropped":
            return lost(s, k)
        return lost(record(cfg, s, k, hold, None, finished), k)
    return record(cfg, s, k, hold, claim, finished)


def record(cfg: Config, s: State, k: int, hold: Hold, claim: Claim | None, finished: bool) -> State:
    """One transaction: the acked offset, the effects of what went well, what becomes of the rest."""
    ended = [o for o in hold.items[hold.flushed : hold.place] if o not in hold.fails and o not in hold.blocked]
    s = _move(cfg, with_effects(cfg, s, ended), hold, claim, finished)
    if hold.of_retries:
        s = s.with_retries(bits(ended))
    keys = {*hold.blocked_keys, *(cfg.key(o) for o in (*hold.fails, *hold.blocked))} - {""}
    held = hold.held or (cfg.order is Order.PARTITION and bool(hold.fails))
    later = hold._replace(flushed=hold.place, fails=(), blocked=(), blocked_keys=tuple(sorted(keys)), held=held)
    if cfg.mutant == "failures written later" and hold.fails:
        return s.with_hold(k, later._replace(owed=hold.fails))
    s = settle(cfg, s, hold, ended)
    return s.with_hold(k, None if finished else later)


def with_effects(cfg: Config, s: State, ended: tuple[int, ...] | list[int]) -> State:
    """What handlers have written is committed together with the acked offset."""
    return s if cfg.mutant == "effects apart" else _counted(s, ended)


def _counted(s: State, ended: tuple[int, ...] | list[int]) -> State:
    """Effects are counted up to two, which is one too many."""
    return s._replace(effects=tuple(min(2, n + (o in ended)) for o, n in enumerate(s.effects, 1)))


def _move(cfg: Config, s: State, hold: Hold, claim: Claim | None, finished: bool) -> State:
    if claim is None:  # no fence, no claim: whatever is left of the range is marked
        return s._replace(done=s.done | bits(hold.items[: hold.place]))
    if claim.of_retries:
        return s.with_claim(claim, *([] if finished else [claim._replace(running=0)]))
    acked_to = claim.hi if finished or cfg.mutant == "acknowledged first" else hold.items[hold.place - 1]
    s = s._replace(done=s.done | span(claim.acked_to + 1, acked_to))
    if finished:
        return s.with_claim(claim)
    return s.with_claim(claim, claim._replace(acked_to=acked_to, running=0))


def settle(cfg: Config, s: State, hold: Hold, ended: list[int]) -> State:
    """Failed messages go to retry or die, blocked ones wait, and the next of each key has its turn."""
    over = list(ended) if hold.of_retries else []
    for offset in hold.fails:
        s, died = charge(cfg, s, offset)
        over += [offset] if died else []
    for offset in hold.blocked:
        old = s.retry(offset)
        row = old._replace(token=0) if old else Retry(offset, 0, blocked=True)
        s = s.with_retries(1 << offset, row)
    return promote(cfg, s, [*over, *hold.blocked])


def charge(cfg: Config, s: State, offset: int, isolation: int = 0) -> tuple[State, bool]:
    """One more attempt of a message is used up; returns whether it was the last one."""
    old = s.retry(offset)
    attempt = (old.attempt if old else 0) + 1
    s = s.with_retries(1 << offset)
    if attempt >= cfg.max_attempts:
        return s._replace(dead=s.dead | 1 << offset), True
    return s.with_retries(0, Retry(offset, attempt, 0, max(isolation, old.isolation if old else 0))), False


def promote(cfg: Config, s: State, offsets: list[int]) -> State:
    """The first that waits of each of these messages' keys may run."""
    if cfg.order is not Order.KEY or cfg.mutant == "next of the key forgotten":
        return s
    for key in {cfg.key(o) for o in offsets} - {""}:
        waiting = [retry for retry in s.retries if cfg.key(retry.offset) == key]
        if cfg.mutant == "every one of the key promoted":
            s = s.with_retries(bits([r.offset for r in waiting]), *(r._replace(blocked=False) for r in waiting))
        elif waiting:
            s = s.with_retries(1 << waiting[0].offset, waiting[0]._replace(blocked=False))
    return s


def give_back(cfg: Config, s: State, k: int) -> State | None:
    """The rest of a claim waits for another owner, if only tombstones are left of it.

    A client does so when it stops or doubts its lease; and, where a partition runs in order, when a message is to run
    again before the next one.
    """
    hold, claim = s.clients[k].hold, own(cfg, s, k)
    if hold is None or claim is None or hold.running or hold.fails or hold.blocked or hold.owed:
        return None
    if hold.of_retries:
        s = _keep_retries(cfg, s, hold, claim)
    else:
        last = max([claim.lo - 1, *hold.items[: hold.place]])
        rest = Claim(last + 1, claim.hi, last, -1, 0, isolation=claim.isolation)
        forgets = cfg.mutant == "rest given back later"
        s = s.with_claim(claim, *([] if forgets else [rest]))
        s = s._replace(done=s.done | span(claim.acked_to + 1, last), look=rest if forgets else s.look)
        s = with_effects(cfg, s, hold.items[hold.flushed : hold.place])
    return s.with_hold(k, None)


def share(cfg: Config, s: State, k: int) -> State | None:
    """A message runs for long: what comes after it waits for another owner, and its client goes on with it."""
    hold, claim = s.clients[k].hold, own(cfg, s, k)
    if cfg.order is not Order.NONE or hold is None or claim is None or not hold.running or hold.flushed < hold.place:
        return None
    last = hold.items[hold.place]
    if last >= claim.hi:
        return None
    if hold.of_retries:
        later = [retry._replace(token=0) for retry in s.retries if retry.token == claim.token and retry.offset > last]
        s = s.with_retries(bits([retry.offset for retry in later]), *later).with_claim(claim, claim._replace(hi=last))
    else:
        rest = Claim(last + 1, claim.hi, last, -1, 0, isolation=claim.isolation)
        s = s.with_claim(claim, claim._replace(hi=last), rest)
    return s.with_hold(k, hold._replace(items=hold.items[: hold.place + 1]))


def _keep_retries(cfg: Config, s: State, hold: Hold, claim: Claim) -> State:
    ended = hold.items[hold.flushed : hold.place]
    left = [retry._replace(token=0) for retry in s.retries if retry.token == claim.token]
    s = with_effects(cfg, s, ended).with_retries(bits(hold.items), *(r for r in left if r.offset not in ended))
    return s.with_claim(claim)


def _second_halves(cfg: Config, s: State, k: int) -> Iterator[Step]:
    """What only mutants do: the other half of a transaction that was torn in two."""
    hold = s.clients[k].hold
    if hold and hold.owed:
        late = settle(cfg, s, hold._replace(fails=hold.owed), [])
        finished = hold.place == len(hold.items)
        yield ("write_failures", k), late.with_hold(k, None if finished else hold._replace(owed=()))


def choices(cfg: Config, s: State, k: int) -> Iterator[Step]:
    """Everything that a client could do with what it holds."""
    hold = s.clients[k].hold
    if hold is None:
        return
    if must_block(cfg, s, k):
        begun: State | None = None
    else:
        begun = begin(cfg, s, k)
    found = [
        (("begin", k, hold.items[hold.place] if hold.place < len(hold.items) else 0), begun),
        (("unname", k), unname(cfg, s, k)),
        (("skip_blocked", k), skip_blocked(cfg, s, k)),
        (("end", k, "ok"), end(cfg, s, k, False)),
        (("end", k, "failed"), end(cfg, s, k, True)),
        (("flush", k), flush(cfg, s, k)),
        (("flush_open", k), flush(cfg, s, k, ends=False) if hold.place == len(hold.items) else None),
        (("give_back", k), give_back(cfg, s, k) if cfg.give_back or hold.held else None),
        (("share", k), share(cfg, s, k) if cfg.give_back else None),
    ]
    yield from ((label, new) for label, new in found if new is not None)
    yield from _second_halves(cfg, s, k)
