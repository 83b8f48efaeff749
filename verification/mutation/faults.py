"""The table of planted faults, each with the test that finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql

from emsworker.core.model import Message
from verification.mutation.planting import Fault, Function, Text

Made = Callable[..., Any]


def _nothing(real: Made) -> Made:
    return lambda *args, **more: None


def _no_rows(real: Made) -> Made:
    return lambda *args, **more: []


def _no_uids(real: Made) -> Made:
    return lambda *args, **more: {}


def _no_parameter(name: str, value: Any) -> Callable[[Made], Made]:
    """The same function, told something else."""

    def make(real: Made) -> Made:
        return lambda *args, **more: real(*args, **{**more, name: value})

    return make


def _commit_before_cursor(real: Made) -> Made:
    """A packet that ends its transaction before the statement that moves the cursor."""

    def add_all(packet: Any, statements: Any, args: Any) -> None:
        for statement in statements:
            if statement.startswith("UPDATE ems_cursor SET next_offset = @ems_hi + 1"):
                packet.commit()
            real(packet, (statement,), args)

    return add_all


def _effects_first(real: Made) -> Made:
    def commit_with(session: Any, progress: Any) -> None:
        session.send("COMMIT;SAVEPOINT ems_transaction")
        real(session, progress)

    return commit_with


def _done_when_begun(real: Made) -> Made:
    def start(self: Any, messages: Any, *more: Any) -> bool:
        began = bool(real(self, messages, *more))
        if began:
            self.progress.acked_to = messages[-1].offset
        return began

    return start


def _not_remembered(real: Made) -> Made:
    return lambda self, *args: self._read_packet(*args)


def _by_module(real: Made) -> Made:
    """Errors are ours by a class that is looked up in a module, which is another one under MySQLdb's name."""

    def translate(error: BaseException) -> BaseException:
        return real(error) if isinstance(error, (pymysql.err.MySQLError, OSError)) else error

    return translate


def _with_limit(settings: Made) -> Made:
    limit = "SESSION sql_select_limit = 18446744073709551615, "
    if limit not in settings[0]:
        raise LookupError(f"the settings of a session have no {limit!r}; fix the table of faults")
    return (settings[0].replace(limit, ""), *settings[1:])


def _believed(real: Made) -> Made:
    def fill(session: Any, claimant: Any, claim: Any, rows: Any) -> None:
        claim.messages = [Message(claimant.topic.name, claim.partition, row, claimant.decoder) for row in rows]

    return fill


def _sql(subject: str, name: str, old: str, new: str = "") -> tuple[Text]:
    return (Text(subject, name, old, new),)


def _function(module: str, name: str, make: Callable[[Made], Made] = _nothing) -> tuple[Function]:
    return (Function(f"emsworker.{module}", name, make),)


_OWNER = "AND client_id = %(client_id)s AND state = 'start'"
_RACE, _STORE = "tests/race/test_locks.py::", "tests/store/"
_FORWARDS = "verification/property/test_forwards.py::test_each_message_is_sent_once_wherever_its_topic_goes"
_SESSIONS = "tests/process/test_handler_sessions.py::"
_PROOF = _sql("session", "prove_transaction", "RELEASE SAVEPOINT ems_transaction", "DO 0")

