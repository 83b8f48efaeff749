"""Makes kombu find the transport of EMS by its URL alone; a ``.pth`` file imports this module when Python starts.

kombu looks a transport up in a dictionary, and has no entry point for those of others: the dictionary is filled as soon
as kombu has made it. Every program of the environment pays for this, most of them without kombu. So nothing is imported
before, and the finder removes itself afterwards.

PYTEST_DONT_REWRITE: pytest would warn that it has been imported before it could rewrite what it asserts.
"""

import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_MODULE = "kombu.transport"


class _Finder:
    """Finds ``kombu.transport`` by the other finders, and registers the transport once that module has run."""

    @classmethod
    def find_spec(
        cls, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of that module; ``None`` for every other one."""
        if name != _MODULE:
            return None
        others = [finder for finder in sys.meta_path if finder is not cls and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            cls._follow(spec.loader)
        return spec

    @classmethod
    def _follow(cls, loader: "Loader") -> None:
        run = loader.exec_module

        def run_and_register(module: "ModuleType") -> None:
            run(module)
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
            _register()

        loader.exec_module = run_and_register  # type: ignore[method-assign]


def _register() -> None:
    try:
        import emsworker.integrations.celery.registration  # noqa: F401
    except ImportError:  # EMS was uninstalled in part, and others use kombu
        return


if _MODULE in sys.modules:  # the .pth file was read late, by site.addsitedir()
    _register()
else:
    sys.meta_path.insert(0, _Finder)
