"""``@app.flow``, ``app.signal`` and ``app.find_flow``."""

from __future__ import annotations

from typing import Any

from emsworker.extending.apps import Ems, check_function, full_name
from emsworker.extending.errors import ConfigError, InvalidName, Problem
from emsworker.extending.settings import is_whole
from emsworker.extending.values import check_name
from emsworker.flows.errors import FlowEnded, UnknownFlow
from emsworker.flows.handle import FlowHandle
from emsworker.flows.rows import ENDED, LONGEST_NAME, encode_value
from emsworker.flows.stores import check_transaction, store_with
from emsworker.flows.task import FlowTask

_ATTEMPTS = 5
_NOT_OPTIONS = (
    "bind",
    "transactional",
    "batch",
    "order",
    "result",
    "result_ttl_s",
    "on_error",
    "fair",
    "max_running_per_key",
)


def declare(app: Ems, function: Any, name: str | None, version: int, options: dict[str, Any]) -> Any:
    """Declare the function of a flow; see :meth:`Ems.flow`."""
    if not is_whole(version) or not 1 <= version < 1 << 32:
        raise ConfigError([Problem("version", repr(version), "must be a whole number from 1 to 4294967295")])
    if wrong := [one for one in _NOT_OPTIONS if one in options]:
        raise ConfigError([Problem(one, repr(options[one]), "a flow has no such option") for one in wrong])
    topic, group = options.pop("topic", None), options.pop("group", None)
    checked = app.registry.options({"max_attempts": _ATTEMPTS} | options)

    def decorate(function: Any) -> FlowTask[Any, Any]:
        check_function("flow", function)
        place = {"topic": topic or app.settings.topic, "group": app.registry.group_for(group, checked)}
        known = check_name("task", name or full_name(function))
        task = app.registry.route(place["topic"], place["group"]).tasks.get(known)
        if isinstance(task, FlowTask):
            task.add_version(version, function)
            return task
        task = FlowTask(app, function, known, checked, version, **place)
        app.registry.add_task(task, None)
        return task

    return decorate if function is None else decorate(function)


def signal(app: Ems, id: str, name: str, value: Any, transaction: Any, topic: str | None) -> None:
    """Give a flow a signal; see :meth:`Ems.signal`."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise InvalidName(f"signal {name!r:.200}: its name must be a text of 1 to {LONGEST_NAME} characters")
    _check_id(id)
    encoded = encode_value(value, f"the value of signal {name!r}")
    store = store_with(app, topic or app.settings.topic, id)
    check_transaction(app, topic or app.settings.topic, store, transaction)
    state = store.signal(transaction, id, name, encoded)
    if state is None:
        raise UnknownFlow(f"there is no flow {id!r}")
    if state in ENDED:
        raise FlowEnded(f"flow {id!r} has ended ({state}); signal {name!r} was not given")


def find(app: Ems, id: str, topic: str | None) -> FlowHandle[Any]:
    """Return a flow by its id; see :meth:`Ems.find_flow`."""
    _check_id(id)
    return FlowHandle(id, store_with(app, topic or app.settings.topic, id), app)


def _check_id(id: Any) -> None:
    """Check an id before a server compares it: by a number it finds every text that begins with that.

    Raises:
        InvalidName: it is not a text.
    """
    if not isinstance(id, str):
        raise InvalidName(f"flow id {id!r:.200}: it must be a text")
