"""What a caller gets wrong is refused at the call, by name, and nothing is written."""

import math
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from emsworker import (
    ConfigError,
    Ems,
    EmsError,
    EncodeError,
    Filter,
    InvalidName,
    InvalidPriority,
    Message,
    MessageTooLarge,
    WrongArguments,
)
from emsworker.publish.outgoing import Outgoing


@pytest.fixture
def app() -> Ems:
    return Ems("refused", url="mysql://nobody@127.0.0.1:1/none")


Send = Callable[[Ems, dict[str, Any]], Any]
SENDS: dict[str, Send] = {
    "send": lambda app, options: app.send("t", 1, **options),
    "send_many": lambda app, options: app.send_many("t", [1], **options),
    "apply_async": lambda app, options: app.task(name="f")(lambda: None).apply_async(**options),
    "transaction.send": lambda app, options: _in_transaction(app, options),
}  # fmt: skip


def _in_transaction(app: Ems, options: dict[str, Any]) -> Any:
    with app.transaction() as tx:
        return tx.send("t", 1, **options)


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize(
    ("option", "value", "kind", "text"),
    [
        ("countdwn", 3, ConfigError, "did you mean 'countdown'"),
        ("prioritty", 3, ConfigError, "did you mean 'priority'"),
        ("dedup_ky", 3, ConfigError, "did you mean 'dedup_key'"),
        ("colour", "red", ConfigError, "known are"),
        ("countdown", "soon", ConfigError, "countdown = 'soon'"),
        ("countdown", -1, ConfigError, "countdown = -1"),
        ("countdown", True, ConfigError, "countdown = True"),
        ("countdown", math.nan, ConfigError, "countdown = nan"),
        ("delay", math.inf, ConfigError, "delay = inf"),
        ("delay", 10**400, ConfigError, "delay = 1000"),
        ("delay", "-5s", ConfigError, "delay = '-5s'"),
        ("delay", [], ConfigError, "delay = "),
        ("eta", 5, ConfigError, "must be a datetime"),
        ("eta", date(2026, 1, 1), ConfigError, "must be a datetime"),
        ("priority", "high", InvalidPriority, "'high'"),
        ("priority", 10, InvalidPriority, "10"),
        ("priority", True, InvalidPriority, "True"),
        ("key", 3.5, InvalidName, "key 3.5"),
        ("key", "x" * 256, InvalidName, "key of 256 bytes"),
        ("tag", 5, InvalidName, "tag 5"),
        ("tag", "x" * 256, InvalidName, "tag of 256 bytes"),
        ("tag", "\ud800", InvalidName, "no UTF-8"),
        ("headers", {"a": 1}, EncodeError, "header 'a' = 1"),
        ("headers", {1: "a"}, EncodeError, "header 1 = 'a'"),
        ("headers", [("a", "b")], EncodeError, "headers ="),
        ("headers", {"ems-task": "x"}, InvalidName, "reserved"),
        ("partition", "x", InvalidName, "partition 'x'"),
        ("partition", True, InvalidName, "partition True"),
        ("partition", 0.0, InvalidName, "partition 0.0"),
        ("serializer", "jsn", EncodeError, "'jsn'"),
        ("serializer", 5, EncodeError, "5"),
        ("compression", "zip", EncodeError, "'zip'"),
        ("compression", 5, EncodeError, "5"),
        ("dedup_key", 3.5, InvalidName, "dedup_key 3.5"),
        ("dedup_key", "x" * 256, InvalidName, "dedup_key of 256 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name(
    app: Ems, send: Send, option: str, value: Any, kind: type[EmsError], text: str
) -> None:
    with app.test() as test:
        with pytest.raises(kind) as caught:
            send(app, {option: value})
        assert text in str(caught.value)
        assert not test.sent


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"uid": "x"}, ConfigError, "did you mean 'task_id'"),
        ({"queue": "x"}, ConfigError, "did you mean 'topic'"),
        ({"topc": "x"}, ConfigError, "did you mean 'topic'"),
        ({"task_id": 5}, InvalidName, "5 is not a message id"),
        ({"expires": "soon"}, ConfigError, "expires = 'soon'"),
        ({"expires": math.nan}, ConfigError, "expires = nan"),
        ({"args": "abc"}, WrongArguments, "args of task 'f' is a str"),
        ({"args": 5}, WrongArguments, "args of task 'f' is a int"),
        ({"kwargs": [1]}, WrongArguments, "kwargs of task 'f'"),
        ({"kwargs": {1: 2}}, WrongArguments, "kwargs of task 'f'"),
        ({"topic": "no topic"}, InvalidName, "no topic"),
        ({"topic": 5}, InvalidName, "5"),
        ({"dedup_key": "x", "dedup_window": "long"}, ConfigError, "dedup_window = 'long'"),
        ({"countdown": 1, "delay": "1s"}, ConfigError, "either countdown or delay"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_by_name(app: Ems, options: dict[str, Any], kind: type[EmsError], text: str) -> None:
    task = app.task(name="f")(lambda: None)
    with app.test() as test:
        with pytest.raises(kind) as caught:
            task.apply_async(**options)
        assert text in str(caught.value)
        assert not test.sent


def _none() -> None: ...
def _two(x: int, y: int = 0) -> None: ...
def _names(*, name: str) -> None: ...
def _any(*args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "first", "args", "kwargs", "text"),
    [
        (_none, {}, (1, 2, 3), {}, "too many positional arguments; it takes ()"),
        (_none, {}, (), {"x": 1}, "unexpected keyword argument 'x'"),
        (_two, {}, (), {}, "missing a required argument: 'x'; it takes (x: int, y: int = 0)"),
        (_two, {}, (1, 2, 3), {}, "too many positional arguments"),
        (_two, {}, (1,), {"x": 1}, "multiple values for argument 'x'"),
        (_two, {}, (1, 2), {}, None),
        (_two, {}, (), {"x": 1}, None),
        (_two, {"bind": True}, (1,), {}, None),
        (_two, {"bind": True}, (), {}, None),
        (_two, {"bind": True}, (), {"y": 1}, None),
        (_none, {"bind": True}, (), {}, "too many positional arguments; it takes ()"),
        (_two, {"transactional": True, "bind": True}, (), {"y": 1}, "multiple values"),
        (_two, {"bind": True}, (1, 2), {}, "too many positional arguments; it takes (y: int = 0)"),
        (_two, {"transactional": True}, (1, 2), {}, "too many"),
        (_two, {"transactional": True, "bind": True}, (), {}, None),
        (_two, {"transactional": True, "bind": True}, (1,), {}, "too many positional arguments; it takes ()"),
        (_names, {}, ("x",), {}, "too many"),
        (_names, {}, (), {"name": "x"}, None),
        (_any, {}, (1, 2), {"x": 1}, None),
        (_none, {"batch": 10}, (1, 2), {}, None),
        (max, {}, (1, 2), {}, None),
    ],
)  # fmt: skip
def test_arguments_that_the_function_does_not_take_are_refused_at_the_call(
    app: Ems, function: Any, first: dict[str, Any], args: Any, kwargs: Any, text: str | None
) -> None:
    task = app.task(name="f", **first)(function)
    with app.test() as test:
        if text is None:
            task.delay(*args, **kwargs)
            assert len(test.sent) == 1
            return
        with pytest.raises(WrongArguments, match="task 'f' cannot be called") as caught:
            task.delay(*args, **kwargs)
        assert text in str(caught.value) and isinstance(caught.value, TypeError)
        assert not test.sent


