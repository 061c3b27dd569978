"""What is shipped: extras and images without torch, a user without rights, YAML that parses."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BENTO: dict[str, Any] = yaml.safe_load((ROOT / "bentofile.yaml").read_text())
DOCKER = (ROOT / "Dockerfile").read_text()


def requirements(extra: str) -> set[str]:
    """What an extra installs, with the extras that it names."""
    found = set()
    for requirement in EXTRAS[extra]:
        inner = re.fullmatch(r"contrastive-zoo\[(.*)\]", requirement)
        found |= set().union(*map(requirements, inner[1].split(","))) if inner else {requirement}
    return found


def test_the_server_its_bento_and_its_image_install_no_torch() -> None:
    for extra in ("serve", "index", "client", "bulk"):
        names = {re.split(r"[^\w-]", requirement)[0] for requirement in requirements(extra)}
        assert not names & {"torch", "torchvision", "timm", "accelerate", "onnxscript"}
    assert 'pip install --no-cache-dir ".[index]"' in DOCKER


def test_the_bento_holds_what_the_server_needs_and_nothing_else() -> None:
    floor = {"numpy>=2.0", "pillow>=11.0", "tyro>=1.0,<2"}
    assert set(BENTO["python"]["packages"]) == requirements("index") | floor
    shipped = {path.relative_to(ROOT).as_posix() for pattern in BENTO["include"] for path in ROOT.glob(pattern)}
    for needed in (
        "serve/service.py",
        "serve/page/page.html",
        "zoo/images/pixels.py",
        "zoo/catalog.jsonl",
        "zoo/weights/simco-r18-cifar100-cpu/model.safetensors",
    ):
        assert needed in shipped
    assert not any(path.startswith(("train/", "eval/", "tests/", "runs/", ".")) for path in shipped)


def test_the_container_runs_without_rights_on_a_read_only_disk() -> None:
    lines = DOCKER.splitlines()
    user = lines.index("USER 10001")
    assert lines.index('ENTRYPOINT ["zoo", "serve", "--host", "0.0.0.0"]') > user
    assert not any(line.startswith("USER") for line in lines[user + 1 :])


def test_the_yaml_of_the_readme_names_real_paths_and_ports() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    compose, probes = (yaml.safe_load(block) for block in blocks if "distributed_type" not in block)
    assert compose["services"]["zoo"]["ports"] == ["127.0.0.1:3000:3000"]
    (container,) = probes["containers"]
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe")} == {"/readyz"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
