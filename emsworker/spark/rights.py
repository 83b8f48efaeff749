"""The rights of those who write from Spark, and of readers that hold messages for it."""

from emsworker.extending.declaration import read_grid

# sink: writes from Spark: stages rows, and moves committed ones into the stream. It reads no message's body.
# hold: a reader holds messages for its named streaming queries; so it could also keep retention from deleting any, and
#   release the holds of others. It changes nothing else.
RIGHTS = read_grid(
    """
                    sink  sink+auto-create  reader+hold
ems_schema_version  S     -                 -
ems_topic           S     IU                -
ems_topic_guard     S     I                 -
ems_partition       Su    Iu                -
ems_message         sI    -                 -
ems_outbox          I     -                 -
ems_hold            -     -                 IU
ems_stage           SIUD  -                 -
ems_stage_task      SIUD  -                 -
ems_ledger          SIUD  -                 -
""",
    {
        "UPDATE ems_partition": {"sink": "next_offset", "sink+auto-create": "topic_id, partition, closed"},
        "SELECT ems_message": {"sink": "topic_id, partition, offset"},
    },
)
