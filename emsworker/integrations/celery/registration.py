"""Registers the transport with kombu.

kombu 5.5 to 5.7 looks a transport up in a dictionary, and has entry points for serializers and matchers only. As soon
as it has made that dictionary, ``emsworker_kombu`` imports this module, which imports nothing else for this reason.
Where Python has read no ``.pth`` file (a folder of ``PYTHONPATH``, a zipped application), kombu loads it for a
serializer when it imports ``kombu.serialization``, as queues, producers, consumers and Celery do; there a program
that connects before has to import it.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

SCHEMES = ("ems", "ems+mysql", "ems+mariadb")
TRANSPORT = "emsworker.integrations.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, TRANSPORT))

# The arguments of the serializer: a content type that nothing has, without an encoder and a decoder.
SERIALIZER = (None, None, "application/x-ems-none")
