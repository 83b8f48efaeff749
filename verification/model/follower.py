"""Holds what really happened against the model: each transaction has to be steps that the model allows.

What no table tells is put in where a transaction shows that it must have happened: messages began and ended, leases ran
out. After each transaction the model's tables have to be the real ones, and the model's properties have to hold.

The model runs a claim's messages one after another, so groups whose keys run beside each other cannot be followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verification.model import keeping, running, taking
from verification.model.properties import Label, broken
from verification.model.state import Claim, Config, Order, Row, State, bits, members
from verification.model.trace import Change, Transaction

_ROWS = {"message": Row.MESSAGE, "tombstone": Row.TOMBSTONE}
MANY = 1_000_000


class Refused(AssertionError):
    """Something happened that the model does not allow."""


@dataclass
class Tables:
    """The real rows of one group, after the transactions so far."""

    rows: dict[int, Row] = field(default_factory=dict)
    claims: dict[int, tuple[int, int, int, str | None, bool, int]] = field(default_factory=dict)
    retries: dict[int, tuple[int, bool, int]] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    cursor: int = 1

    def apply(self, change: Change) -> None:
        """Change one row."""
        was, now = change.was, change.now
        if change.table == "ems_message" and now:
            self.rows[now["offset"]] = _ROWS[now["kind"]]
        elif change.table == "ems_cursor" and now:
            self.cursor = now["next_offset"]
        elif change.table == "ems_dead":
            (self.dead.add if now else self.dead.discard)(change.row["offset"])
        elif change.table == "ems_retry":
            self.retries.pop(change.row["offset"], None)
            if now:
                self.retries[now["offset"]] = (now["attempt"], now["claim_id"] is not None, _level(now))
        elif change.table == "ems_claim":
            if was:
                self.claims.pop(was["claim_id"], None)
            if now and now["state"] != "done":
                of_retries = now["source"] == "retry"
                acked_to = now["lo"] - 1 if of_retries else now["acked_to"]
                place = (now["lo"], now["hi"], acked_to, now["client_id"], of_retries, _level(now))
                self.claims[now["claim_id"]] = place


class Follower:
    """Goes with the transactions of one group, from an empty stream on.

    Args:
        transactions: all of them, in order.
        order: of the group; max_attempts: of the group.
    """

    def __init__(self, transactions: Iterable[Transaction], order: Order, max_attempts: int) -> None:
        self.transactions = list(transactions)
        changes = [change for one in self.transactions for change in one.changes]
        offsets = [change.row["offset"] for change in changes if change.table == "ems_message"]
        names = [change.row["client_id"] for change in changes if change.table == "ems_claim"]
        self.clients = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name))}
        self.cfg = Config(
            messages=max(offsets, default=0),
            clients=len(self.clients),
            batch=max(offsets, default=0) + 1,
            order=order,
            published=False,
            faults=MANY,
            failures=MANY,
            max_attempts=max_attempts,
        )
        self.state, self.tables = self.cfg.start(), Tables()
        self.cut = 0  # the claim whose rest is being given back
        self.steps: list[Label] = []

    def follow(self) -> State:
        """Go to the end of the trace.

        Raises:
            Refused: at the first transaction that is not allowed, or that leaves something else than the model says.
        """
        for number, transaction in enumerate(self.transactions, 1):
            try:
                self._one(transaction)
                for change in transaction.changes:
                    self.tables.apply(change)
                self._compare()
            except Refused as refused:
                raise Refused(f"transaction {number}: {refused}\n  {transaction}") from None
        return self.state

    def _one(self, transaction: Transaction) -> None:
        self._stream(transaction.of("ems_message"))
        claims = transaction.of("ems_claim")
        if transaction.what == "recover":
            self._recovery(claims, charges=any(map(_is_charge, transaction.changes)))
            return
        for change in claims:
            self._claim(transaction, change)
        moved = [one for one in transaction.of("ems_cursor") if one.was]
        if not claims and (moved or transaction.of("ems_retry")):
            raise Refused("a cursor or a retry has changed without a claim")

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _stream(self, changes: list[Change]) -> None:
        tombstones = [change for change in changes if change.row["kind"] == "tombstone"]
        for change in changes:
            if change not in tombstones:
                offset = change.row["offset"]
                while self.state.allocated < offset:
                    self._step(("allocate",), keeping.allocate(self.state))
                if not self.state.held >> offset & 1:
                    raise Refused(f"nobody had allocated {offset}")
                self._step(("insert", offset), keeping.insert(self.cfg, self.state, offset))
        if tombstones:
            self._close({change.row["offset"] for change in tombstones})

    def _close(self, offsets: set[int]) -> None:
        """At the cursor; or at that of another group of the topic, where only what lies before a row may be closed."""
        if self.state.cursor in offsets:
            self._step(("close_hole",), keeping.close_hole(self.cfg, self.state))
            return
        behind = self.state.row(max(offsets) + 1)
        if not behind or any(self.state.row(offset) for offset in offsets):
            raise Refused(f"{sorted(offsets)} is no hole before a row")
        self._step(("closed_by_others",), self.state.with_rows(bits(list(offsets)), Row.TOMBSTONE))

    # -- taking, progress ----------------------------------------------------------------------------------------------

    def _claim(self, transaction: Transaction, change: Change) -> None:
        was, now = change.was, change.now
        if was is None and now is not None:
            if now["state"] == "start":
                self._take(transaction, change)
        elif was is not None and was["state"] == "waiting" and now is not None and now["state"] == "start":
            self._take(transaction, change)
        elif was is not None and was["state"] == "start":
            if now is None or now["state"] != "waiting":
                self._progress(transaction, change)
            else:
                self._give_back(self.clients[was["client_id"]])

    def _take(self, transaction: Transaction, change: Change) -> None:
        row, was = change.row, change.was
        k = self.clients[row["client_id"]]
        allowed = [label for label, after in taking.choices(self.cfg, self.state, k) if after is not None]
        if row["source"] == "retry":
            moved = [one for one in transaction.of("ems_retry") if one.now and one.now["claim_id"] == row["claim_id"]]
            offsets = tuple(sorted(one.row["offset"] for one in moved))
            label: Label = ("take_retries", k, offsets)
            after = taking.take_retries(self.cfg, self.state, k, offsets)
        elif was is not None:
            label = ("adopt", k, row["lo"], row["hi"])
            after = taking.adopt(self.cfg, self.state, k, row["lo"], row["hi"])
        else:
            label = ("take_range", k, row["hi"])
            after = taking.take_range(self.cfg, self.state, k, row["hi"])
        if not any(one[:2] == label[:2] for one in allowed) or (label[0] == "adopt" and not _adoptable(allowed, label)):
            raise Refused(f"{label} is not to be had now")
        self._step(label, after)
        self._begin_told(k, change)

    def _progress(self, transaction: Transaction, change: Change) -> None:
        was = change.was
        assert was is not None
        k = self.clients[was["client_id"]]
        claim, hold = running.own(self.cfg, self.state, k), self.state.clients[k].hold
        if claim is None or hold is None or claim.lo != was["lo"]:
            raise Refused(f"{was['client_id']} is not the owner of the claim from {was['lo']} on")
        if change.now is not None and change.now["hi"] < was["hi"]:
            self.cut = was["claim_id"]  # the first half of giving the rest back; the other one follows
            return
        failed = {one.row["offset"] for one in transaction.of("ems_dead") if one.was is None}
        failed |= {o.row["offset"] for o in transaction.of("ems_retry") if o.now and _is_failure(o)}
        self._end(k, self._ended(transaction, change, hold.items[hold.place :]), failed)
        cut = self.cut == was["claim_id"]
        still_held = change.now is not None and change.now["state"] == "start"
        self._flush(k, ends=not still_held and not cut)
        if cut:
            self._end_early(k, still_held)
        elif not still_held and was["source"] == "retry" and self.state.clients[k].hold is not None:
            self._give_back(k)  # retries go back in the transaction that ends their claim
        self._begin_told(k, change)

    def _flush(self, k: int, ends: bool) -> None:
        """All that has ended is written down, if there is anything; a claim may end without any."""
        hold = self.state.clients[k].hold
        assert hold is not None
        if hold.flushed < hold.place or (ends and hold.place == len(hold.items)):
            label = "flush" if ends or hold.place < len(hold.items) else "flush_open"
            self._step((label, k), running.flush(self.cfg, self.state, k, ends))

    def _ended(self, transaction: Transaction, change: Change, left: tuple[int, ...]) -> list[int]:
        if change.row["source"] != "retry":
            return [offset for offset in left if offset <= change.row["acked_to"]]
        mine = {one.row["offset"] for one in transaction.of("ems_retry") if one.now is None or _is_failure(one)}
        return [offset for offset in left if offset in mine]

    def _end(self, k: int, ended: list[int], failed: set[int]) -> None:
        for offset in ended:
            hold = self.state.clients[k].hold
            assert hold is not None
            if hold.items[hold.place] != offset:
                raise Refused(f"{offset} has ended before {hold.items[hold.place]}")
            if not hold.running:
                self._step(("begin", k, offset), running.begin(self.cfg, self.state, k))
            how = "failed" if offset in failed else "ok"
            self._step(("end", k, how), running.end(self.cfg, self.state, k, offset in failed))

    def _begin_told(self, k: int, change: Change) -> None:
        """Under suspicion the row tells what runs now."""
        told = change.now["running"] if change.now else None
        hold = self.state.clients[k].hold
        if told and hold and hold.isolation >= running.ALONE and not hold.running:
            if hold.items[hold.place : hold.place + 1] != (told,):
                raise Refused(f"{told} began out of its turn")
            self._step(("begin", k, told), running.begin(self.cfg, self.state, k))

    def _end_early(self, k: int, still_held: bool) -> None:
        """The other half of giving the rest of a claim back: all of it, or only what comes after what runs."""
        self.cut = 0
        hold = self.state.clients[k].hold
        if hold is None:
            return
        if not still_held:
            self._give_back(k)
            return
        if not hold.running:
            self._step(("begin", k, hold.items[hold.place]), running.begin(self.cfg, self.state, k))
        self._step(("share", k), running.share(self.cfg, self.state, k))

    def _give_back(self, k: int) -> None:
        self._step(("give_back", k), running.give_back(self.cfg, self.state, k))

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _recovery(self, changes: list[Change], *, charges: bool) -> None:
        lost = next(change.was for change in changes if change.was is not None)
        k = self.clients[lost["client_id"]]
        for step in (keeping.doubt, keeping.expire):
            if (after := step(self.state, k)) is not None:
                self._step((step.__name__, k), after)
        claim = next((one for one in self.state.claims if one.owner == k and one.lo == lost["lo"]), None)
        if claim is None:
            raise Refused(f"{lost['client_id']} has no claim from {lost['lo']} on")
        if claim.running and not charges:
            nameless = claim._replace(running=0)
            self._step(("unname", k), self.state.with_claim(claim, nameless))
            claim = nameless
        charged = keeping.suspect(self.cfg, self.state, claim)
        self._step(("recover", claim.lo, k, charged), keeping.recover(self.cfg, self.state, claim))

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _step(self, label: Label, after: State | None) -> None:
        if after is None:
            raise Refused(f"{label} is not allowed here")
        self.state = after
        self.steps.append(label)
        if name := broken(self.cfg, label, after):
            raise Refused(f"{label} breaks {name!r}")

    def _compare(self) -> None:
        state, names = self.state, {number: name for name, number in self.clients.items()}
        real = self.tables
        pairs = {
            "rows": ({o: row for o, row in enumerate(state.rows, 1) if row}, real.rows),
            "cursor": (state.cursor, real.cursor),
            "dead letters": (set(members(state.dead)), real.dead),
            "retries": ({r.offset: (r.attempt, bool(r.token), r.isolation) for r in state.retries}, real.retries),
            "claims": (sorted(map(_place(names), state.claims), key=str), sorted(real.claims.values(), key=str)),
        }
        for what, (expected, found) in pairs.items():
            if expected != found:
                raise Refused(f"{what}: {found}, not {expected}")


def _level(row: Mapping[str, Any]) -> int:
    """The isolation of a row; to the model all levels from ALONE on are one."""
    return min(int(row["isolation"]), running.ALONE)


def _place(names: dict[int, str]) -> object:
    def place(claim: Claim) -> tuple[object, ...]:
        return claim.lo, claim.hi, claim.acked_to, names.get(claim.owner), claim.of_retries, claim.isolation

    return place


def _adoptable(allowed: list[Label], label: Label) -> bool:
    """The claim may be adopted, whole or in part."""
    return any(one[:3] == label[:3] for one in allowed)


def _is_charge(change: Change) -> bool:
    """A retry that was moved up its ladder, or a dead letter."""
    return change.table == "ems_dead" or (change.table == "ems_retry" and _is_failure(change))


def _is_failure(change: Change) -> bool:
    """A retry that was written, or moved up its ladder."""
    return change.was is None or (change.now is not None and change.now["attempt"] > change.was["attempt"])
