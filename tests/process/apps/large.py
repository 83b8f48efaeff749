"""Handlers of large bodies: what they got, and in which kind of thread."""

import hashlib

from emsworker import Ems, Message

app = Ems("large", result_ttl_s=600, max_decoded_bytes=1 << 28)


@app.subscribe("blobs", "threads", result=True)
def digest(message: Message) -> str:
    return hashlib.sha256(message.body).hexdigest()


@app.subscribe("blobs", "coroutines", result=True)
async def digest_async(message: Message) -> str:
    assert isinstance(message.body, bytes)
    return hashlib.sha256(message.body).hexdigest()


@app.task(name="count", topic="calls", result=True)
def count(text: str) -> int:
    return len(text)


@app.task(name="fill", topic="calls", result=True)
def fill(size: int) -> str:
    return "x" * size
