"""The rights of each role on the tables of flows."""

from __future__ import annotations

from emsworker.extending.declaration import read_grid

# producer: starts flows, changes those of a burst that have not begun, and gives signals, which may wake a flow: it
# changes who owns it.
# worker: runs flows, and waits for them. viewer: sees names, states and steps, and no values.
RIGHTS = read_grid(
    """
                      producer  worker  beat  viewer  reader  operator
    ems_flow          SIu       SIU     SUD   s       S       SU
    ems_flow_step     -         SIU     SUD   s       S       SUD
    ems_flow_end      -         SI      SID   s       S       SID
    ems_flow_signal   I         SU      SD    s       S       SIU
    ems_flow_value    -         SI      SD    s       S       S
    ems_flow_attribute I        SI      SD    S       S       S
    ems_flow_debounce SIU       SIUD    -     -       -       SD
    ems_extension_version S     -       -     -       -       -
    ems_outbox        -         -       -     -       -       I
    """,
    {
        "UPDATE ems_flow": {"producer": "state, owner, waits, changed_at, args, version, begins_at"},
        "SELECT ems_flow": {
            "viewer": "id, key, name, version, topic_id, state, run, waits, error_type, parent, started_at, "
            "changed_at, begins_at, deadline_at, ended_at"
        },
        "SELECT ems_flow_step": {
            "viewer": "flow_id, step, kind, name, total, pending, error_type, due_at, began_at, ended_at"
        },
        "SELECT ems_flow_end": {"viewer": "flow_id, step, number, error_type, ended_at"},
        "SELECT ems_flow_signal": {"viewer": "id, flow_id, name, step, sent_at"},
        "SELECT ems_flow_value": {"viewer": "flow_id, number, emitted_at"},
    },
)
