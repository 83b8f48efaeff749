"""What the documentation gives people to run elsewhere: image, services and manifests are valid, and their commands exist."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

from emsworker.core.config import Settings
from emsworker.core.options import options_of
from tests.docs.snippets import ROOT, blocks
from tests.docs.test_snippets import understand

_FOLDER = ROOT / "docs" / "docker"
_HOW_TO = ROOT / "docs" / "how-to"
_KUBERNETES = ("1.29", kubernetes_validate.latest_version())


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((_FOLDER / "compose.yaml").read_text())["services"]
    return services


def test_the_page_shows_the_files() -> None:
    shown = {block.title: block.text for block in blocks(_HOW_TO / "docker.md") if block.title}
    assert shown == {path.name: path.read_text() for path in _FOLDER.iterdir()}


def _run(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).parent / name
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_recipe_of_the_image_is_clean(tmp_path: Path) -> None:
    done = _run("hadolint", str(_FOLDER / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "Dockerfile").write_text((_FOLDER / "Dockerfile").read_text() + "CMD ems worker\n")
    assert "DL4003" in _run("hadolint", "--no-color", str(tmp_path / "Dockerfile")).stdout  # a second CMD


def test_the_services_keep_to_the_schema_of_compose() -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    check = validator_for(schema)(schema)
    services = yaml.safe_load((_FOLDER / "compose.yaml").read_text())
    assert [error.message for error in check.iter_errors(services)] == []
    services["services"]["db"]["healtcheck"] = services["services"]["db"].pop("healthcheck")
    (error,) = check.iter_errors(services)
    assert "healtcheck" in str(error)


def test_the_services_run_commands_with_known_settings_as_an_unprivileged_user() -> None:
    services = _services()
    assert services.keys() == {"db", "migrate", "worker", "beat", "web"}
    variables = {f"EMS_{name.upper()}" for name in options_of(Settings)} | {"EMS_HTTP"}
    for name, service in services.items():
        if name != "db":
            assert service["command"][0] == "ems"
            understand(service["command"][1:])
            assert service["environment"].keys() <= variables
            assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert "--no-beat" in services["worker"]["command"] and services["beat"]["command"] == ["ems", "beat"]


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for block in blocks(_HOW_TO / "kubernetes.md"):
        if block.language == "yaml":
            for manifest in yaml.safe_load_all(block.text):
                yield block.title, manifest


_OF_KUBERNETES = [found for found in _manifests() if "keda" not in found[1]["apiVersion"]]


@pytest.mark.parametrize("version", _KUBERNETES)
@pytest.mark.parametrize(("title", "manifest"), _OF_KUBERNETES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_manifest_keeps_to_the_schema_of_kubernetes(title: str, manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)
    wrong = json.loads(json.dumps(manifest))
    wrong["spec"]["selectors"] = wrong["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_commands_and_variables_of_the_manifests_exist() -> None:
    commands = 0
    variables = {f"EMS_{name.upper()}" for name in options_of(Settings)} | {"EMS_HTTP"}
    for _, manifest in _OF_KUBERNETES:
        for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", []):
            assert container["args"][0] == "ems"
            understand(container["args"][1:])
            assert {one["name"] for one in container.get("env", [])} <= variables
            commands += 1
    assert commands == 3
