"""The rights of each role on the tables of flows."""

from __future__ import annotations

from emsworker.extending.declaration import read_grid

_STARTED = (
    "key, name, version, topic_id, state, owner, level, headers, args, waits, started_at, changed_at, begins_at, "
    "deadline_at"
)
_MOVED = "state, owner, waits, changed_at, args, version, begins_at"
_ENDED = "error_type, error, ended_at"

# producer: starts flows, changes those of a burst that have not begun, and gives signals, which may wake a flow: it
# changes who owns it. Of a signal it reads the size, and not the value.
# Nobody but an admin names the number of a row that the server numbers: the largest one would be the last one.
# worker: runs flows, and waits for them. viewer: sees names, states and steps, and no values.
RIGHTS = read_grid(
    """
                      producer  worker  beat  viewer  reader  operator
    ems_flow          Siu       Siu     SuD   s       S       Su
    ems_flow_step     -         SIU     SUD   s       S       SUD
    ems_flow_end      -         SI      SID   s       S       SID
    ems_flow_signal   si        Siu     SD    s       S       Siu
    ems_flow_value    -         SI      SD    s       S       S
    ems_flow_attribute I        SI      SD    S       S       S
    ems_flow_debounce SIU       SIUD    -     -       -       SD
    ems_extension_version S     -       -     -       -       -
    ems_outbox        -         -       -     -       -       I
    """,
    {
        "INSERT ems_flow": {
            "producer": _STARTED,
            "worker": f"{_STARTED}, parent",
        },
        "UPDATE ems_flow": {
            "producer": _MOVED,
            "worker": f"{_MOVED}, run, value, undone, {_ENDED}",
            "beat": f"key, state, owner, waits, parent, changed_at, undone, {_ENDED}",
            "operator": "key, state, run, owner, waits, parent, next_step, changed_at, begins_at, deadline_at, "
            f"{_ENDED}",
        },
        "INSERT ems_flow_signal": {"producer worker operator": "flow_id, uid, name, value, sent_at"},
        "UPDATE ems_flow_signal": {"worker operator": "step"},
        "SELECT ems_flow": {
            "viewer": "id, key, name, version, topic_id, state, run, waits, error_type, undone, parent, started_at, "
            "changed_at, begins_at, deadline_at, ended_at"
        },
        "SELECT ems_flow_step": {
            "viewer": "flow_id, step, kind, name, total, pending, error_type, due_at, began_at, ended_at"
        },
        "SELECT ems_flow_end": {"viewer": "flow_id, step, number, error_type, ended_at"},
        "SELECT ems_flow_signal": {
            "producer": "flow_id, uid, size, step",
            "viewer": "id, flow_id, name, size, step, sent_at",
        },
        "SELECT ems_flow_value": {"viewer": "flow_id, number, emitted_at"},
    },
)
