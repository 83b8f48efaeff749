"""A task that does nothing, quickly."""

from emsworker import Ems, Message

app = Ems("quick")


@app.subscribe("quick", "g")
def pass_over(message: Message) -> None:
    """Nothing."""
