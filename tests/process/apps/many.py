"""An app with a thousand subscriptions, each to a topic of its own."""

from emsworker import Ems, Message
from tests.process.record import note

COUNT = 1000

app = Ems("many", jitter=0.0)


def _handle(message: Message) -> None:
    note("end", n=message.body["n"])


for _number in range(COUNT):
    app.subscribe(f"many.{_number}", "many")(_handle)
