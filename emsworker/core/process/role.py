"""Role of this process, for the hint in errors about a refused privilege."""

from __future__ import annotations

_roles: list[str] = []


def claim_role(role: str) -> None:
    """Set the role of this process. The first call wins: a worker that also sends stays a worker."""
    if not _roles:
        _roles.append(role)


def check_command() -> str:
    """Return the command that reports missing privileges."""
    return f"ems check --role {_roles[0]}" if _roles else "ems check"


def grants_command() -> str:
    """Return the command that prints the privileges of this process's role."""
    return f"ems grants {_roles[0]}" if _roles else "ems grants"
