"""Makes kombu find the transport by the URL alone.

kombu has entry points for serializers only. It loads this module for one, and so before it looks up any transport; it
does so in the middle of its own imports, so nothing but the table of transports is imported here.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

SCHEMES = ("ems", "ems+mysql", "ems+mariadb")
TRANSPORT = "emsworker.integrations.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, TRANSPORT))

# The arguments of the serializer: a content type that nothing has, without an encoder and a decoder.
SERIALIZER = (None, None, "application/x-ems-none")
