"""The house rules: layers, module names, one place for normalisation, a catalogue that follows the recipes."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import repository_files
from house_report import cycles, import_graph

import zoo
from train.recipe import recipes
from zoo.hub.catalog import catalog

ROOT = Path(__file__).parents[1]
LAYERS = {
    "zoo": {"zoo"},
    "zoo/release": {"zoo", "eval", "train", "serve"},  # these two join the others, which import neither
    "zoo/cli": {"zoo", "eval", "train", "serve"},
    "eval": {"zoo", "eval"},
    "train": {"zoo", "eval", "train"},
    "serve": {"zoo", "serve"},
}
FLOOR_0 = (
    "errors",
    "names",
    "files",
    "provenance",
    "energy",
    "command_line",
    "images.dataset",
    "images.pixels",
    "images.opening",
    "images.image_set",
    "images.voc",
    "model.backbone",
    "model.card",
    "model.embedding",
    "hub.store",
    "hub.resolve",
    "hub.catalog",
    "hub.author_files",
    "hub.licences",
    "hub.spelling",
    "hub.versions",
    "hub.layouts",
    "cli.listing",
)
MODULES = [path for folder in ("zoo", "eval", "train", "serve") for path in sorted((ROOT / folder).rglob("*.py"))]


def modules_imported(path: Path) -> set[str]:
    """Full names of all modules imported anywhere in a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: absolute imports only"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports(path: Path) -> set[str]:
    """Top-level names of all modules imported anywhere in a file."""
    return {name.split(".")[0] for name in modules_imported(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_layer_imports_only_the_layers_below_it(path):
    relative = str(path.relative_to(ROOT))
    layer = max((layer for layer in LAYERS if relative.startswith(f"{layer}/")), key=len)
    assert imports(path) & set(LAYERS) <= LAYERS[layer]
    if layer not in ("zoo/cli", "zoo/release"):
        above = {name for name in modules_imported(path) if name.startswith(("zoo.cli", "zoo.release"))}
        assert not above, f"{relative} imports {above}"
    if layer == "zoo/release":
        assert not any(name.startswith("zoo.cli") for name in modules_imported(path))


def test_no_module_imports_itself_by_way_of_others():
    assert cycles(import_graph(ROOT)) == []


def test_not_even_late_imports_make_a_cycle_of_the_model_the_hub_the_release_or_the_commands():
    rooms = ("zoo.model", "zoo.hub", "zoo.release", "zoo.cli")
    late = cycles(import_graph(ROOT, late=True))
    assert [group for group in late if any(name.startswith(rooms) for name in group)] == []


def test_a_cycle_would_be_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(graph) == [["a", "b", "c"]]


def test_floor_0_and_the_server_import_no_torch():
    modules = [f"zoo.{name}" for name in FLOOR_0] + ["serve.session", "serve.service", "zoo"]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("path", sorted((ROOT / "train").glob("*.py")), ids=lambda path: path.name)
def test_no_module_of_train_hides_another_when_its_folder_is_first_on_the_path(path):
    """`accelerate launch train/pretrain.py` puts train/ first on sys.path."""
    name = path.stem
    if name == "__init__":
        return
    assert name not in sys.stdlib_module_names
    spec = importlib.util.find_spec(name)
    assert spec is None, f"{name} is also {spec.origin}"


def test_the_loop_defines_no_class():
    tree = ast.parse((ROOT / "train/pretrain.py").read_text())
    assert not [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_nothing_is_unpickled():
    for path in MODULES:
        source = path.read_text()
        verbs = set(re.findall(r"pickle\.(\w+)", source)) if path.name == "key_formats.py" else set()
        assert "pickle" not in imports(path) or verbs == {"dumps"}, path  # written for Detectron2, never read
        loads = re.findall(r"torch\.load\(.*", source)
        assert not loads or path.name == "checkpoint.py", path  # official checkpoints: tensors alone
        assert all("weights_only=True)" in load for load in loads), path
        assert "allow_pickle=True" not in source, path


def test_only_the_modules_that_fetch_or_upload_know_the_hubs_client():
    assert {path.name for path in MODULES if "huggingface_hub" in imports(path)} <= {
        "client.py",
        "download.py",
        "hub_api.py",
        "upload.py",
    }


def test_no_file_names_a_folder_of_somebodys_machine():
    home = re.compile(r"""(?<=["' =])/(root|work)/""")
    for name in repository_files():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".json"} or path.name == "Makefile":
            assert not home.search(path.read_text()), name


def test_every_recipe_is_in_the_catalogue_with_its_own_numbers():
    cards = catalog()
    for name, recipe in recipes().items():
        if cards[name].weights is None:
            assert cards[name] == recipe.card(), f"{name}: run python -m train.catalog"


def test_every_unpublished_name_of_the_catalogue_has_a_recipe():
    assert {name for name, card in catalog().items() if card.weights is None} <= set(recipes())


def test_a_method_is_one_file(tmp_path, monkeypatch):
    """A toy paper, dropped as one file into train/methods, is found, trained and loaded."""
    import train.methods
    from train.pretrain import pretrain

    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(train.methods, "__path__", [*train.methods.__path__, str(tmp_path)])
    recipe = recipes()["toy-r20-digits"]
    folder = pretrain(recipe, out=tmp_path / "run", limit=64, knn_every=0)
    assert zoo.load(folder).card.paper == "Nobody. A toy. 2026"


TOY = '''
"""A toy: pull two views together and rely on luck."""

from dataclasses import dataclass

from train.method import LossRange, Method, Step
from train.recipe import Recipe


class Toy(Method):
    def project(self, views):
        return tuple(map(self.encoder, views))

    def loss(self, projections, batch):
        z1, z2 = projections
        return Step((z1 - z2).square().mean())

    def loss_range(self, batch_size):
        return LossRange(1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class ToyRecipe(Recipe):
    def method(self, encoder):
        return Toy(encoder)


RECIPES = [
    ToyRecipe(
        name="toy-r20-digits", paper="Nobody. A toy. 2026", source="this test", expects="none published", epochs=1,
        batch_size=32, optimizer="sgd", learning_rate=0.01, weight_decay=0.0, warmup_epochs=0,
    )
]
'''
