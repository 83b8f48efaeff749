"""The app: where the stream is comes from ``EMS_URL``, or else from the local stream."""

from __future__ import annotations

from emsworker import Ems

app = Ems("sample")