FAULTS: dict[str, Fault] = {
    # the fence
    "fence dropped": Fault(
        "progress is written though the claim is somebody else's",
        "none",
        (*_function("store.engine.session", "Packet.assert_one_matched"),),
    ),
    "owner not compared": Fault(
        "whoever held a claim once moves its acked offset",
        f"{_STORE}test_claims.py::test_an_acknowledged_claim_cannot_be_acknowledged_again",
        _sql("progress", "move_acked_to", _OWNER),
    ),
    "effects apart": Fault(
        "what a handler has written is committed before the fence is asked",
        f"{_STORE}test_claims.py::test_a_handlers_statements_are_rolled_back_with_the_fence",
        _function("store.groups.progress", "commit_with", _effects_first),
    ),
    "acknowledged first": Fault(
        "a message counts as done when it begins",
        "tests/process/test_crashes.py::test_the_work_of_a_whole_killed_worker_is_run_elsewhere_within_its_lease",
        _function("consume.claim_run", "ClaimRun.start", _done_when_begun),
    ),
    "acknowledged when claimed": Fault(
        "a claim begins with its acked offset at its end",
        "none",
        _sql("claims", "insert_claim", "@ems_lo - 1", "@ems_hi"),
    ),
    # claims
    "cursor not locked": Fault(
        "two clients read the same cursor",
        f"{_RACE}test_a_held_cursor_is_skipped_or_waited_for",
        (
            *_sql("claims", "lock_cursor", "FOR UPDATE"),
            *_sql("claims", "lock_cursor_or_skip", "FOR UPDATE SKIP LOCKED"),
        ),
    ),
    "committed in the wrong order": Fault(
        "the claim is committed before its cursor is moved",
        f"{_STORE}test_claims.py::test_20_threads_in_4_processes_never_claim_an_offset_twice",
        _function("store.engine.session", "Packet.add_all", _commit_before_cursor),
    ),
    "cursor moved too far": Fault(
        "a cursor passes one message more than the claim has",
        "none",
        _sql("claims", "move_cursor", "@ems_hi + 1", "@ems_hi + 2"),
    ),
    "hole skipped": Fault(
        "a claim does not stop at a hole",
        "none",
        _sql("claims", "find_range", "r.`offset` = @ems_lo + r.place - 1 AND "),
    ),
    "hole never closed": Fault(
        "nobody writes a tombstone",
        "none",
        _function("store.stream.messages", "close_hole_at", lambda real: lambda *args: False),
    ),
    "tombstone overwritten": Fault(
        "a late producer writes over what has closed its hole",
        "none",
        _sql("messages", "insert_messages", "INSERT", "REPLACE"),
    ),
    "log start offset not checked": Fault(
        "a producer writes below the log start offset",
        "none",
        _sql("messages", "known_offset", "IF(log_start <= %(base)s AND closed", "IF(closed"),
    ),
    "lost answer not looked up": Fault(
        "a send whose COMMIT was not answered is sent once more",
        "tests/race/test_ambiguous_commit.py::test_a_send_whose_answer_is_lost_is_one_row",
        _function("publish.producer", "find_uids", _no_uids),
    ),
    "lease not looked at": Fault(
        "a client without a lease takes work",
        "none",
        _sql("claims", "begin_taking", "AND expires_at > NOW(6)"),
    ),
    "lease not looked at by retries": Fault(
        "a client without a lease takes retries",
        "none",
        _sql("claims", "find_due_retry", "@ems_may = 1 AND "),
    ),
    "rest of an adopted claim forgotten": Fault(
        "what is adopted in part is lost in part",
        "none",
        _sql("claims", "add_rest", "WHERE @ems_hi < @ems_end", "WHERE 1 = 0"),
    ),
    # what handlers and servers do to the session
    "rollback not remembered": Fault(
        "a transaction that a deadlock has rolled back is told by its missing savepoint only: a dead letter",
        f"{_SESSIONS}test_a_deadlock_that_the_handler_swallows_loses_nothing",
        _function("store.engine.connection", "Loan._listen", _not_remembered),
    ),
    "transaction not proved": Fault(
        "what follows a rollback that the client has not seen is committed alone",
        f"{_SESSIONS}test_a_deadlock_that_a_procedure_swallows_has_no_half_effect",
        _PROOF,
    ),
    "block not proved": Fault(
        "a block whose transaction was rolled back sends its messages without its rows",
        f"{_STORE}test_outbox.py::test_a_deadlock_that_the_block_swallows_keeps_nothing_and_says_so",
        (*_PROOF, *_function("store.engine.connection", "Loan._listen", _not_remembered)),
    ),
    "errors looked up by module": Fault(
        "under MySQLdb's name no error of the server is understood",
        "tests/process/test_alias.py::test_two_processes_send_while_connections_are_killed",
        _function("store.engine.session", "translate", _by_module),
    ),
    "rows not counted": Fault(
        "messages that the server did not return are done without a run",
        f"{_STORE}test_claims.py::test_a_claim_that_is_returned_in_part_is_not_believed",
        (
            *_function("store.groups.claims", "fill", _believed),
            *_function("store.groups.ordered", "fill", _believed),
        ),
    ),
    "limit of rows not set": Fault(
        "a session returns as many rows as the server's default allows",
        f"{_STORE}test_session.py::test_every_session_returns_all_rows",
        _function("store.engine.connection", "Connection.settings", _with_limit),
    ),
    "insert not guarded": Fault(
        "what is sent for later goes to the topic that had this name a moment ago, and stays there",
        f"{_STORE}test_guards.py::test_what_is_sent_to_a_topic_that_was_deleted_and_created_again_is_in_the_new_one",
        _function("store.stream.outbox", "topic_id_text", lambda real: lambda database, topic_id: str(topic_id)),
    ),
    # giving back, failures, dead letters
    "rest not given back": Fault(
        "what was not started is lost",
        "none",
        _sql("progress", "add_waiting", "%(lo)s - 1, 'waiting'", "%(hi)s, 'done'"),
    ),
    "retries not given back": Fault(
        "retries that were not started stay claimed",
        f"{_STORE}test_claims.py::test_retries_are_claimed_finished_and_given_back",
        _sql("progress", "release_retries", "SET claim_id = NULL", "SET claim_id = claim_id"),
    ),
    "failure forgotten": Fault(
        "the acked offset passes a failed message that nobody runs again",
        "none",
        _function("store.groups.progress", "_add_retries"),
    ),
    "failed retry stays claimed": Fault(
        "a retry that has failed is never taken again",
        f"{_STORE}test_claims.py::test_retries_are_claimed_finished_and_given_back",
        _sql("progress", "upsert_retries_end", ", claim_id = NULL"),
    ),
    "dead letter not kept": Fault(
        "a message that has used up its attempts is in no place",
        "none",
        _sql("progress", "insert_dead_letter", "AND m.kind = 'message'", "AND 1 = 0"),
    ),
    "dead letter kept": Fault(
        "one that was requeued is in two places",
        "none",
        _sql("dead", "delete_dead", "AND `offset` IN %(offsets)s", "AND 1 = 0"),
    ),
    # recovery
    "lease not looked at by recovery": Fault(
        "a living owner loses its claim",
        "none",
        (
            *_sql("recovery", "find_lost", "(l.client_id IS NULL OR c.deadline_at < l.renewed_at)", "1 = 1"),
            *_sql("recovery", "lock_lost", "l.client_id = c.client_id AND l.expires_at > NOW(6))", "1 = 0)"),
        ),
    ),
    "rest forgotten": Fault(
        "recovery leaves no waiting claim",
        "none",
        _sql("recovery", "add_waiting", "'waiting'", "'done'"),
    ),
    "charged by the group": Fault(
        "recovery charges a message by its group's ladder, not by its task's",
        f"{_STORE}test_recovery.py::test_a_run_that_hung_is_charged_by_its_own_tasks_ladder",
        _function("beat.recovery", "_handler"),
    ),
    "neighbour charged": Fault(
        "the first message of the rest pays for a crash",
        f"{_STORE}test_recovery.py::test_a_message_under_suspicion_that_had_not_started_is_not_charged",
        _sql("recovery", "lock_lost", "c.acked_to, c.running", "c.acked_to, c.hi"),
    ),
    "retries kept claimed": Fault(
        "retries of a dead owner stay claimed",
        f"{_STORE}test_recovery.py::test_a_claim_of_retries_is_recovered_likewise",
        _sql("recovery", "release_claimed_retries", "SET claim_id = NULL,", "SET"),
    ),
    "suspect among others": Fault(
        "a message that has killed a process runs beside others",
        f"{_STORE}test_recovery.py::test_crashes_narrow_the_suspicion_down_and_only_the_third_charges",
        _sql("progress", "mark_suspects", "SET isolation = GREATEST(isolation, %(isolation)s)", "SET isolation = 0"),
    ),
    "recovered without a lock": Fault(
        "two beats recover one claim",
        f"{_RACE}test_two_recoveries_at_once_recover_each_claim_once",
        _sql("recovery", "lock_lost", "FOR UPDATE SKIP LOCKED"),
    ),
    # retention
    "log start offset above cursor": Fault(
        "what a group has not claimed is deleted",
        f"{_STORE}test_retention.py::test_without_age_wins_the_unclaimed_is_kept_and_what_is_done_waits_for_no_age",
        _sql("retention", "find_needed", "AND g.id NOT IN %(overtaken)s", "AND 1 = 0"),
    ),
    "overtaken cursor stays": Fault(
        "what retention is about to delete is claimed",
        f"{_STORE}test_retention.py::test_what_age_has_won_is_claimed_by_nobody_though_it_is_still_there",
        _sql("retention", "skip_cursors", "next_offset < @ems_log_start", "1 = 0"),
    ),
    "log start offset above claims": Fault(
        "what is claimed is deleted",
        f"{_STORE}test_retention.py::test_what_is_claimed_or_waits_for_a_retry_is_kept_whatever_the_topic_says",
        _sql("retention", "find_needed", "c.source = 'stream'", "c.source = 'nothing'"),
    ),
    "log start offset above retries": Fault(
        "what is to run again is deleted",
        f"{_STORE}test_retention.py::test_what_is_claimed_or_waits_for_a_retry_is_kept_whatever_the_topic_says",
        _sql("retention", "find_needed", "r.group_id = g.id AND", "r.group_id = 0 AND"),
    ),
    "call for a new group done": Fault(
        "a call for a group that is yet to be created is deleted",
        f"{_STORE}test_retention.py::test_a_call_for_a_group_that_is_yet_to_come_is_not_done",
        _sql("retention", "find_end_of_old", "kind = 'message'", "1 = 0"),
    ),
    "mark used at once": Fault(
        "what is done is deleted at once, not after a while",
        f"{_STORE}test_retention.py::test_what_is_done_is_kept_for_a_while",
        _sql("retention", "raise_over_done", "done_at <= NOW(6) - INTERVAL %(keep_done_s)s SECOND", "1 = 1"),
    ),
    "second life not spared": Fault(
        "the body of a requeued dead letter is deleted",
        f"{_STORE}test_retention.py::test_a_requeued_dead_letter_is_kept_until_it_has_been_run",
        _sql("retention", "delete_messages", "s.topic_id = ems_message.topic_id AND", "1 = 0 AND"),
    ),
    # by hand
    "reset leaves retries": Fault(
        "a message behind the new cursor is in two places",
        f"{_STORE}test_reset.py::test_a_reset_waits_for_a_claim_of_retries_that_is_being_made",
        _sql("cursors", "delete_retries_behind", "AND `offset` >= %(offset)s", "AND 1 = 0"),
    ),
    "reset leaves dead letters": Fault(
        "a dead letter behind the new cursor is in two places",
        f"{_STORE}test_reset.py::test_a_dead_letter_that_is_delivered_again_is_dead_no_more",
        _sql("cursors", "delete_dead_behind", "d.`offset` >= %(offset)s", "1 = 0"),
    ),
    "reset leaves claims": Fault(
        "an owner goes on with what is delivered again",
        f"{_STORE}test_reset.py::test_back_takes_work_away_from_its_owners",
        _sql("cursors", "list_live_behind", "hi >= %(offset)s", "1 = 0"),
    ),
    "reset without a lock": Fault(
        "retries that are being claimed just now stay with their owner",
        f"{_STORE}test_reset.py::test_a_reset_waits_for_a_claim_of_retries_that_is_being_made",
        _sql("cursors", "list_retry_claims_behind", "FOR UPDATE"),
    ),
    "skipped in silence": Fault(
        "what is passed over is not written down",
        "none",
        _sql("cursors", "add_skip", "%(hi)s", "%(lo)s - 1"),
    ),
    "replayed twice": Fault(
        "what is live is replayed",
        f"{_STORE}test_replay.py::test_what_is_live_or_unclaimed_is_not_doubled",
        _function("store.groups.replay", "_taken", _no_rows),
    ),
    "cancelled and run": Fault(
        "the retry of a cancelled message stays",
        f"{_STORE}test_cancel.py::test_retries_stop_whether_they_wait_or_are_claimed",
        _sql("cancel", "drop_waiting_retries", "r.claim_id IS NULL", "1 = 0"),
    ),
    "purge forgets retries": Fault(
        "messages whose retries a purge took away are in no place",
        f"{_STORE}test_cancel.py::test_a_purge_takes_what_is_unfinished",
        _sql("cancel", "cancel_offsets", "AND kind = 'message'", "AND 1 = 0"),
    ),
    "pause not looked at": Fault(
        "a paused group offers work",
        f"{_STORE}test_claims.py::test_find_work_tells_of_every_group_and_of_no_paused_one",
        _sql("claims", "find_work", "g.paused = 0", "1 = 1"),
    ),
    "pause not looked at by claims": Fault(
        "what is published after a pause is run",
        f"{_STORE}test_claims.py::test_nothing_is_taken_of_a_group_that_may_not_since_somebody_looked",
        _sql("claims", "begin_taking", "g.paused = 0", "1 = 1"),
    ),
    # order and limits
    "owner not looked at": Fault(
        "a partition in order has two owners",
        "partition",
        _sql("ordered", "check_owner", "c.state = 'start'", "c.state = 'nobody'"),
    ),
    "retry passed": Fault(
        "later messages run before one that is to run again",
        "partition",
        _sql("ordered", "give_way", "IF(@ems_old IS NULL, @ems_lo, NULL)", "@ems_lo"),
    ),
    "waiting claim passed": Fault(
        "new messages come before those that were given back",
        "partition",
        _sql("ordered", "find_first_waiting", "state = 'waiting'", "state = 'nobody'"),
    ),
    "next of the key forgotten": Fault(
        "what waits for an earlier message of its key waits for ever",
        f"{_STORE}test_ordered.py::test_the_next_of_a_key_comes_when_the_one_before_is_cancelled",
        _function("store.groups.blocking", "promote_of"),
    ),
    "every one of the key promoted": Fault(
        "two messages of a key have their turn at once",
        "key",
        _sql("blocking", "promote", "LIMIT 1"),
    ),
    "blocked keys not told": Fault(
        "an owner does not learn which keys wait",
        "key",
        _sql("ordered", "list_blocked", "m.kind = 'message'", "1 = 0"),
    ),
    "cancelled and nobody's turn": Fault(
        "what waits behind a cancelled message waits for ever",
        f"{_STORE}test_ordered.py::test_the_next_of_a_key_comes_when_the_one_before_is_cancelled",
        _sql("cancel", "list_keyed_groups", "ordering = 'key'", "ordering = 'none'"),
    ),
    # messages between servers
    "copies yield to each other": Fault(
        "a message whose two copies are forwarded at once is gone",
        _FORWARDS,
        _function("beat.forwarder", "later_servers", lambda real: lambda former, server: former),
    ),
    "acceptance not forgotten": Fault(
        "a message that comes back to a server is taken for one that was accepted before",
        _FORWARDS,
        _sql("forwards", "forget", "AND `key` IN", "AND uid IN"),
    ),
    "moves not counted": Fault(
        "what was read before a move is accepted and deleted after it",
        _FORWARDS,
        _function("store.stream.forwards", "hold_unmoved", lambda real: lambda *args: True),
    ),
    "own outbox not looked at": Fault(
        "a message is sent by the relay of a server although another one has accepted it",
        _FORWARDS,
        _function("admin.placement", "TopicMove._drop_forwarded"),
    ),
    "slots of the dead count": Fault(
        "a limit is used up by clients that are gone",
        "limits",
        _sql("limits", "count_others", "AND c.expires_at > NOW(6)"),
    ),
    "slots not counted": Fault(
        "more run at once than may",
        "limits",
        _sql("limits", "count_others", "SUM(s.weight)", "SUM(0 * s.weight)"),
    ),
    "permits not spent": Fault(
        "a rate is no limit",
        "limits",
        _sql("limits", "spend", "tokens - @ems_granted", "tokens"),
    ),
}
