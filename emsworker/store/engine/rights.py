"""The rights of the roles on the tables, as data: what ``ems grants`` prints, and programs check when they start.

A capital letter is a privilege on a whole table: S(ELECT), I(NSERT), U(PDATE), D(ELETE). A small one is on the columns
that are named below the grid. ``role+allowance`` is what the role gets besides with ``--allow``.

An extension brings the rights on its own tables, and its own roles' rights on others, as one more such value
(:func:`read_grid`), which :func:`combine` adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Columns = tuple[str, ...] | None
"""The columns for which a privilege is granted; ``None`` for the whole table."""
Privileges = Mapping[str, Mapping[str, Columns]]
"""Table -> privilege -> columns; the table ``*`` is the whole database."""
Rights = Mapping[str, Privileges]
"""Role, or ``role+allowance`` -> table -> privilege -> columns."""

VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_LETTERS = {verb[0]: verb for verb in VERBS}


def read_grid(grid: str, columns: Mapping[str, Mapping[str, str]]) -> Rights:
    """Read rights that are written as a table.

    Args:
        grid: a line of roles, and below it one line a table: its name, and for each role its letters, or ``-``.
        columns: for the small letters, ``VERB table`` -> roles -> columns.

    Raises:
        ValueError: a line has more or fewer cells than there are roles, or columns have no small letter.
        KeyError: a small letter has no columns.
    """
    named = {
        (role, table, verb): tuple(names.split(", "))
        for place, by_role in columns.items()
        for verb, table in [place.split()]
        for roles, names in by_role.items()
        for role in roles.split()
    }
    roles, *lines = (line.split() for line in grid.strip().splitlines())
    rights: dict[str, dict[str, dict[str, Columns]]] = {role: {} for role in roles}
    for table, *cells in lines:
        for role, cell in zip(roles, cells, strict=True):
            for letter in cell.strip("-"):
                verb = _LETTERS[letter.upper()]
                columns_of = None if letter.isupper() else named.pop((role, table, verb))
                rights[role].setdefault(table, {})[verb] = columns_of
    if named:
        raise ValueError(f"columns without a small letter in the grid: {'; '.join(map(' '.join, named))}")
    return rights


def combine(*rights: Rights) -> Rights:
    """Return the rights of several tables as one."""
    roles = dict.fromkeys(role for one in rights for role in one)
    return {role: merge(one[role] for one in rights if role in one) for role in roles}


def merge(privileges: Iterable[Privileges]) -> Privileges:
    """Return what somebody has who is granted all of several privileges."""
    merged: dict[str, dict[str, Columns]] = {}
    for one in privileges:
        for table, verbs in one.items():
            for verb, columns in verbs.items():
                before = merged.setdefault(table, {}).get(verb, ())
                whole = columns is None or before is None
                merged[table][verb] = None if whole else tuple(dict.fromkeys((before or ()) + (columns or ())))
    return merged


# publisher: sends by plain SQL, from any language, a trigger or a procedure; it reads nothing but the schema's version.
# producer: sends messages (also delayed, in transactions and with dedup keys), and reads results. It reads no bodies,
#   changes and deletes no messages, and creates no topics. (UPDATE of created_at: a repeated INSERT leaves the first
#   row as it is by setting it to itself.)
# worker: runs messages, and sends too; it leaves the services of the beat to others (`ems worker --no-beat`), unless it
#   is allowed to do them. It creates, changes and deletes no topics and groups, changes and deletes no messages, and
#   neither changes nor deletes dead letters.
# beat: does the services of the beat: recovery, the relay, retention, schedules, alarms, samples. It deletes messages,
#   as retention does, and old rows of the audit; it creates, changes and deletes no topics and groups. (UPDATE of a
#   name, and others' UPDATE of a column that nothing changes: MySQL requires it to lock a row.)
# viewer: reads lists, lag, traces and charts, for people who watch. It reads no body, no header, no error and no
#   result, and changes nothing. It sees keys and tags, the names of tasks and of classes of errors, and what handlers
#   report of their progress.
# reader: reads lists, lag, traces, messages and dead letters with their bodies, also with Spark. It changes nothing. It
#   cannot read the addresses to which alarms are sent, because they can hold secrets.
# operator: reads what a reader reads, and puts things right: requeues and deletes dead letters, pauses and changes
#   groups, sets limits and skip policies, moves cursors, replays, skips, cancels and purges, and creates, changes,
#   pauses, runs and deletes schedules. It creates and deletes no topics, groups and tables, and does not change topics
#   or alarms, but silences alarms.
_ROLES = """
                       publisher  producer  worker  beat  viewer  reader  operator