def test_a_decorator_may_add_arguments(app: Ems) -> None:
    from functools import wraps

    def with_db(function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function("db", *args, **kwargs)

        return call

    seen: list[Any] = []

    @app.task
    @with_db
    def store(db: str, x: int) -> None:
        seen.append((db, x))

    with app.test() as test:
        store.delay(1)
        test.run()
    assert seen == [("db", 1)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (math.nan, "the body cannot be serialized as json: it is nan, and JSON has no such number"),
        ({"a": [1, {"price": math.inf}]}, "body['a'][1]['price'] cannot be serialized as json: it is inf"),
        ([1, -math.inf], "body[1] cannot be serialized as json: it is -inf"),
        ({"a": {math.nan: 1}}, "body['a'] cannot be serialized as json: it has the key nan"),
        ({"a": {(1, 2): 1}}, "body['a'] cannot be serialized as json: it has the key (1, 2)"),
        ({"a": (object(),)}, "body['a'][0] cannot be serialized as json: Object of type object"),
    ],
)  # fmt: skip
def test_what_json_cannot_say_is_refused_and_located(app: Ems, body: Any, text: str) -> None:
    with app.test() as test:
        with pytest.raises(EncodeError) as caught:
            app.send("t", body)
        assert text in str(caught.value)
        with pytest.raises(EncodeError):
            app.send_many("t", [1, body])
        assert not test.sent


def test_what_json_cannot_say_is_located_in_a_call(app: Ems) -> None:
    task = app.task(name="f")(_any)
    with app.test() as test:
        with pytest.raises(EncodeError, match=r"^args\[1\]\['x'\] cannot .* is nan"):
            task.delay(1, {"x": math.nan})
        with pytest.raises(EncodeError, match=r"^kwargs\['x'\]\[0\] cannot .* is inf"):
            task.delay(x=[math.inf])
        with pytest.raises(EncodeError, match="nested too deeply, or holds itself"):
            circle: list[Any] = []
            circle.append(circle)
            task.delay(circle)
        assert not test.sent


