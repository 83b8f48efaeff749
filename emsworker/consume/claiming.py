"""Claims for a consumer that pulls: where there is work, within the limits of the group, under a lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from emsworker.broker.channel import Channel
from emsworker.broker.mysql import MysqlBroker
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.claimer import Claimer
from emsworker.consume.flusher import HeldClaims
from emsworker.consume.hints import Hint, hints_of
from emsworker.consume.in_hand import InHand, PulledClaim, PulledRun
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.permits import Limiter, Refunds
from emsworker.consume.poller import Poller
from emsworker.core.errors import Conflict, FenceLost, StoreError, TimeLimitExceeded
from emsworker.core.model import Claim, Group, Order, Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.work import Claimant
from emsworker.store import Session
from emsworker.store.groups import recalling
from emsworker.store.groups.claims import find_work

log = logging.getLogger(__name__)

_LEASE_WAIT_S, _SLICE_S = 0.1, 0.25
_DOUBT_S = 60.0  # for so long a packet whose answer was lost may still wait for a lock and then commit
_LOOK_S = 1.0
_MOST_ENDS = 32  # of claims, in one packet
# While more than half of what is wanted is in hand, pauses between claims last this many times as long as a claim: each
# takes several messages, and carries the ends of several claims.
_REST = 3
_MOST_AHEAD = 4  # times the prefetch: a worker whose tasks slow down has taken no more than that from others
# After that long without a claim nothing is about to carry the ends of what is settled, and the next claim is faster
# without them.
_QUIET_S = 0.003


@dataclass(frozen=True)
class ReadGroup:
    """A group that a consumer reads, and the seconds that a message of it may be in hand."""

    topic: Topic
    group: Group
    hold_s: float


class SettlingRate:
    """The rate at which messages are settled, by the last span of time.

    Attributes:
        rate: messages a second.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._since, self._settled = ticks(), 0

    def note(self, settled: int, span_s: float) -> None:
        """Note how many were settled so far; the rate changes if ``span_s`` seconds have passed since it did."""
        passed_s = (now := ticks()) - self._since
        if passed_s >= span_s:
            self.rate = (settled - self._settled) / passed_s
            self._since, self._settled = now, settled