ems_schema_version     S          S         S       S     S       S       S
ems_extension_version  -          -         S       S     S       S       S
ems_migration_step     -          -         -       -     -       -       -
ems_topic              -          S         S       S     S       S       S
ems_topic_guard        -          S         S       S     -       -       S
ems_partition          -          Su        Su      Su    S       S       S
ems_message            -          sI        SI      SIuD  s       S       SIu
ems_outbox             -          sIu       SIuD    SIuD  s       S       SID
ems_large_body         -          sIu       sIu     SIuD  -       S       S
ems_body_chunk         -          I         SI      SID   -       S       S
ems_result_chunk       -          S         SI      SID   -       S       -
ems_publish            i          -         si      SiuD  s       S       SuD
ems_dedup              -          SIU       SIU     SIUD  -       -       -
ems_group              -          s         S       S     S       S       Su
ems_handler            -          -         SIUD    S     S       S       S
ems_task_pause         -          -         S       -     S       S       SID
ems_task_limit         -          -         SIUD    S     S       S       S
ems_task_slot          -          -         SIUD    SD    S       S       S
ems_task_figure        -          -         SIUD    -     s       S       S
ems_task_bucket        -          -         SIUD    -     S       S       S
ems_cursor             -          S         SU      SU    S       S       Su
ems_claim              -          s         SIUD    SIUD  S       S       SIUD
ems_retry              -          s         SIUD    SIUD  s       S       SIUD
ems_attempt            -          -         SI      SID   s       S       S
ems_attempt_log        -          -         SIUD    -     -       S       S
ems_dead               -          s         SI      SI    s       S       SD
ems_dead_notice        -          -         SD      SID   -       -       -
ems_skip               -          -         -       I     S       S       SI
ems_skip_policy        -          -         S       S     S       S       SIUD
ems_cancel             -          S         S       SD    -       S       SI
ems_restored           -          -         -       SD    -       -       SI
ems_result             -          S         SIUD    SIUD  -       S       si
ems_progress           -          S         SIUD    SD    S       S       S
ems_schedule           -          -         SIU     Su    s       S       SIUD
ems_once               -          -         SIUD    SD    -       -       -
ems_client             -          -         SIUD    SuD   S       S       S
ems_leader             -          -         S       SIUD  S       S       S
ems_position           -          -         SIU     Su    S       S       SD
ems_hold               -          -         S       SuD   S       S       SD
ems_limit              -          -         SIU     SU    S       S       SIUD
ems_slot               -          -         SIUD    SD    S       S       SD
ems_alarm_rule         -          -         s       Su    s       s       s
ems_alarm              -          -         S       SIUD  S       S       S
ems_alarm_event        -          -         -       SiuD  -       -       -
ems_alarm_silence      -          -         S       S     S       S       SiD
ems_sample             -          -         S       SID   S       S       S
ems_latest             -          -         S       SID   S       S       S
ems_audit              -          -         -       sD    S       S       SI
"""

# auto-create: creates the topics and groups that are named; so it could also change existing ones.
# cancel: cancels messages, also those that run; so it could also cancel the messages of others.
# schedule: creates, changes, pauses and deletes schedules at run time; so it could also change those of others.
_ALLOWANCES = """
                producer+auto-create producer+cancel producer+schedule worker+auto-create worker+cancel worker+schedule
