"""The way of an app's messages to its broker: through its middleware, encoded, and from coroutines by threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

from emsworker.broker.port import Broker
from emsworker.core.config import Settings
from emsworker.core.errors import TopicRuleError
from emsworker.core.model import NewMessage, Receipt
from emsworker.core.process.threads import ThreadPool
from emsworker.publish.gathered import GatheredSends
from emsworker.publish.outgoing import Outgoing, SendOptions
from emsworker.publish.transaction import OutboxTransaction
from emsworker.tasks.middleware import Middleware, OpenBrackets, PublishBracket, hooks

Sent = TypeVar("Sent")

log = logging.getLogger(__name__)


class Publisher:
    """Publishes the messages of an app, whose headers may be reserved.

    Args:
        settings: how messages are encoded, and if any may be sent.
        broker: returns the broker that the app has now.
    """

    def __init__(self, settings: Settings, broker: Callable[[], Broker]) -> None:
        self.settings = settings
        self._broker = broker
        self._gathered = GatheredSends(self._encode_one, lambda topic, messages: broker().send(topic, messages))
        self.use(())

    def use(self, middleware: Sequence[Middleware]) -> None:
        """Publish through this middleware from now on."""
        self._around_publish = hooks(middleware, "around_publish")
        self._before_publish = hooks(middleware, "before_publish")
        self._after_publish = hooks(middleware, "after_publish")

    def publish(
        self, topic: str, outgoing: list[Outgoing], transaction: Any = None, *, many: bool = False
    ) -> list[Receipt]:
        """Publish messages to a topic, within the brackets of the middleware, and return after their commit.

        Args:
            transaction: publish with its commit instead.
            many: for the brackets: the caller has a list of messages.
        """
        if not self._around_publish:
            return self._publish_within(topic, outgoing, transaction)
        publish = PublishBracket(topic, outgoing, many, transaction is not None)
        with OpenBrackets(self._around_publish, publish) as brackets:
            brackets.open()
            publish.receipts = receipts = self._publish_within(topic, outgoing, transaction)
        return receipts

    def send(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Publish one message; the arguments and errors are those of :meth:`Ems.send`."""
        return self.publish(topic, [Outgoing(topic, body, **options)], transaction)[0]

    def _publish_within(self, topic: str, outgoing: list[Outgoing], transaction: Any) -> list[Receipt]:
        """Publish inside the brackets, with the hooks."""
        receipts = self._broker().send(topic, self._encode(outgoing), transaction)
        if self._after_publish:
            self._note_sent(zip(outgoing, receipts, strict=True), transaction)
        return receipts

    def _encode(self, outgoing: list[Outgoing]) -> list[NewMessage]:
        """Return messages as they are stored; mistakes are refused before the broker may create a topic."""
        for hook in self._before_publish:
            for item in outgoing:
                hook(item)
        if not self.settings.publishing:
            raise TopicRuleError("publishing is switched off here (setting 'publishing'); nothing was sent")
        return [item.encode(self.settings) for item in outgoing]

    def _encode_one(self, outgoing: Outgoing) -> NewMessage:
        return self._encode([outgoing])[0]

    def _note_sent(self, sent: Iterable[tuple[Outgoing, Receipt]], transaction: Any) -> None:
        """Call the hooks for what was sent, or keep it until its transaction is committed, if that is one of ours."""
        if transaction is None:
            self.after_commit(sent)
        elif isinstance(transaction, OutboxTransaction):
            transaction.sent += sent

    def after_commit(self, sent: Iterable[tuple[Outgoing, Receipt]]) -> None:
        """Call the ``after_publish`` hooks for committed messages; an error of theirs is logged: the send is done."""
        for item, receipt in sent:
            for hook in self._after_publish:
                try:
                    hook(item, receipt)
                except Exception:
                    log.exception("a hook failed after a message was sent to %s", item.topic)

    # -- from coroutines -----------------------------------------------------------------------------------------------

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines send."""
        return self._broker().pool

    def gathers(self, transaction: Any) -> bool:
        """Return whether a send of a coroutine may share a commit with others: no transaction or middleware has it."""
        hooks = self._around_publish or self._before_publish or self._after_publish
        return transaction is None and not hooks and not self.pool.is_empty

    async def send_gathered(self, name: str, prepare: Callable[[], Outgoing]) -> Receipt:
        """Send what ``prepare`` returns, together with what other coroutines send; see :meth:`gathers`.

        Args:
            name: of the send, for a warning.
        """
        return await self._gathered.send(self.pool, prepare, name)

    async def in_pool(self, name: str, topic: str, send: Callable[[Any], Sent], transaction: Any) -> Sent:
        """Run a send, which gets the transaction, by a thread of the pool.

        With an asynchronous connection of SQLAlchemy it runs in the coroutine itself, whose driver awaits.

        Args:
            name: of the send, for a warning.
            topic: that it sends to.
        """
        if not hasattr(transaction, "run_sync"):
            return await self.pool.run(partial(send, transaction), name)
        await self.pool.run(partial(self._broker().prepare, topic))
        sent: Sent = await transaction.run_sync(send)
        return sent

    def cancel_waiting(self) -> None:
        """Cancel the sends of coroutines that no thread has begun."""
        self._gathered.close()
