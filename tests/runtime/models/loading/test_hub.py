"""Hub ids against local hub caches that the tests lay out, and a small hub that answers on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from ramet.runtime.models.loading.hub import choose_gguf, download
from ramet.runtime.models.loading.source import GgufFile, HfFolder, HubRepo
from ramet.runtime.protocol import ModelLoadError
from tests.runtime.models.loading.tiny_folder import write_folder
from tests.runtime.models.loading.tiny_gguf import tiny_llama, write_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def snapshot_folder(hub_cache: Path, repo_id: str, revision: str = "main") -> Path:
    """As huggingface_hub keeps it: refs/<revision> names a commit, snapshots/<commit> has its files."""
    root = hub_cache / f"models--{repo_id.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(COMMIT)
    folder = root / "snapshots" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_cached_folder_is_found_offline(tmp_path: Path) -> None:
    folder = snapshot_folder(tmp_path, "org/name")
    write_folder(folder, *tiny_llama())
    assert download(HubRepo("org/name"), offline=True, cache_dir=tmp_path) == HfFolder(folder)


def test_a_cached_revision_is_found_offline(tmp_path: Path) -> None:
    folder = snapshot_folder(tmp_path, "org/name", "v2")
    write_folder(folder, *tiny_llama())
    assert download(HubRepo("org/name", "v2"), offline=True, cache_dir=tmp_path) == HfFolder(folder)
    assert download(HubRepo("org/name", COMMIT), offline=True, cache_dir=tmp_path) == HfFolder(folder)
    with pytest.raises(ModelLoadError, match=r"not .* in the local cache"):
        download(HubRepo("org/name"), offline=True, cache_dir=tmp_path)


def test_cached_gguf_files_are_found_offline(tmp_path: Path) -> None:
    folder = snapshot_folder(tmp_path, "org/name")
    write_gguf(folder / "a.Q8_0.gguf", *tiny_llama())
    expected = GgufFile((folder / "a.Q8_0.gguf",))
    assert download(HubRepo("org/name"), offline=True, cache_dir=tmp_path) == expected
    assert download(HubRepo("org/name", None, "a.Q8_0.gguf"), offline=True, cache_dir=tmp_path) == expected
    with pytest.raises(ModelLoadError, match=r"lacks b\.gguf"):
        download(HubRepo("org/name", None, "b.gguf"), offline=True, cache_dir=tmp_path)
    (folder / "b.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"2 \.gguf files; choose one as org/name:a\.Q8_0\.gguf"):
        download(HubRepo("org/name"), offline=True, cache_dir=tmp_path)


def test_a_config_beside_gguf_files_only_is_no_folder(tmp_path: Path) -> None:
    folder = snapshot_folder(tmp_path, "org/name")
    (folder / "config.json").write_text("{}")
    (folder / "a.gguf").touch()
    assert download(HubRepo("org/name"), offline=True, cache_dir=tmp_path) == GgufFile((folder / "a.gguf",))


def test_a_snapshot_without_weights_says_so(tmp_path: Path) -> None:
    (snapshot_folder(tmp_path, "org/name") / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="go online once"):
        download(HubRepo("org/name"), offline=True, cache_dir=tmp_path)


def test_an_id_that_the_hub_does_not_allow(tmp_path: Path) -> None:
    for offline in (True, False):
        with pytest.raises(ModelLoadError, match=r"org/name\.\.x"):
            download(HubRepo("org/name..x"), offline=offline, cache_dir=tmp_path)


def test_offline_and_not_cached_says_both(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        download(HubRepo("org/name"), offline=True, cache_dir=tmp_path)
    for part in ("org/name", "offline", "HF_HUB_OFFLINE", "no local folder"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["README.md", "a.gguf"], "a.gguf"),
        (["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"], "m-00001-of-00002.gguf"),
        (["a.gguf", "mmproj-a.gguf"], "a.gguf"),
        (["sub/a.gguf"], "sub/a.gguf"),
    ],
)
def test_the_only_gguf_file_is_chosen(names: list[str], chosen: str) -> None:
    assert choose_gguf(HubRepo("org/name"), names) == chosen


def test_several_gguf_files_are_listed() -> None:
    with pytest.raises(ModelLoadError, match=r"choose one as org/name@v1:a\.gguf \(a\.gguf, b\.gguf\)"):
        choose_gguf(HubRepo("org/name", "v1"), ["b.gguf", "a.gguf"])
    with pytest.raises(ModelLoadError, match="neither"):
        choose_gguf(HubRepo("org/name"), ["README.md"])


def run_download(env: dict[str, str], *repos: str) -> list[str]:
    """What each gives, a path or an error, in a fresh process: huggingface_hub reads variables on import."""
    code = (
        "import sys\n"
        "from ramet.runtime.env import environment\n"
        "from ramet.runtime.models.loading.hub import download\n"
        "from ramet.runtime.models.loading.source import resolve\n"
        "from ramet.runtime.protocol import ModelLoadError\n"
        "env = environment()\n"
        "for repo in sys.argv[1:]:\n"
        "    try:\n"
        "        print(download(resolve(repo), offline=env.offline))\n"
        "    except ModelLoadError as error:\n"
        "        print('ModelLoadError:', str(error).replace('\\n', ' '))\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "RAMET_"))}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", "no_proxy": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code, *repos],
        capture_output=True,
        text=True,
        env={**clean, **quiet, **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class _Hub(BaseHTTPRequestHandler):
    """The three routes of the hub's API that a download needs."""

    files: ClassVar[dict[str, bytes]] = {}

    def log_message(self, *_: object) -> None:
        return

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/gated" in path:
            self._answer(403, b"gated", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif "/broken" in path:
            self._answer(500, b"broken")
        elif "org/name" not in path:
            self._answer(
                404, b"none", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            )
        elif "/revision/nope" in path:
            self._answer(404, b"none", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Revision"})
        elif "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": f"{number:040x}"}
                for number, (name, content) in enumerate(self.files.items())
            ]
            self._answer(200, json.dumps(tree).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"_id": "1", "id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(info).encode())
        else:
            name = path.split(f"/resolve/{COMMIT}/")[1]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(name))}"'}
            self._answer(200, self.files[name], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A hub with the repository org/name; the environment that makes it the hub."""
    write_folder(tmp_path / "source", *tiny_llama(), num_shards=2)
    files = {file.name: file.read_bytes() for file in (tmp_path / "source").iterdir()}
    files |= {
        "pytorch_model.bin": b"a pickle",
        "extra.gguf": b"GGUF",
        "original/consolidated.safetensors": b"x",
        "README.md": b"read me",
    }
    handler = type("Handler", (_Hub,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home")}
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_gives_what_is_needed_or_says_why_not(hub: dict[str, str]) -> None:
    repos = ("org/name", "org/missing", "org/gated", "org/name@nope", "org/name:x.gguf")
    found, missing, gated, revision, file = run_download(hub, *repos)
    folder = Path(found)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert "config.json" in names
    assert sum(name.endswith(".safetensors") for name in names) == 2
    assert not names & {"pytorch_model.bin", "original/consolidated.safetensors", "README.md", "extra.gguf"}
    assert "no hub repository org/missing that you may read" in missing
    assert "org/gated is gated: accept its terms" in gated
    assert "HF_TOKEN" in gated
    assert "has no revision 'nope'" in revision
    assert "no file x.gguf" in file
    again, unknown = run_download({**hub, "HF_HUB_OFFLINE": "1"}, "org/name", "org/other")
    assert again == found
    assert "not (wholly) in the local cache" in unknown


def test_a_hub_that_cannot_be_reached_leaves_the_cache(tmp_path: Path) -> None:
    folder = snapshot_folder(tmp_path / "hub", "org/name")
    write_folder(folder, *tiny_llama())
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    found, missing = run_download(env, "org/name", "org/other")
    assert found == str(folder)
    assert "unreachable" in missing