class Claiming:
    """Takes claims in the threads that fetch, one thread at a time.

    Args:
        session, channel: one connection.
        source: the stream.
        lease: of the consumer; poller: finds its work.
        prefetch: the most messages that are delivered and not settled.
        ahead_s: seconds of work that is claimed beyond that, by the rate at which messages are settled.
        broadcasts: returns the broadcast topics whose ends are read with a claim.
    """

    def __init__(
        self,
        session: Session,
        channel: Channel,
        source: MysqlBroker,
        lease: LeaseRenewer,
        poller: Poller,
        prefetch: int,
        ahead_s: float,
        broadcasts: Callable[[], Collection[int]],
    ) -> None:
        self.mutex = forks.Lock()  # around every use of the connection
        self._session, self._channel = session, channel
        self.places: dict[int, ReadGroup] = {}  # by group id
        self.prefetch, self.ahead_s = prefetch, ahead_s
        self._broadcasts = broadcasts
        self._settling = SettlingRate()
        self._lease, self._poller = lease, poller
        self._limiter = Limiter(session, Refunds(), poller)
        self._client_id, self._term = "", (-1, 0)
        self._claimer = Claimer(channel, poller, source.settings.batch_bytes, source.decoder)
        self._doubtful: list[tuple[Claimant, float]] = []  # packets whose answers were lost
        self._asked: Claimant | None = None  # from before its packet leaves until what it has taken is in hand
        self._look_at = 0.0
        self._rests_until = 0.0

    def register(self) -> None:
        """Register a client, with a lease."""
        gaps = self._lease.gaps
        self._client_id, generation = self._lease.register(self._session)
        self._term = generation, gaps

    def deregister(self) -> None:
        """Delete the client; a claim that it still has is recovered by the beat, unless it is known to be in doubt."""
        self._look_at = 0.0
        self._recall()
        self._limiter.leave()
        self._lease.deregister(self._session, self._client_id)

    def close(self) -> None:
        self._channel.close()

    def holds(self, pulled: PulledClaim) -> bool:
        """Return whether the lease under which a claim was taken still holds."""
        return self._lease.good and self._lease.term == pulled.term

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, size: int, n: int, in_hand: InHand, wait_s: float) -> bool:
        """Take a claim of at most ``size`` messages in hand; return false if nothing was found in time.

        Args:
            n: the messages that are delivered at once; under limits only those are claimed.

        Raises:
            StoreError: what was taken by a packet that failed is given back by a later call.
        """
        with self.mutex:
            self._begin(in_hand)
            most = self.prefetch + self._ahead(in_hand)
            room = most - len(in_hand)
            rest_s = self._rest_s(room, most, wait_s)
            if room > 0 and rest_s <= 0 and self._lease.good:
                while (hint := self._poller.next_hint()) is not None:  # one that leads nowhere is forgotten
                    pulled = self._take(hint, min(size, room), min(n, room, self.prefetch), in_hand)
                    if pulled is not None:
                        self._keep(pulled, in_hand)
                        return True
                    if self._claimer.was_busy:
                        break
        if not self._lease.good:
            in_hand.wait(min(wait_s, _LEASE_WAIT_S))
        elif room < 1 or rest_s > 0:
            seconds = rest_s if rest_s > 0 else min(wait_s, _LEASE_WAIT_S)
            in_hand.wait_for_room(most // 2 if rest_s > 0 else most - 1, self.prefetch - 1, seconds)
        elif wait_s > 0:
            self._poller.wait_for_hint(min(wait_s, _SLICE_S))
        return False

    def _ahead(self, in_hand: InHand) -> int:
        """Return how many messages may be claimed beyond the prefetch."""
        if not self.ahead_s:
            return 0
        self._settling.note(in_hand.settled, self.ahead_s)
        return min(int(self._settling.rate * self.ahead_s), _MOST_AHEAD * self.prefetch)

    def _rest_s(self, room: int, most: int, wait_s: float) -> float:
        """Return the seconds until the next claim: none if half is missing, or the caller waits less."""
        rest_s = self._rests_until - ticks() if 2 * room < most else 0.0
        return rest_s if rest_s < wait_s else 0.0

    def catch_up(self, in_hand: InHand) -> None:
        """After a gap of the lease, learn which claims are left before more of them is delivered.

        Raises:
            StoreError: the server could not be asked.
        """
        if self._lease.good and self._lease.term != self._term:
            with self.mutex:
                self._begin(in_hand)

    def take_now(self, place: ReadGroup, in_hand: InHand) -> None:
        """Take a claim of one message of a group in hand, also of one that the poller does not watch, if there is one.

        Raises:
            StoreError: what was taken by a packet that failed is given back by a later call.
        """
        with self.mutex:
            self._begin(in_hand)
            self.places.setdefault(place.group.id, place)
            work = find_work(self._session, [place.group.id]).work.get(place.group.id)
            for hint in hints_of(place.group.id, work) if work is not None and self._lease.good else ():
                pulled = self._follow(hint, 1, in_hand)
                if pulled is not None:
                    self._keep(pulled, in_hand)
                    return

    def _keep(self, pulled: PulledClaim, in_hand: InHand) -> None:
        in_hand.add(pulled)
        self._asked = None

    def _begin(self, in_hand: InHand) -> None:
        if (asked := self._asked) is not None:  # an exception from outside has ended the fetch of it
            if asked.claim_id not in in_hand.tokens().values():
                self._doubt(asked)
            self._asked = None
        self._recall()
        term = self._lease.term
        if term[0] != self._term[0]:
            self.register()
        elif term != self._term:
            self._reconcile(in_hand)
            self._term = term

    def _reconcile(self, in_hand: InHand) -> None:
        """After a gap of the lease, keep what recovery has left to this client, and give up the rest."""
        known = in_hand.tokens()
        own = recalling.list_own(self._session, self._client_id)
        in_hand.lose_all([pulled for pulled, token in known.items() if token not in own], known)

    def _take(self, hint: Hint, size: int, n: int, in_hand: InHand) -> PulledClaim | None:
        if hint.group_id not in self.places:  # it was removed
            self._poller.forget(hint)
            return None
        return self._follow_within_limits(hint, n, in_hand) if hint.limited else self._follow(hint, size, in_hand)

    def _follow_within_limits(self, hint: Hint, n: int, in_hand: InHand) -> PulledClaim | None:
        """Take what is delivered at once, once nothing else is in hand: a slot counts the messages of one claim."""
        if len(in_hand):
            self._poller.hold(hint.group_id, _LEASE_WAIT_S)
            return None
        permit = self._limiter.ask(hint.group_id, self._client_id, n, at_once=True)
        if not permit.granted:
            return None
        pulled = None
        try:
            pulled = self._follow(hint, permit.granted, in_hand)
            return pulled
        finally:
            self._limiter.end(hint.group_id, permit, len(pulled.queue) if pulled is not None else 0)

    def _follow(self, hint: Hint, size: int, in_hand: InHand) -> PulledClaim | None:
        """Follow a hint; the end of a claim that is settled is written down in the same transaction."""
        place = self.places[hint.group_id]
        claimant = self._claimer.claimant(
            hint, place.topic, place.group, self._client_id, size, broadcasts=self._broadcasts()
        )
        in_hand.end_sending()
        settled = [pulled for pulled in in_hand.claims() if pulled.all_settled]
        began = ticks()
        try:
            before = self._take_settled(settled, in_hand, hint)
            self._asked = claimant
            claim = self._send(hint, claimant, before, in_hand)
        finally:
            for pulled in settled:
                pulled.end_sending()
            self._rests_until = ticks() + _REST * (ticks() - began)
        if claim is None:
            self._asked = None
            return None
        if claim.hi - claim.lo + 1 < size and hint.kind == "stream":
            self._poller.forget(hint, found=True)  # it took all that was there
        self._poller.note_work()
        topic_id, timeout_s = place.topic.id, place.group.timeout_s
        return PulledClaim(claim, topic_id, timeout_s, self._term, in_hand.lock, place.hold_s)

    def _send(
        self, hint: Hint, claimant: Claimant, before: Sequence[tuple[PulledClaim, ClaimWrite]], in_hand: InHand
    ) -> Claim | None:
        try:
            claim = self._claimer.take(hint, claimant, [write.flush for _, write in before])
            in_hand.confirm(before)
        except FenceLost:  # one of them has another owner, and nothing was kept: the flusher writes each by itself
            self._claimer.leave(hint, is_busy=True)
            return None
        except BaseException as error:  # also one from outside, after which it is not known if the packet was committed
            if isinstance(error, StoreError):
                if not isinstance(error, Conflict):  # a statement after the COMMIT may have been refused
                    self._doubt(claimant)
                self._asked = None
            for _, write in before:
                write.in_doubt = True
            if hint.exclusive:
                self._poller.again(hint)
            raise
        return claim

    def _take_settled(
        self, settled: list[PulledClaim], in_hand: InHand, hint: Hint
    ) -> list[tuple[PulledClaim, ClaimWrite]]:
        """Return some of the claims whose messages are all settled, with their last writes; the caller ends sending.

        Of an ordered group it is one, the hint's own if possible: its end locks more than its own row.
        """
        ordered = [pulled for pulled in settled if pulled.claim.order is not Order.NONE]
        ordered.sort(key=lambda one: one.claim.partition != hint.partition)
        found: list[tuple[PulledClaim, ClaimWrite]] = []
        for pulled in ordered or settled:
            if len(found) == (1 if ordered else _MOST_ENDS):
                break
            if not pulled.sending.acquire(blocking=False):
                continue
            with in_hand.lock:
                write = pulled.finish()
            if write is not None:
                found.append((pulled, write))
            else:
                pulled.end_sending()
        return found

    # -- after a claim -------------------------------------------------------------------------------------------------

    def after_settling(self, claims: Iterable[PulledClaim]) -> None:
        """Note that messages were settled: a partition in order is free, or another message may be delivered."""
        for pulled in claims:
            if pulled.all_settled:
                self.note_written(pulled)
        self._poller.more()

    def note_written(self, pulled: PulledClaim) -> None:
        """Note that a claim may have ended: more work of its partition may be there."""
        if pulled.claim.order is not Order.NONE and pulled.all_settled:
            self._poller.again(Hint(pulled.claim.group_id, "stream", pulled.claim.partition, exclusive=True))
            self._poller.more()

    def leave_slot(self, in_hand: InHand) -> None:
        """Give the slot of a limited group up if nothing is in hand, and no thread is fetching."""
        if len(in_hand) or not self.mutex.acquire(blocking=False):
            return
        try:
            self._limiter.leave()
        except StoreError as error:
            log.info("the slot is given up later: %s", error)
        finally:
            self.mutex.release()

    def _doubt(self, claimant: Claimant) -> None:
        self._doubtful.append((claimant, ticks() + _DOUBT_S))
        self._look_at = 0.0

    def _recall(self) -> None:
        """Give back claims that were taken by packets whose answers were lost."""
        if not self._doubtful or ticks() < self._look_at:
            return
        left: Sequence[tuple[Claimant, float]] = [
            (claimant, until)
            for claimant, until in self._doubtful
            if not self._is_recalled(claimant) and ticks() < until
        ]
        self._doubtful, self._look_at = list(left), ticks() + _LOOK_S

    def _is_recalled(self, claimant: Claimant) -> bool:
        try:
            return self._channel.recall(claimant)
        except FenceLost:  # the claim has another owner by now
            return True


class ConsumerClaims(HeldClaims[PulledClaim]):
    """The claims that a consumer has in hand, as its flusher sees them.

    Args:
        in_hand: the claims.
        claiming: knows the lease, and is told of partitions that are free again.
        time_out: returns the end of a message that has timed out.
    """

    def __init__(
        self, in_hand: InHand, claiming: Claiming, time_out: Callable[[PulledRun, TimeLimitExceeded], Ended]
    ) -> None:
        self._in_hand, self._claiming, self._time_out = in_hand, claiming, time_out

    def wait(self, seconds: float) -> bool:
        return self._in_hand.wait_until_settled(seconds, _QUIET_S)

    def claims(self) -> list[PulledClaim]:
        return self._in_hand.claims()

    def holds(self, claim: PulledClaim) -> bool:
        return self._claiming.holds(claim)

    def confirm(self, claim: PulledClaim, write: ClaimWrite) -> None:
        """Note that a write was committed; more work of its partition may be there."""
        self._in_hand.confirm([(claim, write)])
        self._claiming.note_written(claim)

    def lose(self, claim: PulledClaim, error: FenceLost) -> None:
        self._in_hand.lose(claim, error)
        self._claiming.note_written(claim)

    def enforce_limits(self, channel: Channel) -> None:
        """Retry messages that were in hand for too long."""
        self._in_hand.time_out(self._time_out)

    def after_writes(self) -> None:
        """Give the slot of a limited group up, if nothing is in hand."""
        self._claiming.leave_slot(self._in_hand)
