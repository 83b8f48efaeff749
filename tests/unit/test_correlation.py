"""Which message led to which: the headers that a worker's own executor has sent."""

from collections.abc import Sequence
from typing import Any

from emsworker import Ems, Message
from emsworker.tasks.correlation import CAUSATION, CORRELATION, Correlation, caused_by


def marks(message: Message) -> tuple[str | None, str | None]:
    return message.headers.get(CORRELATION), message.headers.get(CAUSATION)


def test_a_correlation_id_is_handed_on_and_each_message_knows_its_cause() -> None:
    app = Ems("app", middleware=[Correlation()])

    @app.subscribe("orders", "sellers")
    def order(message: Message) -> None:
        app.send("invoices", 1)

    @app.subscribe("invoices", "clerks")
    async def invoice(message: Message) -> None:
        app.send("mails", 1)

    with app.test() as test:
        app.send("orders", 1)
        app.send("orders", 1, headers={CORRELATION: "mine"})
        test.run()
    first, second = (one for one in test.sent if one.topic == "orders")
    assert marks(first) == (None, None)
    one, other = (one for one in test.sent if one.topic == "invoices")
    assert (marks(one), marks(other)) == ((first.id, first.id), ("mine", second.id))
    mails = [marks(mail) for mail in test.sent if mail.topic == "mails"]
    assert sorted(mails) == sorted([(first.id, one.id), ("mine", other.id)])


def test_headers_of_the_senders_own_stay_and_what_is_sent_outside_has_none() -> None:
    app = Ems("app", middleware=[Correlation()])

    @app.subscribe("orders", "sellers")
    def order(message: Message) -> None:
        app.send("invoices", 1, headers={CORRELATION: "other"})

    with app.test() as test:
        app.send("orders", 1)
        test.run()
        app.send("late", 1)
    order_, invoice, late = test.sent
    assert marks(invoice) == ("other", order_.id)
    assert marks(late) == (None, None)


def test_a_batch_is_nobodys_cause_until_its_messages_run_one_by_one() -> None:
    app = Ems("app", middleware=[Correlation()])
    calls: list[int] = []

    @app.subscribe("orders", "sellers", batch=10, on_error="ignore")
    def orders(messages: Sequence[Message]) -> None:
        calls.append(len(messages))
        app.send("invoices", len(messages))
        if len(messages) > 1:
            raise ValueError("one by one, please")

    with app.test() as test:
        app.send_many("orders", [1, 2, 3])
        test.run()
    sent = [one for one in test.sent if one.topic == "orders"]
    together, *alone = (one for one in test.sent if one.topic == "invoices")
    assert calls == [3, 1, 1, 1]
    assert marks(together) == (None, None)
    assert [marks(one) for one in alone] == [(one.id, one.id) for one in sent]


def test_each_attempt_is_marked() -> None:
    app = Ems("app", middleware=[Correlation()])

    @app.task(ladder="1s", max_attempts=3, bind=True)
    def order(self: Any) -> None:
        app.send("tries", self.request.attempt)
        if self.request.attempt < 3:
            raise ValueError

    with app.test() as test:
        order.delay()
        test.run()
    cause, *tries = test.sent
    assert [marks(one) for one in tries] == [(cause.id, cause.id)] * 3


def test_a_batch_handler_says_itself_which_message_led_to_which() -> None:
    app = Ems("app")

    @app.subscribe("orders", "sellers", batch=10)
    def orders(messages: Sequence[Message]) -> None:
        for message in messages:
            app.send("invoices", 1, headers=caused_by(message))

    with app.test() as test:
        app.send("orders", 1)
        app.send("orders", 2, headers={CORRELATION: "story-7"})
        test.run()
    first, second = (one for one in test.sent if one.topic == "orders")
    found = [marks(one) for one in test.sent if one.topic == "invoices"]
    assert found == [(first.id, first.id), ("story-7", second.id)]
