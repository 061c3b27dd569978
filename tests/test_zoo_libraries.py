"""No process of ours reports usage to anybody, or leaves files in the user's home folder."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from serve_http import free_port, start_server, wait_until_ready
from serve_model import noise

from serve.launch import check_home
from zoo.errors import ZooError
from zoo.libraries import NO_REPORTS

pytest_plugins = ["serve_fixtures"]

ROOT = Path(__file__).parents[1]
CONFIGURED = (
    "serve",
    "eval",
    "train",
    "zoo/release",
    "zoo/cli",
)  # their __init__ runs before any import of their modules
REPORTING = {"onnxruntime", "bentoml", "matplotlib"}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def environment(user: Path, home: Path, **more: str) -> dict[str, str]:
    """Of a user whose home folder is `user` and who has set nothing but ZOO_HOME."""
    kept = {k: v for k, v in os.environ.items() if k not in {*NO_REPORTS, "MPLCONFIGDIR", "BENTOML_HOME"}}
    return kept | {"HOME": str(user), "ZOO_HOME": str(home), "WANDB_MODE": "disabled"} | more


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "user").mkdir()
    return tmp_path / "user"


@pytest.mark.parametrize("package", CONFIGURED)
def test_importing_a_package_switches_the_reports_off_before_anything_else(package: str, user: Path, home: Path):
    program = f"import os, {package.replace('/', '.')}; print(*(os.environ.get(n) for n in {list(NO_REPORTS)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(user, home), cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == list(NO_REPORTS.values())


def test_what_the_user_has_set_stays(user: Path, home: Path):
    program = "import serve, os; print(os.environ['ORT_DISABLE_TELEMETRY'], os.environ['MPLCONFIGDIR'])"
    given = environment(user, home, ORT_DISABLE_TELEMETRY="0", MPLCONFIGDIR="/there")
    done = subprocess.run([sys.executable, "-c", program], env=given, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "/there"]


def test_a_users_own_settings_of_matplotlib_are_used(user: Path, home: Path):
    (user / ".config/matplotlib").mkdir(parents=True)
    program = "import eval, os; print(os.environ.get('MPLCONFIGDIR'))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(user, home), cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "None"


def test_no_other_module_imports_what_reports_usage():
    for path in [*(ROOT / "zoo").rglob("*.py"), *(ROOT / "serve").rglob("*.py")]:
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).split(".")[0])
        if found & REPORTING:
            assert str(path.relative_to(ROOT)).startswith(CONFIGURED), path


@pytest.mark.parametrize("file", ["Dockerfile", "bentofile.yaml"])
def test_the_containers_switch_the_reports_off_too(file: str):
    text = (ROOT / file).read_text()
    assert all(variable in text for variable in NO_REPORTS)


OPEN = """
import sys
import numpy as np
from serve.session import open_model
session = open_model(sys.argv[1])
print(session.embed_pixels(np.zeros((1, 8, 8, 3), np.uint8)).shape)
"""
VERIFY = "import sys; from zoo.release.verify import _by_onnx; import numpy as np; from pathlib import Path\n"
VERIFY += "print(_by_onnx(Path(sys.argv[1], 'model.onnx'), np.zeros((1, 8, 8, 3), np.uint8)).shape)"


@pytest.mark.parametrize("program", [OPEN, VERIFY], ids=["serving", "verifying"])
def test_running_an_onnx_file_leaves_a_fresh_home_empty(program: str, exported: Path, user: Path, home: Path):
    done = subprocess.run(
        [sys.executable, "-c", program, str(exported)],
        env=environment(user, home),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "(1, 64)\n", done.stderr
    assert files(user) == []


COMMANDS = {
    "export": "-m serve.export {run} --quantize --force",
    "embed": "-m zoo.cli embed {run} {pictures} -o {out}/embeddings.parquet",
    "train": "train/pretrain.py simco-r20-digits --epochs 1 --limit 64 --batch-size 32 --out {out}/run",
    "score": "-m eval.score {run} --max-train 100 --max-test 50 --out {out}/eval",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_leave_a_fresh_home_empty(command: str, tiny_run: Path, user: Path, home: Path, tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    Image.fromarray(noise(9, 9, 3)).save(tmp_path / "pictures" / "a.png")
    words = command.format(run=tiny_run, pictures=tmp_path / "pictures", out=tmp_path).split()
    done = subprocess.run(
        [sys.executable, *words], env=environment(user, home), cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert files(user) == []


@pytest.mark.slow
def test_serving_leaves_a_fresh_home_empty(exported: Path, user: Path, home: Path, tmp_path: Path):
    given = environment(user, home)
    removed = dict.fromkeys(set(os.environ) - set(given), "")
    port = free_port()
    server = start_server(["zoo.cli", "serve", str(exported), "--port", str(port)], tmp_path / "log", **given | removed)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    assert files(user) == []
    assert list(home.glob("bentoml/*"))


def test_a_home_that_cannot_be_made_is_told_before_the_server_starts(exported: Path, user: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    given = environment(user, tmp_path / "file" / "zoo")
    done = subprocess.run(
        [sys.executable, "-m", "zoo.cli", "serve", str(exported), "--port", str(free_port())],
        env=given, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Set ZOO_HOME, or BENTOML_HOME, to such a folder" in done.stderr
    with pytest.raises(ZooError, match="Set ZOO_HOME"):
        check_home(Path("/dev/null/bentoml"))
