"""The broker: the port between what runs tasks and what keeps messages, with two implementations.

:mod:`emsworker.broker.mysql` keeps them in MySQL, :mod:`emsworker.broker.memory` in this process, for tests. The second
is the specification of both.
"""
