"""Finds the app that ``-A`` names."""

from __future__ import annotations

import importlib
import traceback
from types import ModuleType

from emsworker.app import Ems
from emsworker.core.errors import AppNotFound, EmsError, text_of


def load_app(path: str) -> Ems:
    """Import ``module`` or ``module:name`` and return its app.

    Without a name the module's only :class:`Ems` is taken; ``app`` if there are several.

    Raises:
        AppNotFound: naming the module or object and the fix.
    """
    module_name, colon, name = path.partition(":")
    if module_name.endswith(".py"):
        named = f"{module_name.removesuffix('.py').replace('/', '.').strip('.')}{colon}{name}"
        raise AppNotFound(f"-A {path}: names a file; write -A {named}, the module as Python imports it")
    if not all(module_name.split(".")):
        raise AppNotFound(f"-A {path!r}: names no module; write -A module, or -A module:app")
    module = _import(module_name, path)
    if name:
        found = getattr(module, name, None)
        if isinstance(found, Ems):
            return found
        raise AppNotFound(
            f"-A {path}: {module_name} has no Ems named {name!r}; it has: {', '.join(_apps(module)) or 'none'}"
        )
    apps = _apps(module)
    if not apps:
        raise AppNotFound(f"-A {path}: {module_name} has no Ems; write `app = Ems(...)` there, or name another module")
    if len(set(map(id, apps.values()))) > 1 and "app" not in apps:
        raise AppNotFound(
            f"-A {path}: {module_name} has several apps ({', '.join(apps)}); choose one "
            f"with -A {module_name}:{next(iter(apps))}"
        )
    return apps.get("app", next(iter(apps.values())))


def _apps(module: ModuleType) -> dict[str, Ems]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Ems)}


def _import(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(
                f"-A {path}: there is no module {error.name!r} here; run the command where it can be imported"
            ) from None
        raise AppNotFound(f"-A {path}: importing {name} failed: {text_of(error)} ({_place(error)})") from error
    except EmsError:
        raise
    except Exception as error:  # whatever a user's module raises
        raise AppNotFound(
            f"-A {path}: importing {name} failed: {type(error).__name__}: {_text(error)} ({_place(error)})"
        ) from error


def _text(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else text_of(error)  # its place follows


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:  # no frame is of the file that could not be compiled
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no place"
