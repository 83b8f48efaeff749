"""Progress of a claim: its acked offset, its failures, and the part that its owner gives back.

Every packet begins with the fence: it commits only if the client still owns the claim, or rolls back as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emsworker.core.codec import decode_headers
from emsworker.core.errors import AssertionBroken, DecodeError, FenceLost
from emsworker.core.extension import tell
from emsworker.core.flush import Flush, ResultRow, storable
from emsworker.core.ids import new_claim_id
from emsworker.core.model import (
    FOLLOW_HEADER,
    GROUP_HEADER,
    TASK_HEADER,
    Claim,
    ClaimSource,
    ClaimState,
    Failure,
    Isolation,
    Order,
)
from emsworker.store.engine.session import Packet, Result, Session
from emsworker.store.engine.sql import Sql, Statements, column, fill_rows
from emsworker.store.groups import blocking
from emsworker.store.groups.notices import add_notice
from emsworker.store.groups.reports import add_reports
from emsworker.store.groups.results import add_results
from emsworker.store.groups.task_limits import add_postponed
from emsworker.store.groups.task_pauses import add_held
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__, **MESSAGE)
_NAME = 190  # characters of a task's name or an error's class
_TASK_PATH = f'$."{TASK_HEADER}"'


def flush(session: Session, progress: Flush) -> None:
    """Record progress in a transaction of its own.

    Raises:
        FenceLost: another owner has the claim by now; the transaction was rolled back.
    """

    def attempt() -> None:
        packet = session.packet()
        packet.begin()
        add_flush(packet, progress)
        packet.commit()
        send_fenced(packet)

    try:
        session.retry_on_conflict(attempt)
    except FenceLost:
        # An earlier try may have committed although its answer was lost.
        ends = session.rows(_SQL.get_end, _fence(progress.claim))
        if progress.finished or progress.was == progress.acked_to or not ends or ends[0][1] != progress.acked_to:
            raise


def acked_to(session: Session, claim: Claim) -> int | None:
    """Read the recorded acked offset of a claim; ``None`` if its owner no longer has it."""
    ends = session.rows(_SQL.get_end, _fence(claim))
    return int(ends[0][1]) if ends else None


def was_committed(session: Session, progress: Flush) -> bool:
    """Return whether a flush that finishes a claim was committed, though its answer was lost and its fence fails now.

    Others may have had the claim since: a range of which they were the owners has another token, and retries have
    attempts of theirs. Retries that were all given back leave no trace, and nothing that could be lost.
    """
    claim = progress.claim
    if claim.source is not ClaimSource.RETRY:
        return bool(session.rows(_SQL.find_finished, _fence(claim)))
    ended = [(offset, attempt) for offset, attempt, _ in progress.done_offsets]
    ended += [(failure.offset, failure.attempt) for failure in progress.failures]
    return not ended or bool(
        session.rows(_SQL.find_attempt, _fence(claim) | {"offset": ended[0][0], "attempt": ended[0][1]})
    )


def commit_with(session: Session, progress: Flush) -> None:
    """Record progress at the end of a handler's transaction, and commit both atomically.

    Raises:
        FenceLost: another owner has the claim by now; the handler's statements are rolled back too.
        TransactionGone: the transaction is not the one that the handler was given.
    """
    packet = session.packet()
    packet.take_back()
    add_flush(packet, progress)
    packet.commit_lent()
    send_fenced(packet)


def send_fenced(packet: Packet) -> list[Result]:
    """Send a packet that begins with the fence.

    Raises:
        FenceLost: another owner has the claim by now; the transaction was rolled back.
    """
    try:
        return packet.send()
    except AssertionBroken:
        raise FenceLost("the claim has another owner by now; nothing was kept") from None


def add_flush(packet: Packet, progress: Flush) -> None:
    """Append the statements of a flush to an open transaction: first the fence, then finished and failed messages."""
    claim = progress.claim
    args = _fence(claim) | {"acked_to": progress.acked_to, "timeout_s": progress.timeout_s, "running": progress.running}
    args["was"] = progress.was
    if progress.finished and claim.source is ClaimSource.RETRY:
        packet.add(_SQL.end_retry_claim, args)
    else:
        packet.add(_SQL.move_acked_to, args | {"state": ClaimState.DONE if progress.finished else ClaimState.START})
    packet.assert_one_matched()
    by_key = claim.order is Order.KEY and (progress.done_offsets or progress.failures or progress.blocked)
    if by_key:
        blocking.lock_turn(packet, claim)
    _add_done_retries(packet, progress)
    add_failures(packet, claim, progress.topic_id, progress.failures, claim.client_id)
    blocking.block(packet, claim, progress.blocked)
    if by_key:
        ended = [offset for offset, *_ in progress.done_offsets]
        blocking.promote(
            packet, claim, [key for _, key in progress.blocked] + _keys_of(claim, ended, progress.failures)
        )
    add_results(packet, progress.topic_id, claim.group_id, [row for row in progress.results if row.is_kept])
    tell(progress.results, packet, progress.topic_id, claim.group)
    add_reports(packet, claim, progress.topic_id, progress.reports, progress.reports_ended)


def _keys_of(claim: Claim, ended: Sequence[int], failures: Sequence[Failure]) -> list[bytes | None]:
    gone = [failure.offset for failure in failures if failure.retry_in_s is None]
    return [claim.keys.get(offset) for offset in [*ended, *gone]]


def _fence(claim: Claim) -> dict[str, Any]:
    return {
        "group_id": claim.group_id,
        "partition": claim.partition,
        "lo": claim.lo,
        "claim_id": claim.claim_id,
        "client_id": claim.client_id,
    }


def _add_done_retries(packet: Packet, progress: Flush) -> None:
    if not progress.done_offsets:
        return
    claim = progress.claim
    offsets, attempts, ran_ms = zip(*progress.done_offsets, strict=True)
    packet.add(_SQL.finish_retries, _fence(claim) | {"offsets": offsets})
    common = {"group_id": claim.group_id, "partition": claim.partition, "client_id": claim.client_id}
    same = packet.session.literals(common | {"outcome": "done", "error": None})
    rows = fill_rows(_SQL.attempt_row, same, {"offset": offsets, "attempt": attempts, "ran_ms": ran_ms})
    packet.add_rows(_SQL.insert_attempts, rows)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def add_failures(
    packet: Packet, claim: Claim, topic_id: int, failures: Sequence[Failure], client_id: str | None
) -> None:
    """Append the consequences of failed messages: their attempts, and their retries or dead letters."""
    if held := [failure for failure in failures if failure.held]:
        add_held(packet, claim, topic_id, held)
        failures = [failure for failure in failures if not failure.held]
    if postponed := [failure for failure in failures if failure.due_at is not None]:
        add_postponed(packet, claim, postponed)
        failures = [failure for failure in failures if failure.due_at is None]
    if not failures:
        return
    common = {"group_id": claim.group_id, "partition": claim.partition, "client_id": client_id}
    errors = _errors_of(packet, failures)
    columns: dict[str, Sequence[int | Sql]] = {
        "offset": [f.offset for f in failures],
        "attempt": [f.attempt for f in failures],
        "outcome": column([f.outcome for f in failures]),
        "ran_ms": column([_ms(f.ran_s) for f in failures]),
        "error": [errors[f.error] for f in failures],
    }
    packet.add_rows(_SQL.insert_attempts, fill_rows(_SQL.attempt_row, packet.session.literals(common), columns))
    _add_retries(packet, claim, topic_id, [f for f in failures if f.retry_in_s is not None], errors)
    for failure in failures:
        if failure.dead is not None:
            where = {
                "group_id": claim.group_id,
                "topic_id": topic_id,
                "partition": claim.partition,
                "offset": failure.offset,
            }
            why = {
                "attempt": failure.attempt,
                "error_type": storable(failure.error_type)[:_NAME],
                "reason": storable(failure.dead),
                "error": storable(failure.error),
                "task_path": _TASK_PATH,
            }
            packet.add(_SQL.insert_dead_letter, where | why)
            if not failure.told:
                add_notice(packet, claim.group_id, claim.partition, failure.offset)
    tell(_results_of_untold(packet.session, claim, topic_id, failures), packet, topic_id, claim.group)
    ended = [f.offset for f in failures if f.retry_in_s is None]
    if ended and claim.source is ClaimSource.RETRY:
        packet.add(_SQL.finish_retries, _fence(claim) | {"offsets": ended})


def _errors_of(packet: Packet, failures: Sequence[Failure]) -> dict[str, Sql]:
    """Return the errors of failures as SQL; one that several have is sent once, as a variable."""
    errors: dict[str, Sql] = {}
    for text, count in Counter(f.error for f in failures).items():
        args = {"number": len(errors), "error": storable(text)}
        if count > 1:
            packet.add(_SQL.set_error, args)
            errors[text] = packet.session.mogrify(_SQL.error_of, args)
        else:
            errors[text] = packet.session.literals(args)["error"]
    return errors


def _results_of_untold(
    session: Session, claim: Claim, topic_id: int, failures: Sequence[Failure]
) -> Iterator[ResultRow]:
    """Yield results of followed messages that ended without their executor: it died, or hangs."""
    for failure in failures:
        if failure.told or failure.retry_in_s is not None:
            continue
        place = {"topic_id": topic_id, "partition": claim.partition, "offset": failure.offset}
        for uid, encoded in session.rows(_SQL.get_followed, place):
            try:
                headers = decode_headers(encoded)
            except DecodeError:  # written by plain SQL
                continue
            if headers.get(GROUP_HEADER) == claim.group:
                kind, text = failure.error_type.rpartition(".")[2], failure.error
                yield ResultRow(uid, None, kind, text, text, follow=headers.get(FOLLOW_HEADER))


def _add_retries(
    packet: Packet, claim: Claim, topic_id: int, failures: Sequence[Failure], errors: Mapping[str, Sql]
) -> None:
    if not failures:
        return
    row = _SQL.keyed_retry_row if claim.order is Order.KEY else _SQL.retry_row
    where = {"group_id": claim.group_id, "topic_id": topic_id, "partition": claim.partition}
    ordered = sorted(failures, key=lambda f: f.offset)
    columns: dict[str, Sequence[int | Sql]] = {
        "offset": [f.offset for f in ordered],
        "attempt": [f.attempt for f in ordered],
        "delay_s": column([f.retry_in_s for f in ordered]),
        "error": [errors[f.error] for f in ordered],
    }
    rows = fill_rows(row, packet.session.literals(where), columns)
    packet.add_rows(_SQL.upsert_retries, rows, _SQL.upsert_retries_end)
    suspects = [f.offset for f in failures if f.suspect]
    if suspects:
        isolation = int(max(claim.isolation, Isolation.ALONE))
        packet.add(_SQL.mark_suspects, where | {"offsets": suspects, "isolation": isolation})


# -- giving back -------------------------------------------------------------------------------------------------------


def give_back(session: Session, progress: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
    """Keep a claim only up to ``last`` and return the rest, which was not started, with no attempt charged.

    Args:
        progress: recorded in the same transaction; it may finish the claim.
        isolation: the least isolation with which the rest is to be run.

    Raises:
        FenceLost: another owner has the claim by now; the transaction was rolled back.
    """
    claim = progress.claim

    def attempt() -> None:
        packet = session.packet()
        packet.begin()
        if last < claim.lo and claim.source is ClaimSource.STREAM:
            packet.add(_SQL.release_claim, _fence(claim) | {"isolation": int(max(claim.isolation, isolation))})
            packet.assert_one_matched()
            packet.commit()
            send_fenced(packet)
            return
        add_cut(packet, claim, last, isolation)
        add_flush(packet, progress)
        packet.commit()
        send_fenced(packet)

    try:
        session.retry_on_conflict(attempt)
    except FenceLost:
        # An earlier try may have committed although its answer was lost: returning the rest again would duplicate it.
        ends = session.rows(_SQL.get_end, _fence(claim))
        if last == claim.hi or not ends or ends[0][0] != last:
            raise
        flush(session, progress)


def add_cut(packet: Packet, claim: Claim, last: int, isolation: Isolation) -> None:
    """Append the statements that end a claim at ``last`` and give back the rest, behind the fence."""
    packet.add(_SQL.cut_claim, _fence(claim) | {"hi": last, "was_hi": claim.hi})
    packet.assert_one_matched()
    if claim.source is ClaimSource.RETRY:
        packet.add(_SQL.release_retries, _fence(claim) | {"after": last})
    elif last < claim.hi:
        rest = {
            "lo": last + 1,
            "hi": claim.hi,
            "claim_id": new_claim_id(),
            "isolation": int(max(claim.isolation, isolation)),
        }
        packet.add(_SQL.add_waiting, _fence(claim) | rest)
