"""A stream in memory: the specification of the stream, in so much Python as a reader takes in at once.

It keeps the contract of :mod:`emsworker.broker.port` without a server, without threads and with a clock that can be
moved, so each module states one rule of the stream where :mod:`emsworker.store` has to state how it holds on a server:

- ``log``: a message has one place, is stored once, and is in the log when it is due;
- ``dedup``: a key is taken while its message is unfinished or its window lasts;
- ``group``: where every offset of a partition is for a group: ahead, claimed, waiting for a retry, or done;
- ``lanes``: the virtual time by which the keys of a fair group share it;
- ``taking``: what a claim takes, for each order;
- ``ending``: what its owner may end, and where each message goes then;
- ``transactions``: what is sent in a transaction is sent at its commit, or never;
- ``schedules``: what is due by the clock of a test;
- ``results`` and ``once``: what a task returned, and which effects were done;
- ``channel`` and ``broker``: the two ports over all of this.

``tests/store/test_brokers.py`` asks the same of it and of MySQL, and ``tests/store/test_histories.py`` plays random
histories on both. Its limits: one partition in each priority level, and nobody dies, so there are no leases and no
recovery. One thread at a time uses it.
"""

from emsworker.broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
