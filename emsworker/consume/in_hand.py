"""The messages that a consumer has in hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.pulled import PulledClaim, PulledRun
from emsworker.core.errors import FenceLost, NotInHand, RunEnded, TimeLimitExceeded
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

log = logging.getLogger(__name__)


class _Room(NamedTuple):
    """The most messages in hand, and the most delivered, for which a thread waits."""

    most: int
    delivered: int


class InHand:
    """The claims of a consumer and their messages; thread-safe.

    Attributes:
        lock: held around every access to a claim.
        losses: the number of claims that another owner has taken.
        settled: the number of messages that the program has settled.
    """

    def __init__(self) -> None:
        self.lock = forks.Lock()
        self._changed = forks.Condition(self.lock)
        self._room = forks.Condition(self.lock)
        self._all_settled = forks.Condition(self.lock)
        self._waiting: list[_Room] = []
        self._claims: list[PulledClaim] = []
        self._lost: list[tuple[PulledClaim, FenceLost]] = []
        self.losses = self.settled = 0

    def __len__(self) -> int:
        """The number of messages that were claimed and not settled."""
        with self.lock:
            return self._count()

    def _count(self) -> int:
        return sum(len(pulled.held) + len(pulled.queue) for pulled in self._claims)

    def add(self, pulled: PulledClaim) -> None:
        """Add a new claim."""
        with self.lock:
            pulled.owner = self
            self._claims.append(pulled)

    def claims(self) -> list[PulledClaim]:
        """Return the claims that are not finished."""
        with self.lock:
            return list(self._claims)

    def end_sending(self) -> None:
        """Release what this thread holds of a write that an exception from outside has cut, also in its very end."""
        for pulled in self.claims():
            pulled.end_sending()

    def wait(self, seconds: float) -> None:
        """Wait until something was settled, for at most this many seconds."""
        with self._changed:
            self._changed.wait(max(0.0, seconds))

    def wait_until_settled(self, seconds: float, quiet_s: float) -> bool:
        """Wait until all that was claimed is settled, and nothing more was claimed for ``quiet_s`` seconds.

        Args:
            seconds: the most to wait for the former.

        Returns:
            False if something is not settled, or nothing was claimed.
        """
        with self.lock:
            if not self._is_settled():
                self._all_settled.wait(seconds)
            claims = list(self._claims)
            if not self._is_settled():
                return False
            self._all_settled.wait(quiet_s)
            return self._is_settled() and claims == self._claims

    def _is_settled(self) -> bool:
        return bool(self._claims) and all(pulled.all_settled for pulled in self._claims)

    def end_wait(self) -> None:
        """End the wait of :meth:`wait_until_settled`."""
        with self.lock:
            self._all_settled.notify_all()

    def wait_for_room(self, most: int, delivered: int, seconds: float) -> None:
        """Wait until at most ``most`` messages are in hand, for at most this many seconds.

        Args:
            delivered: it ends, too, if at most that many are delivered while others could be.
        """
        room = _Room(most, delivered)
        until = ticks() + seconds
        with self._room:
            self._waiting.append(room)
            try:
                while not self._is_there(room) and (left_s := until - ticks()) > 0:
                    self._room.wait(left_s)
            finally:
                self._waiting.remove(room)

    def _is_there(self, room: _Room) -> bool:
        if self._count() <= room.most:
            return True
        return self._delivered() <= room.delivered and any(pulled.has_ready for pulled in self._claims)

    def _delivered(self) -> int:
        return sum(len(pulled.held) for pulled in self._claims)

    def gather(self, delivered: int, seconds: float) -> None:
        """Wait until at most that many messages are delivered, for at most this many seconds, if others could be."""
        with self.lock:
            has_ready = any(pulled.has_ready for pulled in self._claims)
        if has_ready:
            self.wait_for_room(0, delivered, seconds)

    def may_claim(self) -> bool:
        """Return whether something that is claimed now could be delivered: no suspect is alone, or waits to be."""
        with self.lock:
            suspects = [pulled for pulled in self._claims if pulled.claim.isolation.alone]
            return not any(pulled.keeps_others_out or pulled.is_ready for pulled in suspects)

    def deliver(self, n: int, most: int, taken: list[Message], group_id: int | None = None) -> PulledClaim | None:
        """Take at most ``n`` messages that may be delivered now, if fewer than ``most`` have been.

        A suspect message has the process to itself for the time of its isolation, as behind the gate of a worker: it
        waits for those in hand, and while it is in hand, nothing else is delivered. After that it has company, and a
        crash proves nothing.

        Args:
            taken: an empty list for the messages.
            group_id: of the only group whose messages are wanted.

        Returns:
            the claim of a suspect that is alone from now on, or no longer is; that is to be written down before the
            messages reach the program.
        """
        with self.lock:
            n = min(n, most - self._delivered())
            suspects = [pulled for pulled in self._claims if pulled.claim.isolation.alone]
            if n < 1 or any(pulled.keeps_others_out for pulled in suspects):
                return None
            if (suspect := next((pulled for pulled in suspects if pulled.is_ready), None)) is not None:
                has_company = self._delivered() > 0
                if has_company and suspect.waits_for_others():
                    return None
                if group_id in (None, suspect.claim.group_id):
                    suspect.take(taken)
                    if not has_company:
                        suspect.is_alone = True
                        return suspect
            usual = [pulled for pulled in self._claims if not pulled.claim.isolation.alone]
            for pulled in usual if group_id is None else [one for one in usual if one.claim.group_id == group_id]:
                while len(taken) < n and pulled.take(taken):
                    pass
            named = next((pulled for pulled in suspects if pulled.progress.may_be_named), None) if taken else None
            if named is not None:
                named.is_alone = False
            return named

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages that did not reach the program, to be delivered again."""
        with self.lock:
            for message in reversed(list(messages)):
                run = message.run
                if isinstance(run, PulledRun) and run.ended is None:
                    run.pulled.put_back(message)

    def settle(self, ends: Sequence[tuple[PulledRun, Ended]]) -> None:
        """End messages in hand, all or none.

        Raises:
            NotInHand, RunEnded, FenceLost: one is no longer in hand.
        """
        with self.lock:
            for run, _ in ends:
                if run.ended is not None:
                    raise run.ended
            for run, one in ends:
                run.pulled.settle(one, NotInHand(f"{run.message!r} was settled already"))
            self.settled += len(ends)
            self._note_change()
            if self._is_settled():
                self._all_settled.notify_all()

    def time_out(self, end: Callable[[PulledRun, TimeLimitExceeded], Ended]) -> None:
        """End messages whose time is over."""
        with self.lock:
            now = ticks()
            for pulled in self._claims:
                for run in pulled.overdue(now):
                    error = TimeLimitExceeded(f"was in hand for {now - run.began:.1f} s, longer than its limit")
                    log.warning("%r timed out: it %s", run.message, error)
                    pulled.settle(end(run, error), RunEnded(f"{run.message!r} has timed out, and is retried"))
                    self._note_change()

    def unwant(self, group_id: int) -> None:
        """Deliver nothing more of a group; the next writes give back what was claimed of it and not delivered."""
        with self.lock:
            for pulled in self._claims:
                pulled.unwanted |= pulled.claim.group_id == group_id

    def give_back(self) -> None:
        """Take everything out of hand, so that the next writes give it back."""
        with self.lock:
            for pulled in self._claims:
                pulled.give_back()

    def confirm(self, writes: Iterable[tuple[PulledClaim, ClaimWrite]]) -> None:
        """Note that writes were committed."""
        with self.lock:
            for pulled, write in writes:
                pulled.confirm(write)
            self._drop_finished()

    def tokens(self) -> dict[PulledClaim, int]:
        """Return the fencing tokens of the claims of which no write is under way; one that is learns it by itself."""
        with self.lock:
            return {pulled: pulled.claim.claim_id for pulled in self._claims if pulled.write is None}

    def lose_all(self, claims: Iterable[PulledClaim], tokens: Mapping[PulledClaim, int]) -> None:
        """Note that claims have other owners, unless they have been written since their tokens were looked up."""
        for pulled in claims:
            with self.lock:
                is_same = not pulled.closed and pulled.write is None and pulled.claim.claim_id == tokens[pulled]
            if is_same:
                self.lose(pulled, FenceLost(f"the claim of {pulled.claim.place} has another owner"))

    def lose(self, pulled: PulledClaim, error: FenceLost) -> None:
        """Note that a claim has another owner."""
        with self.lock:
            claim = pulled.claim
            log.warning("the claim of %s has another owner; its messages are delivered again", claim.place)
            self.losses += 1
            if pulled.progress.unsaved:
                self._lost.append((pulled, error))
            pulled.lose(error)
            self._drop_finished()

    def _drop_finished(self) -> None:
        self._claims = [pulled for pulled in self._claims if not pulled.closed]
        self._note_change()

    def _note_change(self) -> None:
        self._changed.notify_all()
        if any(self._is_there(room) for room in self._waiting):
            self._room.notify_all()

    def raise_lost(self, among: Sequence[PulledClaim] | None = None) -> None:
        """Raise an error, once, if messages were settled and their claims were lost before that was written down.

        Args:
            among: only of these claims.
        """
        with self.lock:
            found = [error for pulled, error in self._lost if among is None or pulled in among]
            self._lost = [one for one in self._lost if one[1] not in found]
        if found:
            raise found[0]
