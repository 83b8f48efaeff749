"""Makes kombu find the transport by the URL alone.

kombu 5.5 to 5.7 has entry points for serializers and matchers only. It loads this module for one when it imports
``kombu.serialization``, as queues, producers, consumers and Celery do; it does so in the middle of its own imports, so
nothing but the table of transports is imported here. A program that imports ``Connection`` alone and connects at once
has to import this module: kombu looks the transport up in a dictionary that nothing else can fill before. A ``.pth``
file could, at the start of every Python program of the environment, with kombu or without.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

SCHEMES = ("ems", "ems+mysql", "ems+mariadb")
TRANSPORT = "emsworker.integrations.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, TRANSPORT))

# The arguments of the serializer: a content type that nothing has, without an encoder and a decoder.
SERIALIZER = (None, None, "application/x-ems-none")
