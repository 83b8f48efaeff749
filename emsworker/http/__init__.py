"""HTTP interface for programs in other languages: an ASGI application of Starlette, behind ``ems http``."""
