import hashlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zoo.errors import BadData, ZooError
from zoo.files import locked, new_file, new_folder, sha256, write_bytes, zoo_home


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def disk_full_beyond(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: the system refuses the write as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_zoo_home_is_the_variable_or_the_users_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ZOO_HOME", "/some/where")
    assert zoo_home() == Path("/some/where")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("ZOO_HOME", "~/zoo")
    assert zoo_home() == Path("/home/me/zoo")
    for unset in ("", None):
        monkeypatch.setenv("ZOO_HOME", "") if unset == "" else monkeypatch.delenv("ZOO_HOME")
        assert zoo_home() == Path("/home/me/.cache/contrastive-zoo")


def test_sha256_is_that_of_the_content(tmp_path: Path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"x" * 3_000_000)
    assert sha256(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_write_bytes_makes_folders_and_replaces_the_content(tmp_path: Path):
    path = tmp_path / "a" / "b" / "file.json"
    for content in (b"first, longer", b"second"):
        write_bytes(path, content)
        assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, BadData])
def test_an_exception_inside_new_file_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with new_file(path) as aside:
            aside.write_bytes(b"half")
            assert path.read_bytes() == b"old"
            raise error("x")

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, BadData])
def test_an_exception_inside_new_folder_leaves_the_old_folder_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_bytes(b"old")

    def fill_half() -> None:
        with new_folder(path) as aside:
            (aside / "new").write_bytes(b"half")
            raise error("x")

    with pytest.raises(error):
        fill_half()
    assert [p.name for p in path.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_new_folder_replaces_all_of_the_old_one(tmp_path: Path):
    path = tmp_path / "deep" / "folder"
    for name in ("first", "second"):
        with new_folder(path) as aside:
            (aside / "sub").mkdir()
            (aside / "sub" / name).write_text(name)
        assert [p.name for p in (path / "sub").iterdir()] == [name]
        assert path.stat().st_mode & 0o777 == 0o755
    assert list(path.parent.iterdir()) == [path]


def test_new_folder_replaces_a_link_without_touching_what_it_leads_to(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("x")
    (tmp_path / "folder").symlink_to("elsewhere")
    with new_folder(tmp_path / "folder") as aside:
        (aside / "new").write_text("y")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "folder"]
    assert (tmp_path / "elsewhere" / "precious").read_text() == "x"
    assert (tmp_path / "folder" / "new").read_text() == "y"


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    with disk_full_beyond(65536), pytest.raises(ZooError, match=r"cannot write .*file: File too large.*untouched"):
        write_bytes(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_folder_and_says_so(tmp_path: Path):
    path = tmp_path / "folder"
    with new_folder(path) as aside:
        (aside / "x").write_bytes(b"old")
    with (
        disk_full_beyond(65536),
        pytest.raises(ZooError, match=r"cannot write .*folder: File too large.*untouched"),
        new_folder(path) as aside,
    ):
        (aside / "x").write_bytes(bytes(100_000))
    assert (path / "x").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_a_zoo_error_naming_it(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    inside_a_file = tmp_path / "file" / "below"
    with pytest.raises(ZooError, match=r"cannot write .*below: File exists"):
        write_bytes(inside_a_file, b"x")
    with pytest.raises(ZooError, match=r"cannot write .*below: File exists"), new_folder(inside_a_file):
        pass
    with pytest.raises(ZooError, match=r"cannot write .*below: File exists"), locked(inside_a_file):
        pass
    with pytest.raises(ZooError, match=r"cannot write .*File name too long"):
        write_bytes(tmp_path / ("x" * 300), b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ZooError, match=r"cannot write .*folder: Is a directory"):
        write_bytes(tmp_path / "folder", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_vanishes_while_it_is_filled_gives_the_old_one_back(tmp_path: Path):
    path = tmp_path / "folder"
    with new_folder(path) as aside:
        (aside / "x").write_bytes(b"old")
    with pytest.raises(ZooError, match="untouched"), new_folder(path) as aside:
        os.rename(aside, tmp_path / "taken")  # noqa: PTH104 - somebody else's doing
    assert (path / "x").read_bytes() == b"old"


# --- kills and races --------------------------------------------------------------------------------------------------


def killed_in_the_middle(code: str, path: Path) -> Iterator[None]:
    """Runs `code`, which writes `path` without end, and kills it -9 at ten moments."""
    for moment in range(10):
        process = start(code, path)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        time.sleep(0.003 * moment)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        yield


def test_kill_9_never_leaves_half_a_file(tmp_path: Path):
    code = """
        import sys; from pathlib import Path; from zoo.files import new_file
        print("writing", flush=True)
        for i in range(10**9):
            with new_file(Path(sys.argv[1])) as aside, aside.open("wb") as file:
                for _ in range(64):
                    file.write(bytes([i % 256]) * 16384)
        """
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    for _ in killed_in_the_middle(code, path):
        content = path.read_bytes()
        assert len(content) == 2**20
        assert content == content[:1] * 2**20


def test_kill_9_never_leaves_half_a_folder(tmp_path: Path):
    code = """
        import sys; from pathlib import Path; from zoo.files import new_folder
        print("writing", flush=True)
        for i in range(10**9):
            with new_folder(Path(sys.argv[1])) as aside:
                for name in "abcdef":
                    (aside / name).write_text(str(i) * 1000)
        """
    path, seen = tmp_path / "folder", 0
    for _ in killed_in_the_middle(code, path):
        if path.is_dir():  # absent only if killed between two renames, with the old one beside it
            seen += 1
            assert sorted(p.name for p in path.iterdir()) == list("abcdef")
            assert len({p.read_text() for p in path.iterdir()}) == 1
    assert seen > 0


def test_processes_that_write_the_same_folder_at_once_all_succeed(tmp_path: Path):
    code = """
        import sys; from pathlib import Path; from zoo.files import new_folder
        for i in range(150):
            with new_folder(Path(sys.argv[1])) as aside:
                for name in "abc":
                    (aside / name).write_text(sys.argv[2])
        """
    path = tmp_path / "folder"
    writers = [start(code, path, who) for who in range(4)]
    assert [writer.communicate()[0] or writer.returncode for writer in writers] == [0] * 4
    assert list(tmp_path.iterdir()) == [path]
    assert sorted(p.name for p in path.iterdir()) == ["a", "b", "c"]
    assert len({p.read_text() for p in path.iterdir()}) == 1


def test_processes_that_write_the_same_file_at_once_all_succeed(tmp_path: Path):
    code = """
        import sys; from pathlib import Path; from zoo.files import write_bytes
        for i in range(100):
            write_bytes(Path(sys.argv[1]), sys.argv[2].encode() * 10000)
        """
    path = tmp_path / "file"
    writers = [start(code, path, who) for who in range(3)]
    assert [writer.communicate()[0] or writer.returncode for writer in writers] == [0] * 3
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == path.read_bytes()[:1] * 10000


def test_a_locked_folder_lets_one_thread_in_at_a_time(tmp_path: Path):
    inside, most = [], []

    def work() -> None:
        for _ in range(20):
            with locked(tmp_path / "folder"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1


def test_a_kill_unlocks_the_folder(tmp_path: Path):
    code = """
        import sys, time; from pathlib import Path; from zoo.files import locked
        with locked(Path(sys.argv[1])):
            print("locked", flush=True)
            time.sleep(60)
        """
    process = start(code, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    process.kill()
    process.wait()
    process.stdout.close()
    with locked(tmp_path):
        pass
