"""A server with the part of the Hugging Face hub's interface that downloads and uploads use."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional
from urllib.parse import unquote, urlsplit

TOKEN = "hf_a1B2c3D4e5F6g7H8"
LARGE = (".safetensors",)  # stored by their SHA-256, and sent from another address


class Repository:
    """A model: commits by hash, branches, and who may read it."""

    def __init__(self, *, is_private: bool = False, is_gated: bool = False) -> None:
        self.is_private, self.is_gated = is_private, is_gated
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        # the hub's models begin with such a commit
        self.commit("main", {".gitattributes": b""})

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Adds a commit with ``files`` on top of a branch; returns its hash."""
        before = self.branches.get(branch)
        content = {**(self.commits[before] if before else {}), **files}
        text = repr((before, sorted((k, hashlib.sha1(v).hexdigest()) for k, v in content.items())))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = content
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> Optional[str]:
        return revision if revision in self.commits else self.branches.get(revision)


class HubServer:
    """The server, in a thread of this process.

    Attributes:
        repositories: model by ``OWNER/NAME``.
        requests: method and path of every request about a model.
        tokens: tokens that were sent.
        tokens_elsewhere: tokens that were sent to the address of large files.
        broken: text in a path -> status with which such requests are answered.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self.tokens_elsewhere: set[str] = set()
        self.broken: dict[str, int] = {}
        self.blobs: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # another host, as large files have
        self.files_url = f"http://localhost:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def add(self, name: str, folder: Any, *, branch: str = "main", **options: Any) -> str:
        """Stores the files of a folder as a model; returns the commit's hash."""
        repository = self.repositories.setdefault(name, Repository(**options))
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        return repository.commit(branch, files)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD  # noqa: N815

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._read_chunks()
        path = unquote(urlsplit(self.path).path)
        if path != "/api/agent-harnesses":  # the library asks once in a process
            self.hub.requests.append((self.command, path))
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        tokens = self.hub.tokens_elsewhere if path.startswith("/cdn/") else self.hub.tokens
        tokens |= {sent} - {""}
        self.is_known = sent == TOKEN
        for text, status in self.hub.broken.items():
            if text in path:
                return self._send(status, {"error": "it is broken"})
        if self.command in ("HEAD", "GET") and "/resolve/" in path:
            return self._resolve(path)
        if path.startswith("/cdn/"):
            return self._send(200, self.hub.blobs[path.rpartition("/")[2]])
        if path.startswith("/api/models/") and self.command == "GET":
            return self._info(path)
        if self.command == "PUT" and path.startswith("/upload/"):
            digest = hashlib.sha256(self.body).hexdigest()
            assert digest == path.rpartition("/")[2]
            self.hub.blobs[digest] = self.body
            return self._send(200, b"")
        return self._post(path)

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, content: Any, **headers: Any) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"error": code}, X_Error_Code=code)

    def _find(self, name: str) -> Optional[Repository]:
        """The repository, or None after the answer that it cannot be read."""
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.is_private and not self.is_known):
            self._refuse(401, "RepoNotFound")
            return None
        if repository.is_gated and not self.is_known:
            self._refuse(403, "GatedRepo")
            return None
        return repository

    def _resolve(self, path: str) -> None:
        name, _, rest = path[1:].partition("/resolve/")
        revision, _, file = rest.rpartition("/")
        repository = self._find(name)
        if repository is None:
            return None
        commit = repository.resolve(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        content = repository.commits[commit].get(file)
        if content is None:
            return self._send(
                404, {"error": "no entry"}, X_Error_Code="EntryNotFound", X_Repo_Commit=commit
            )
        if file.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            self.hub.blobs[digest] = content
            return self._send(
                302,
                b"",
                Location=f"{self.hub.files_url}/cdn/{digest}",
                X_Repo_Commit=commit,
                X_Linked_Etag=f'"{digest}"',
                X_Linked_Size=len(content),
            )
        etag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return self._send(200, content, ETag=f'"{etag}"', X_Repo_Commit=commit)

    def _info(self, path: str) -> None:
        name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        repository = self._find(name)
        if repository is None:
            return None
        commit = repository.resolve(revision or "main")
        if commit is None:
            return self._refuse(404, "RevisionNotFound")
        files = [{"rfilename": file} for file in repository.commits[commit]]
        return self._send(200, {"id": name, "sha": commit, "siblings": files})

    def _post(self, path: str) -> None:
        if path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        if not self.is_known:
            return self._send(401, {"error": "Invalid username or password."})
        content = json.loads(self.body) if path.split("/")[-2] != "commit" else None
        if path == "/api/repos/create":
            name = f"{content.get('organization') or 'me'}/{content['name']}"
            status = 409 if name in self.hub.repositories else 200
            is_private = content.get("private") or content.get("visibility") == "private"
            new = Repository(is_private=bool(is_private))
            self.hub.repositories.setdefault(name, new)
            return self._send(status, {"url": f"{self.hub.url}/{name}", "id": name})
        if path.endswith("/info/lfs/objects/batch"):
            return self._send(200, {"transfer": "basic", "objects": self._offers(content)})
        if path == "/verify":
            return self._send(200 if content["oid"] in self.hub.blobs else 404, {})
        name, action, branch = self._split(path)
        repository = self.hub.repositories[name]
        if action == "branch":
            status = 409 if branch in repository.branches else 200
            repository.branches.setdefault(branch, repository.branches["main"])
            return self._send(status, {})
        if branch not in repository.branches:
            return self._refuse(404, "RevisionNotFound")
        if action == "preupload":
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for file in content["files"]
            ]
            return self._send(200, {"files": files})
        assert action == "commit"
        commit = repository.commit(branch, self._committed_files())
        url = f"{self.hub.url}/{name}/commit/{commit}"
        return self._send(200, {"commitUrl": url, "commitOid": commit, "success": True})

    @staticmethod
    def _split(path: str) -> tuple[str, str, str]:
        owner, name, action, branch = path.removeprefix("/api/models/").split("/", 3)
        return f"{owner}/{name}", action, branch

    def _offers(self, content: Any) -> list[dict[str, Any]]:
        return [
            {
                "oid": item["oid"],
                "size": item["size"],
                "actions": {
                    "upload": {"href": f"{self.hub.url}/upload/{item['oid']}"},
                    "verify": {"href": f"{self.hub.url}/verify"},
                },
            }
            for item in content["objects"]
        ]

    def _committed_files(self) -> dict[str, bytes]:
        files = {}
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        return files
