"""What a user of each system would write: one task that does nothing but leave its mark, and how it is sent.

Every module has ``send(number)``, which returns when the system has the message as safely as it makes it. It may have
``send_many(numbers)``, one call for all of them, ``prepare()``, run once before anything is sent, and ``close()``; and
where a batch cannot be made of tasks, ``fill(numbers)`` to have them sent all the same, and ``send_apart(numbers)`` to
send as many plain messages in one call.
"""
