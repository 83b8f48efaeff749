"""An app whose only group writes one row for each message, in the message's own transaction."""

from emsworker import Ems, Message
from emsworker.publish.transaction import Transaction

app = Ems("effects")


@app.subscribe("t", "effects", transactional=True)
def effect(transaction: Transaction, message: Message) -> None:
    transaction.execute("INSERT INTO effect (uid) VALUES (%s)", (message.id,))
