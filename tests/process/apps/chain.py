"""An app whose handler sends the next message itself."""

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("chain")


@app.subscribe("chain", "chain")
def link(message: Message) -> None:
    n = message.body["n"]
    if n < message.body["until"]:
        app.send("chain", {**message.body, "n": n + 1})
    note("end", n=n)
