"""Arguments and results by the annotations of tasks, on an app in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, SecretStr

from emsworker import BoundTask, ConfigError, DecodeError, Ems, Message, TaskFailed, Transaction
from emsworker.core.errors import EncodeError, ExtraMissing, WrongArguments

if TYPE_CHECKING:
    from collections import UserString as OnlyForCheckers

T = TypeVar("T")
OrderId = NewType("OrderId", UUID)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NUMBER = UUID("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    x: int
    y: Decimal


@dataclass
class Line:
    sku: str
    price: Decimal
    raw: bytes = b""
    tags: set[str] = field(default_factory=set)


class Order(BaseModel):
    id: UUID
    at: datetime
    lines: list[Line]
    color: Color = Color.RED


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    at: datetime
    count: int = Field(alias="n", gt=0)


class Box(BaseModel, Generic[T]):
    inside: T


class Session:
    """Somebody's class, of which Pydantic knows nothing."""


ORDER = Order(id=NUMBER, at=NOON, lines=[Line("a", Decimal("1.10"), b"x", {"x"})], color=Color.BLUE)


@pytest.fixture
def app() -> Ems:
    return Ems("typed", url="mysql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (Line, Line("b", Decimal("0.1"), b"\xff\x00", {"y"})),
        (Strict, Strict(at=NOON, n=3)),
        (Box[Order], Box[Order](inside=ORDER)),
        (Place, Place(1, Decimal(2))),
        (Color, Color.BLUE),
        (Level, Level.HIGH),
        (datetime, NOON),
        (date, date(2026, 3, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=1, microseconds=5)),
        (Decimal, Decimal("1.10")),
        (UUID, NUMBER),
        (OrderId, NUMBER),
        (bytes, b"\xff\x00"),
        (set[int], {1, 2}),
        (frozenset[Color], frozenset([Color.RED])),
        (tuple[int, datetime], (1, NOON)),
        (tuple[UUID, ...], (NUMBER,)),
        (dict[int, date], {5: date(2026, 3, 1)}),
        (Mapping[str, Order], {"a": ORDER}),
        (Sequence[Order], [ORDER]),
        (Order | None, ORDER),
        (Order | None, None),
        (Order | Strict, Strict(at=NOON, n=3)),
        (Annotated[datetime, "when it was"], NOON),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_a_value_is_plain_json_on_its_way_and_itself_again(app: Ems, kind: Any, value: Any) -> None:
    """As an argument by position and by name, and as a result."""
    seen: list[Any] = []

    def same(first: Any, *, second: Any) -> Any:
        seen.extend((first, second))
        return first

    same.__annotations__ = {"first": kind, "second": kind, "return": kind}
    task = app.task(result=True)(same)
    with app.test() as test:
        receipt = task.delay(value, second=value)
        text = test.sent[0].raw.decode()
        assert "__type__" not in text and json.loads(text) == test.sent[0].body
        assert test.run() == 1 and not test.dead
        assert seen == [value, value] and [type(one) for one in seen] == [type(value)] * 2
        for result in (app.result(receipt), app.results([receipt])[0], task.result(receipt.id)):
            assert result.get() == value and type(result.get()) is type(value)
        stored = app.result(receipt.id).get()
        assert stored == json.loads(json.dumps(stored)), "by its id alone nobody knows its task"


def test_the_wire_is_what_other_languages_expect(app: Ems) -> None:
    @app.task
    def place(order: Order, at: datetime, within: timedelta, raw: bytes) -> None: ...

    with app.test() as test:
        place.delay(ORDER, NOON, timedelta(minutes=5), raw=b"\xff")
        line = {"sku": "a", "price": "1.10", "raw": "x", "tags": ["x"]}
        order = {"id": str(NUMBER), "at": "2026-03-01T12:00:00Z", "lines": [line], "color": "blue"}
        assert test.sent[0].body == [[order, "2026-03-01T12:00:00Z", "PT5M"], {"raw": "_w=="}]


def test_what_is_plain_json_already_is_sent_as_it_is_and_built(app: Ems) -> None:
    """Of ``ems send``, of plain SQL, and of callers that have no classes."""
    seen: list[Any] = []

    @app.task
    def place(order: Order, strict: Strict | None = None, raw: bytes = b"") -> None:
        seen.append((order, strict, raw))

    plain = ORDER.model_dump(mode="json")
    strict = {"at": "2026-03-01T12:00:00Z", "n": 3}
    with app.test() as test:
        app.publisher.send("default", [[plain], {"strict": strict, "raw": "_w=="}], headers={"ems-task": place.name})
        place.apply_async((plain, strict, "_w=="))
        assert test.sent[1].body == [[plain, strict, "_w=="], {}]
        app.publisher.send(
            "default", [[{**plain, "at": NOON}], {}], headers={"ems-task": place.name}
        )  # kombu's form of a time
        test.run()
        assert seen == [(ORDER, Strict(at=NOON, n=3), b"\xff")] * 2 + [(ORDER, None, b"")]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"order": {"id": "x"}}, r"order.id = 'x' does not fit .*Order: Input should be a valid UUID.* \(and 2 more\)"),
        ({"order": ORDER.model_copy(update={"at": "never"})}, r"order.at = 'never' does not fit .*Order"),
        ({"at": "tomorrow"}, r"at = 'tomorrow' does not fit datetime\.datetime: Input should be a valid datetime"),
        ({"at": Session()}, r"at = <.*Session object.*> does not fit datetime\.datetime: Unable to serialize"),
        ({"line": Line("a", Decimal(1), b"", {1})}, r"line.tags\[0\] = 1 does not fit .*Line"),  # type: ignore[arg-type]
        ({"line": {"sku": "a"}}, r"line.price does not fit .*Line.*: Field required"),
        ({"count": 0}, r"count = 0 does not fit .*: Input should be greater than 0"),
        ({"secret": SecretStr("hush")}, r"it holds a secret of Pydantic's, which would be sent as asterisks"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_sent(app: Ems, call: dict[str, Any], text: str) -> None:
    @app.task(name="shop.place")
    def place(
        order: Order | dict[str, str] = {},  # noqa: B006
        at: datetime = NOON,
        line: Line | None = None,
        count: PositiveInt = 1,
        secret: SecretStr | None = None,
    ) -> None: ...

    place.function.__annotations__["order"] = "Order"
    with app.test() as test:
        for send in (
            lambda: place.delay(**call),
            lambda: place.delay_many([call]),
            lambda: place.s(**call).delay(),
            lambda: asyncio.run(place.adelay(**call)),
            lambda: app.periodic(every=5, kwargs=call)(place),
        ):
            with pytest.raises(
                WrongArguments, match=f"^task 'shop.place' cannot be called .*: {text}.*; nothing was sent$"
            ):
                send()
        assert not test.sent and not app.registry.schedules


def test_what_cannot_be_built_is_dead_at_once_with_the_reason_and_can_be_requeued(app: Ems) -> None:
    @app.task(name="shop.place", result=True)
    def place(order: Order) -> None:
        raise AssertionError("not reached")

    with app.test() as test:
        app.publisher.send("default", [[{"id": "x"}], {}], headers={"ems-task": place.name}, uid=str(NUMBER))
        assert test.run() == 1
        (dead,) = test.dead
        assert dead.attempt == 1
        assert dead.reason.startswith(
            "the arguments of task 'shop.place' cannot be built: order.id = 'x' does not fit "
        )
        with pytest.raises(TaskFailed, match="DecodeError: the arguments of task"):
            app.result(str(NUMBER)).get()


def test_a_result_that_is_not_what_was_said_fails_and_the_task_is_done(app: Ems) -> None:
    ran: list[int] = []

    @app.task(result=True, name="shop.find")
    def find(number: int) -> Order:
        ran.append(number)
        return ORDER if number else {"id": "x"}  # type: ignore[return-value]

    @app.task
    def unkept() -> Order:
        return None  # type: ignore[return-value]

    with app.test() as test:
        good, bad = find.delay_many([1, 0])
        unkept.delay()
        assert test.run() == 3 and not test.dead and ran == [1, 0]
        assert app.result(good).get() == ORDER
        with pytest.raises(
            TaskFailed, match=r"EncodeError: the result of 'shop.find' cannot be kept: the result.id = 'x'"
        ):
            app.result(bad).get()
        find.types = find.types._replace(result=None)  # the caller's code is older than the worker's
        del find.result_type
        assert find.result(good).get() == ORDER.model_dump(mode="json")  # type: ignore[comparison-overlap]


def test_all_kinds_of_parameters(app: Ems) -> None:
    seen: list[Any] = []

    @app.task
    def many(a: int, at: date, /, b: Any, *lines: Line, last: UUID, **more: Decimal) -> None:
        seen.append((a, at, b, lines, last, more))

    @app.task(bind=True, transactional=True)
    def bound(self: BoundTask, transaction: Transaction, order: Order) -> None:
        seen.append((self.request.attempt, order))

    @app.task
    async def coroutine(at: date) -> None:
        seen.append(at)

    class Connection:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: Connection()

    today = date(2026, 3, 1)
    with app.test(connection=Connection()) as test:
        many.delay(1, today, NOON.isoformat(), Line("a", Decimal(1)), last=NUMBER, at=Decimal(3), b2=Decimal("0.5"))
        bound.delay(ORDER)
        coroutine.delay(today)
        test.run()
        assert not test.dead, test.dead
    lines = (Line("a", Decimal(1)),)
    more = {"at": Decimal(3), "b2": Decimal("0.5")}
    assert seen == [(1, today, NOON.isoformat(), lines, NUMBER, more), (1, ORDER), today]


def test_handlers_with_other_annotations_go_on_as_without(app: Ems) -> None:
    seen: list[Any] = []

    @app.task
    def work(
        number: int,
        session: Session | None = None,
        later: OnlyForCheckers | None = None,
        call: Callable[[], None] | None = None,
        items: Iterable[datetime] = (),
        at: datetime | None = None,
    ) -> Session:
        seen.append((number, session, later, call, items, at))
        return Session()

    with app.test() as test:
        work.delay("5", at=NOON, later=[1], items=["x"])  # type: ignore[arg-type, list-item]
        test.run()
        assert seen == [("5", None, [1], None, ["x"], NOON)] and not test.dead
        with pytest.raises(EncodeError, match="Session is not JSON serializable"):
            work.delay(1, session=Session())
    with pytest.raises(ConfigError) as refused:
        app.task(name="other", typed=True)(work.function)
    problems = [str(problem).partition(":")[0] for problem in refused.value.problems]
    assert sorted(problems) == [
        f"the annotation of {name} in task 'other' = {kind}"
        for name, kind in (
            ("call", "collections.abc.Callable[[], None] | None"),
            ("items", "collections.abc.Iterable[datetime.datetime]"),
            ("later", "OnlyForCheckers | None"),
            ("session", "tests.unit.test_annotations.Session | None"),
            ("the result", "tests.unit.test_annotations.Session"),
        )
    ]


def test_only_with_typed_are_all_arguments_checked(app: Ems) -> None:
    def charge(number: int, way: Literal["card", "cash"] = "card") -> int:
        return number

    loose, strict = app.task(name="loose")(charge), app.task(name="strict", typed=True)(charge)
    off = app.task(name="off", typed=False)(lambda: None)
    assert loose.types == off.types == (None, None)
    with app.test() as test:
        loose.delay("many", "gold")  # type: ignore[arg-type]
        with pytest.raises(WrongArguments, match="number = 'many' does not fit int"):
            strict.delay("many")  # type: ignore[arg-type]
        with pytest.raises(WrongArguments, match=r"way = 'gold' does not fit Literal\['card', 'cash'\]"):
            strict.delay(1, "gold")  # type: ignore[arg-type]
        assert len(test.sent) == 1
    for wrong in (
        lambda: app.task(batch=5, typed=True)(charge),  # type: ignore[arg-type]
        lambda: app.subscribe("topic", "group", typed=True)(charge),  # type: ignore[call-overload]
        lambda: app.task(typed="yes")(charge),  # type: ignore[call-overload]
    ):
        with pytest.raises(ConfigError, match="typed"):
            wrong()


def test_a_batch_gets_messages_with_plain_json(app: Ems) -> None:
    seen: list[Any] = []

    @app.task(batch=10)
    def batch(messages: list[Message]) -> None:
        seen.extend(message.body for message in messages)

    with app.test() as test:
        batch.delay(1)
        test.run()
    assert seen == [[[1], {}]]


def test_pydantic_is_loaded_only_where_it_is_needed() -> None:
    """In a process of its own, where nothing else has loaded it."""
    code = """if True:
        import sys
        from datetime import datetime
        from emsworker import Ems
        app = Ems("plain")
        @app.task
        def plain(a: int, b: list[str], c: dict[str, float] | None = None) -> str: return "x"
        @app.task
        def timed(at: datetime) -> None: ...
        with app.test() as test:
            plain.delay(1, []); test.run()
            assert "pydantic" not in sys.modules
            timed.delay(datetime(2026, 3, 1)); test.run()
            assert "pydantic" in sys.modules
            assert test.sent[1].body == [["2026-03-01T00:00:00"], {}]
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_pydantic_a_task_is_as_before(app: Ems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    seen: list[Any] = []

    @app.task
    def timed(at: datetime) -> None:
        seen.append(at)

    with app.test() as test:
        timed.delay(NOON)
        test.run()
    assert seen == [NOON]
    with pytest.raises(ExtraMissing, match=r"typed=True of task .* needs the extra pydantic: .*emsworker\[pydantic\]"):
        app.task(name="other", typed=True)(timed.function)


def test_a_result_of_another_type_is_named(app: Ems) -> None:
    @app.task(result=True, name="shop.when")
    def when() -> date:
        return date(2026, 3, 1)

    with app.test() as test:
        receipt = when.delay()
        test.run()
        when.function.__annotations__["return"] = "UUID"
        for made in ("types", "result_type"):
            when.__dict__.pop(made)
        with pytest.raises(DecodeError, match=r"the result of 'shop.when' cannot be built: the result = '2026-03-01'"):
            when.result(receipt).get()
