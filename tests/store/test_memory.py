"""An app in memory whose transactional handlers work on a real database."""

from typing import Any

import pytest

from emsworker import Ems
from tests.support.streams import Stream


def test_a_handlers_sql_and_messages_are_kept_together_or_not_at_all(stream: Stream) -> None:
    app = Ems("memory")
    stream.rows("CREATE TABLE orders (id INT PRIMARY KEY)")

    @app.subscribe("orders", "bill", transactional=True, max_attempts=1)
    def bill(transaction: Any, message: Any) -> None:
        transaction.execute("INSERT INTO orders VALUES (%s)", (message.body,))
        app.send("bills", message.body, transaction=transaction)
        if message.body == 13:
            raise ValueError("unlucky")

    with stream.other() as connection, app.test(connection=connection) as test:
        app.send_many("orders", [12, 13, 14])
        test.run()
        assert [message.body for message in test.sent if message.topic == "bills"] == [12, 14]
        assert stream.rows("SELECT id FROM orders") == [(12,), (14,)]
        assert [dead.message.body for dead in test.dead] == [13]

        with app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (15)")
            tx.send("orders", 16)
        test.run()
        with pytest.raises(KeyError), app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (17)")
            raise KeyError
        assert stream.rows("SELECT id FROM orders") == [(12,), (14,), (15,), (16,)]
