"""A Hugging Face Hub on this machine: real HTTP, one thread a request, everything in memory, faults on demand.

It speaks what huggingface_hub 2.4 asks of it (LFS uploads; Xet off): create, preupload, LFS batch, commit, info, tree,
refs, tags, resolve with Range. Large files come from another origin (localhost instead of 127.0.0.1), as from a CDN.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LFS = re.compile(r"\.(safetensors|onnx|bin)$")
REPO = "tester/simco-r20-digits"
TOKEN = "hf_loopback"  # the one token that works


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    """Commits are {file: content}; refs point to them."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[sha] = files
        self.branches["main"] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        return sha if sha in self.commits else None


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose method and path fit; `status`, or a damaged `payload`."""

    method: str
    path: str  # regular expression, searched
    times: int
    status: int = 200
    payload: str = ""  # "truncate", "corrupt", or "slow": whole, with pauses of `wait`
    wait: float = 0.0  # seconds between two pieces of the payload


class LoopbackHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[str] = []  # "GET /path"
        self.tokens = {TOKEN}
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def requests(self, pattern: str = "") -> list[str]:
        return [line for line in self.log if re.search(pattern, line)]

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request, client_address) -> None:
        """A client that went away (killed, or content with the header) is no error of the server."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LoopbackHub

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.read_body()
        self.server.log.append(f"{self.command} {path}")
        self.fault = self.server.fault_of(self.command, path)
        if self.fault and self.fault.status != 200:
            return self.json({"error": "made to fail"}, self.fault.status)
        for method, pattern, action in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method:
                with self.server.lock:
                    reply = action(self, *found.groups())
                return reply() if callable(reply) else reply
        return self.json({"error": f"no route {self.command} {path}"}, 404)

    def read_body(self) -> bytes:
        """What the client sent, by length or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def json(self, value: object, status: int = 200, **headers: str) -> None:
        self.raw(json.dumps(value).encode(), status, {"Content-Type": "application/json"} | headers)

    def refuse(self, code: str, status: int = 404, **headers: str) -> None:
        self.raw(b"{}", status, {"X-Error-Code": code, "X-Error-Message": code} | headers)

    def raw(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def signed_in(self) -> bool:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") in self.server.tokens

    def repo(self, name: str) -> Repo | None:
        """The repository, if there is one that this client may see; else the refusal has been sent."""
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self.signed_in()):
            self.refuse("RepoNotFound", 404 if self.signed_in() else 401)
            return None
        return repo

    # --- the routes ---------------------------------------------------------------------------------------------------

    def whoami(self) -> None:
        if not self.signed_in():
            return self.json({"error": "Invalid username or password."}, 401)
        return self.json({"type": "user", "name": "tester", "orgs": [], "auth": {"type": "access_token"}})

    def create(self) -> None:
        if not self.signed_in():
            return self.json({"error": "Invalid username or password."}, 401)
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        known = name in self.server.repos
        if not known:
            repo = self.server.repos[name] = Repo(private=asked.get("visibility") == "private" or asked.get("private"))
            repo.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.json({"url": f"{self.server.url}/{name}", "name": name}, 409 if known else 200)

    def validate(self) -> None:
        self.json({"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        if not self.signed_in():
            return self.json({"error": "Invalid username or password."}, 401)
        repo = self.server.repos[name]
        now = repo.commits[repo.resolve(revision)]
        files = []
        for file in json.loads(self.body)["files"]:
            large = bool(LFS.search(file["path"]))
            row = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if file["path"] in now:
                content = now[file["path"]]
                row["oid"] = hashlib.sha256(content).hexdigest() if large else git_blob(content)
            files.append(row)
        return self.json({"files": files})

    def batch(self, name: str) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            there = wanted["oid"] in self.server.blobs
            actions = {} if there else {"actions": {"upload": {"href": f"{self.server.url}/lfs/{wanted['oid']}"}}}
            objects.append(wanted | actions)
        self.json({"objects": objects})

    def put_blob(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.json({"error": "sha256 differs"}, 422)
        self.server.blobs[oid] = self.body
        return self.json({})

    def commit(self, name: str, revision: str) -> None:
        if not self.signed_in():
            return self.json({"error": "Invalid username or password."}, 401)
        repo = self.server.repos[name]
        parent = repo.resolve(revision)
        files = dict(repo.commits[parent])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header" if value.get("parentCommit", parent) != parent:
                    return self.json({"error": "A commit has happened since."}, 412)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.blobs[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = repo.commit(files)
        return self.json({"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha, "success": True})

    def info(self, name: str, revision: str | None) -> None:
        repo = self.repo(name)
        if repo is None:
            return None
        sha = repo.resolve(revision or "main")
        if sha is None:
            return self.refuse("RevisionNotFound")
        siblings = [
            {"rfilename": row["path"], "size": row["size"], "blobId": row["oid"]}
            | ({"lfs": {"sha256": row["lfs"]["oid"], **row["lfs"]}} if "lfs" in row else {})
            for row in rows(repo.commits[sha])
        ]
        return self.json({"id": name, "sha": sha, "private": repo.private, "tags": [], "siblings": siblings})

    def tree(self, name: str, revision: str) -> None:
        repo = self.repo(name)
        if repo is not None:
            sha = repo.resolve(revision)
            self.json(rows(repo.commits[sha])) if sha else self.refuse("RevisionNotFound")

    def refs(self, name: str) -> None:
        repo = self.repo(name)
        if repo is not None:
            refs = {kind: getattr(repo, kind) for kind in ("branches", "tags")}
            places = {"branches": "heads", "tags": "tags"}
            self.json(
                {
                    kind: [{"name": k, "ref": f"refs/{places[kind]}/{k}", "targetCommit": v} for k, v in some.items()]
                    for kind, some in refs.items()
                }
                | {"converts": []}
            )

    def tag(self, name: str, revision: str) -> None:
        repo, tag = self.server.repos[name], json.loads(self.body)["tag"]
        if tag in repo.tags:
            return self.json({"error": "Reference already exists"}, 409)
        repo.tags[tag] = repo.resolve(revision) or ""
        return self.json({})

    def file(self, name: str, revision: str, path: str) -> object:
        repo = self.repo(name)
        if repo is None:
            return None
        sha = repo.resolve(revision)
        if sha is None:
            return self.refuse("RevisionNotFound")
        content = repo.commits[sha].get(path)
        if content is None:
            return self.refuse("EntryNotFound", **{"X-Repo-Commit": sha})
        headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if not LFS.search(path):
            return lambda: self.content(content, headers | {"ETag": f'"{git_blob(content)}"'})
        oid = hashlib.sha256(content).hexdigest()
        self.server.blobs[oid] = content
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content)), "ETag": f'"{oid}"'}
        where = f"http://localhost:{self.server.server_port}/cdn/{oid}"
        return self.raw(b"", 302, headers | linked | {"Location": where})

    def blob(self, oid: str) -> object:
        content = self.server.blobs[oid]
        return lambda: self.content(content, {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def content(self, content: bytes, headers: dict[str, str]) -> None:
        """A file, or the rest of it from the start of `Range`, damaged if a fault says so."""
        first = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(first[1]) if first else 0
        stop = int(first[2]) + 1 if first and first[2] else len(content)
        part = content[start:stop]
        if first:
            headers = headers | {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"}
        fault = self.fault
        if fault is None or self.command == "HEAD":
            return self.raw(part, 206 if first else 200, headers)
        if fault.payload == "corrupt":
            middle = len(part) // 2
            return self.raw(
                part[:middle] + bytes([part[middle] ^ 1]) + part[middle + 1 :], 206 if first else 200, headers
            )
        self.send_response(206 if first else 200)
        for key, value in (headers | {"Content-Length": str(len(part))}).items():
            self.send_header(key, value)
        self.end_headers()
        sent = part if fault.wait else part[: len(part) // 2]
        for at in range(0, len(sent), 65536):
            self.wfile.write(sent[at : at + 65536])
            self.wfile.flush()
            threading.Event().wait(fault.wait)
        self.close_connection = True
        return None


def rows(files: dict[str, bytes]) -> list[dict]:
    """The tree of a commit, as `/tree` answers it."""
    found = []
    for path, content in sorted(files.items()):
        row = {"type": "file", "path": path, "size": len(content), "oid": git_blob(content)}
        if LFS.search(path):
            row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        found.append(row)
    return found


ID = r"([\w.-]+/[\w.-]+)"
ROUTES = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", f"/api/models/{ID}/preupload/(.+)", Handler.preupload),
    ("POST", f"/{ID}.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", "/lfs/([0-9a-f]{64})", Handler.put_blob),
    ("POST", f"/api/models/{ID}/commit/(.+)", Handler.commit),
    ("GET", f"/api/models/{ID}(?:/revision/(.+))?", Handler.info),
    ("GET", f"/api/models/{ID}/tree/(.+)", Handler.tree),
    ("GET", f"/api/models/{ID}/refs", Handler.refs),
    ("POST", f"/api/models/{ID}/tag/(.+)", Handler.tag),
    ("HEAD GET", f"/{ID}/resolve/([^/]+)/(.+)", Handler.file),
    ("HEAD GET", "/cdn/([0-9a-f]{64})", Handler.blob),
]


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    hub = LoopbackHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def elsewhere(code: str, hub: LoopbackHub, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run Python `code` in a fresh interpreter that can reach nothing but `hub`, in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=surroundings(hub, folder) | environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip


def surroundings(hub: LoopbackHub, folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder / "hf-home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }
