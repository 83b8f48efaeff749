"""Configuration that Django reads for ``"emsworker.django"`` in ``INSTALLED_APPS``."""

from __future__ import annotations

from emsworker.integrations.django.apps import EmsConfig

__all__ = ["EmsConfig"]