ems_topic       IU                   -               -                 IU                 -             -
ems_topic_guard I                    -               -                 I                  -             -
ems_partition   Iu                   -               -                 Iu                 -             -
ems_message     -                    su              -                 -                  u             -
ems_outbox      -                    D               -                 -                  -             -
ems_schedule    -                    -               SIUD              -                  -             D
ems_group       -                    s               -                 IU                 -             -
ems_cursor      -                    u               -                 I                  -             -
ems_retry       -                    suD             -                 -                  -             -
ems_cancel      -                    I               -                 -                  I             -
ems_result      -                    i               -                 -                  -             -
"""

_ADMIN: Rights = {"admin": {"*": dict.fromkeys((*VERBS, "CREATE", "ALTER", "INDEX"))}}

CORE = combine(
    read_grid(
        _ROLES,
        {
            "UPDATE ems_partition": {
                "producer worker": "next_offset",
                "beat": "next_offset, log_start, trimmed, high_watermark, done_below, done_at",
            },
            "SELECT ems_message": {
                "producer": "topic_id, partition, offset, uid, kind",
                "viewer": "topic_id, partition, offset, uid, kind, key, tag, size, born_at, producer_id",
            },
            "UPDATE ems_message": {"beat": "offset", "operator": "kind"},
            "SELECT ems_outbox": {
                "producer": "topic_id, uid, created_at",
                "viewer": "topic_id, due_at, uid, partition, key, tag, producer_id, created_at, level",
            },
            "UPDATE ems_outbox": {"producer worker beat": "created_at"},
            "SELECT ems_large_body": {"producer worker": "created_at"},
            "UPDATE ems_large_body": {"producer worker beat": "created_at"},
            "SELECT ems_publish": {"worker viewer": "id, topic, created_at, refused_at"},
            "INSERT ems_publish": {
                "publisher": "topic, body, key, tag, headers, task, priority, delay_s, uid",
                "worker beat": "topic, body, key, tag, headers, uid, refused_at, error",
            },
            "UPDATE ems_publish": {"beat operator": "refused_at, error"},
            "SELECT ems_group": {"producer": "id, topic_id, name"},
            "UPDATE ems_group": {"operator": "timeout_ms, ladder, max_attempts, filter, paused, held_tasks"},
            "UPDATE ems_cursor": {"operator": "next_offset, skipped"},
            "SELECT ems_claim": {"producer": "group_id, partition, lo, hi, acked_to, state, source"},
            "SELECT ems_retry": {
                "producer": "group_id, partition, offset, claim_id",
                "viewer": "group_id, partition, offset, attempt, due_at, claim_id, isolation, key",
            },
            "SELECT ems_attempt": {
                "viewer": "group_id, partition, offset, ended_at, attempt, outcome, ran_ms, client_id",
            },
            "SELECT ems_dead": {
                "producer": "group_id, partition, offset, uid, reason, error",
                "viewer": "group_id, partition, offset, uid, key, tag, born_at, producer_id, dead_at, attempts, task, "
                "error_type",
            },
            "SELECT ems_result": {"operator": "topic_id, uid, group_id, state"},
            "INSERT ems_result": {"operator": "topic_id, uid, group_id, state, ended_at, expires_at"},
            "SELECT ems_task_figure": {
                "viewer": "slot_at, group_id, task, runs, failed, retried, dead, cpu_us, cpu_runs, error_at",
            },
            "SELECT ems_schedule": {
                "viewer": "name, spec, timezone, catch_up, topic, key, next_at, last_at, declared_at, origin, paused, "
                "task, tag",
            },
            "UPDATE ems_schedule": {"beat": "next_at, last_at, next_set_at"},
            "UPDATE ems_client": {"beat": "renewed_at, expires_at"},
            "UPDATE ems_position": {"beat": "next_offset"},
            "UPDATE ems_hold": {"beat": "lost_at"},
            "SELECT ems_alarm_rule": {
                "worker viewer reader operator": "name, metric, above, for_s, within_s, least, topic, group_name, "
                "repeat_s, created_at",
            },
            "UPDATE ems_alarm_rule": {"beat": "name"},
            "INSERT ems_alarm_event": {"beat": "alarm_id, rule, target, body, created_at, due_at"},
            "UPDATE ems_alarm_event": {"beat": "due_at, tries"},
            "INSERT ems_alarm_silence": {"operator": "rule, topic, group_name, reason, created_at, ends_at"},
            "SELECT ems_audit": {"beat": "action_id, step"},
        },
    ),
    read_grid(
        _ALLOWANCES,
        {
            "UPDATE ems_partition": {"producer+auto-create worker+auto-create": "topic_id, partition, closed"},
            "SELECT ems_message": {"producer+cancel": "key"},
            "UPDATE ems_message": {"producer+cancel worker+cancel": "kind"},
            "SELECT ems_group": {"producer+cancel": "ordering"},
            "UPDATE ems_cursor": {"producer+cancel": "skipped"},
            "SELECT ems_retry": {"producer+cancel": "due_at, key"},
            "INSERT ems_result": {"producer+cancel": "topic_id, uid, group_id, state, ended_at, expires_at"},
            "UPDATE ems_retry": {"producer+cancel": "due_at"},
        },
    ),
    _ADMIN,  # creates the tables, and changes any of their rows
)