def test_send_many_takes_bodies_and_no_single_one(app: Ems) -> None:
    with app.test() as test:
        wrong: list[Any] = ["abc", b"abc", {"a": 1}, 5, None]
        for bodies in wrong:
            with pytest.raises(ConfigError, match=r"bodies = .*send\(\) sends a single one"):
                app.send_many("t", bodies)
        with pytest.raises(ConfigError, match="key = 'k': an Outgoing has options of its own"):
            app.send_many("t", [Outgoing("t", 1)], key="k")
        assert not test.sent
        app.send_many("t", (n for n in range(2)), key="k")
        app.send_many("t", [Outgoing("t", 1, key="o")], countdown=1)
        assert [message.key for message in test.sent] == ["k", "k", "o"]


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda app: app.task(max_atempts=3), "did you mean 'max_attempts'"),
        (lambda app: app.task(max_retries=3), "did you mean 'max_attempts'"),
        (lambda app: app.task(transactional="yes"), "transactional = 'yes'"),
        (lambda app: app.task(result=1), "result = 1"),
        (lambda app: app.task(rate_limit=100), "not a rate"),
        (lambda app: app.task(timeout_s=True), "timeout_s = True"),
        (lambda app: app.task(order="keys"), "order = 'keys'"),
        (lambda app: app.subscribe("t", "g", time_out_s=3), "did you mean 'timeout_s'"),
        (lambda app: app.subscribe("t", "g", filter=["a"]), "must be a Filter"),
        (lambda app: app.periodic(every="soon"), "every = 'soon'"),
        (lambda app: app.periodic(every=math.nan), "nan"),
        (lambda app: app.periodic(5), "cron = 5"),
        (lambda app: app.periodic("* * * * *", arg=[1]), "did you mean 'args'"),
        (lambda app: app.once("k", ttl=5), "did you mean 'ttl_s'"),
        (lambda app: app.once("k", ttl_s="5m"), "ttl_s = '5m'"),
        (lambda app: app.task(timeout_s=10**400), "timeout_s = 1000"),
        (lambda app: Ems("x", lease_s=10**400), "lease_s = 1000"),
        (lambda app: Ems("x", thread=3), "did you mean 'threads'"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_by_name(app: Ems, declare: Callable[[Ems], Any], text: str) -> None:
    with app.test(), pytest.raises(ConfigError) as caught:
        made = declare(app)
        made(
            app.task(name="f")(_none) if "every" in text or "cron" in text or "args" in text or "nan" in text else _none
        )
    assert text in str(caught.value)


def test_a_periodic_call_is_checked_when_it_is_declared(app: Ems) -> None:
    with pytest.raises(ConfigError, match=r"above @app\.task"):
        app.periodic("* * * * *")(_none)  # type: ignore[arg-type]
    task = app.task(name="f")(_two)
    with pytest.raises(WrongArguments, match="missing a required argument"):
        app.periodic(every=5)(task)
    with pytest.raises(EncodeError, match=r"^args\[0\] cannot .* is nan"):
        app.periodic(every=5, args=[math.nan])(task)
    with pytest.raises(InvalidName, match=r"key 3\.5"):
        app.periodic(every=5, args=[1], key=3.5)(task)
    with pytest.raises(MessageTooLarge, match="max_decoded_objects"):
        app.periodic(every=5, args=[[{}] * 1_400_000])(task)
    with pytest.raises(MessageTooLarge, match="max_decoded_objects"):
        Outgoing("t", [{}] * 1_400_000).encode(app.settings)
    app.periodic(every=5, args=[1], kwargs={"y": 2})(task)


def test_a_key_of_once_must_be_there(app: Ems) -> None:
    keys: list[Any] = ["", b"", None]
    with app.test():
        for key in keys:
            with pytest.raises(InvalidName, match="empty"):
                app.once(key)


def test_keys_and_tags_come_back_as_they_were_sent(app: Ems) -> None:
    seen: list[Any] = []

    @app.subscribe("t", "g", filter=Filter(tags=["web", "é"]))
    def handle(message: Message) -> None:
        seen.append((message.key, message.tag, message.key_bytes, message.tag_bytes))

    @app.task(bind=True)
    def bound(self: Any) -> None:
        seen.append(self.request.key)

    with app.test() as test:
        app.send("t", 1, key="kühn", tag="web")
        app.send("t", 1, key=b"\xff\x00", tag="é".encode())
        app.send("t", 1, tag="web")
        app.send("t", 1, tag="other")
        bound.apply_async(key="k")
        bound.apply_async(key=b"\xff")
        test.run()
        assert [message.tag for message in test.sent] == ["web", "é", "web", "other", None, None]
    assert seen[:3] == [
        ("kühn", "web", "kühn".encode(), b"web"),
        (b"\xff\x00", "é", b"\xff\x00", "é".encode()),
        (None, "web", None, b"web"),
    ]
    assert seen[3:] == ["k", b"\xff"]
    assert Filter(tags=["web"]).matches("web", {}) and Filter(tags=["web"]).matches(b"web", {})
