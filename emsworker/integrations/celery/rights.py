"""The rights of Celery programs, and those of the beat on their tables."""

from emsworker.extending.declaration import read_grid

# celery: Celery programs, clients and workers alike: what a worker does, and queues that they declare, purge and
#   delete.
RIGHTS = read_grid(
    """
                       celery  beat
ems_schema_version     S       -
ems_extension_version  S       -
ems_topic              SIUD    -
ems_topic_guard        SIUD    -
ems_partition          SIUD    -
ems_message            SIuD    -
ems_outbox             SIuD    -
ems_large_body         SuD     -
ems_body_chunk         SD      -
ems_result_chunk       SD      -
ems_publish            SiuD    -
ems_dedup              SIUD    -
ems_group              SIUD    -
ems_handler            SIUD    -
ems_task_pause         SD      -
ems_task_limit         SIUD    -
ems_task_slot          SIUD    -
ems_cursor             SIUD    -
ems_claim              SIUD    -
ems_retry              SIUD    -
ems_attempt            SIUD    -
ems_dead               SIUD    -
ems_dead_notice        SIUD    -
ems_skip               SIUD    -
ems_skip_policy        SIUD    -
ems_cancel             SIUD    -
ems_restored           SIUD    -
ems_result             SIUD    -
ems_progress           SIUD    -
ems_schedule           SIU     -
ems_once               SIUD    -
ems_client             SIUD    -
ems_leader             SIUD    -
ems_position           SIUD    -
ems_hold               SIUD    -
ems_limit              SIUD    -
ems_slot               SIUD    -
ems_alarm_rule         Su      -
ems_alarm              SIUD    -
ems_alarm_event        SiuD    -
ems_alarm_silence      S       -
ems_sample             SID     -
ems_latest             SID     -
ems_audit              sD      -
ems_celery_result      SIUD    sD
ems_celery_chord       SIUD    sD
ems_celery_chord_part  SIUD    sD
ems_celery_schedule    SIUD    -
ems_celery_revoked     SIU     sD
ems_exchange           SIUD    -
ems_queue              SIUD    -
ems_binding            SIUD    -
""",
    {
        "UPDATE ems_message": {"celery": "offset"},
        "UPDATE ems_outbox": {"celery": "created_at"},
        "UPDATE ems_large_body": {"celery": "created_at"},
        "INSERT ems_publish": {"celery": "topic, body, key, tag, headers, uid, refused_at, error"},
        "UPDATE ems_publish": {"celery": "refused_at, error"},
        "INSERT ems_alarm_event": {"celery": "alarm_id, rule, target, body, created_at, due_at"},
        "UPDATE ems_alarm_event": {"celery": "due_at, tries"},
        "UPDATE ems_alarm_rule": {"celery": "name"},
        "SELECT ems_audit": {"celery": "action_id, step"},
        "SELECT ems_celery_result": {"beat": "name, expires_at"},
        "SELECT ems_celery_chord": {"beat": "name, expires_at"},
        "SELECT ems_celery_chord_part": {"beat": "chord"},
        "SELECT ems_celery_revoked": {"beat": "expires_at"},
    },
)
