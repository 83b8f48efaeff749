"""The role of this process, for hints: whoever is refused a privilege is told what to check."""

from __future__ import annotations

_roles: list[str] = []


def claim_role(role: str) -> None:
    """Say what this process is; the first to say so is right: a worker sends, too, and stays a worker."""
    if not _roles:
        _roles.append(role)


def check_command() -> str:
    """The command that tells which privileges are missing."""
    return f"ems check --role {_roles[0]}" if _roles else "ems check"
