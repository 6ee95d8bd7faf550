import os
from pathlib import Path

import pytest

from ramet.runtime.models.loading.embedded import EMBEDDED
from ramet.runtime.models.loading.source import GgufFile, HfFolder, HubRepo, resolve
from ramet.runtime.protocol import ModelLoadError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_embedded_names(name: str) -> None:
    assert resolve(name) is EMBEDDED[name]


def test_a_path_object_is_never_an_embedded_name(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").touch()
    assert resolve(Path("smollm2")) == HfFolder(Path("smollm2"))
    assert resolve("./smollm2") == HfFolder(Path("smollm2"))
    assert resolve("smollm2") is EMBEDDED["smollm2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubRepo("org/name")),
        ("HuggingFaceTB/SmolLM2-135M", HubRepo("HuggingFaceTB/SmolLM2-135M")),
        ("org/name@v1.0", HubRepo("org/name", "v1.0")),
        ("org/name@refs/pr/3", HubRepo("org/name", "refs/pr/3")),
        ("org/name:a.Q4_K_M.gguf", HubRepo("org/name", None, "a.Q4_K_M.gguf")),
        ("org/name@main:sub/a.gguf", HubRepo("org/name", "main", "sub/a.gguf")),
        ("org/name-GGUF", HubRepo("org/name-GGUF")),
    ],
)
def test_hub_ids(text: str, expected: HubRepo) -> None:
    source = resolve(text)
    assert source == expected
    assert str(source) == text


def test_a_folder_on_disk_comes_before_the_hub(tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").touch()
    assert resolve("org/name") == HfFolder(Path("org/name"))


def test_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    (tmp_path / "M.GGUF").touch()
    assert resolve("m.gguf") == GgufFile((Path("m.gguf"),))
    assert resolve(tmp_path / "m.gguf") == GgufFile((tmp_path / "m.gguf",))
    assert resolve("M.GGUF") == GgufFile((Path("M.GGUF"),))


def test_a_file_without_ending_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "sha256-abc").write_bytes(b"GGUF\3\0\0\0")
    assert resolve("sha256-abc") == GgufFile((Path("sha256-abc"),))


def test_all_parts_of_a_split_file(tmp_path: Path) -> None:
    parts = tuple(Path(f"m-0000{n}-of-00003.gguf") for n in (1, 2, 3))
    for part in parts:
        part.touch()
    assert resolve(str(parts[0])) == GgufFile(parts)
    assert resolve(parts[2]) == GgufFile(parts)
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is missing"):
        resolve(parts[0])


def test_a_folder_with_one_gguf_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelLoadError, match=r"without config\.json"):
        resolve(folder)
    (folder / "a.gguf").touch()
    assert resolve(folder) == GgufFile((folder / "a.gguf",))
    (folder / "b.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"several GGUF files.*a\.gguf, b\.gguf"):
        resolve(folder)


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").touch()
    assert resolve("~/m.gguf") == GgufFile((tmp_path / "m.gguf",))


@pytest.mark.parametrize(
    "text",
    [
        "/no/where",
        "./name",
        "../org/name",
        "~/models/x",
        "missing.gguf",
        "models/missing.gguf",
        "models/missing.safetensors",
        "a/b/c",
        "org/name/",
        "org\\name",
    ],
)
def test_what_looks_like_a_path_and_is_not_there(text: str) -> None:
    with pytest.raises(ModelLoadError, match="no such file or folder"):
        resolve(text)


def test_a_path_object_that_is_not_there() -> None:
    with pytest.raises(ModelLoadError, match="no such file or folder"):
        resolve(Path("org/name"))


@pytest.mark.parametrize(
    "text", ["gpt2", "smollm3", "org name", "-/-", "org/name@", "org/name:x.bin", "x" * 5000]
)
def test_what_is_nothing_is_refused_with_the_possible_forms(text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        resolve(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["", "  ", "a\0b"])
def test_what_cannot_be_a_name(text: str) -> None:
    with pytest.raises(ModelLoadError, match="names no model"):
        resolve(text)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pytorch_model.bin"])
def test_a_part_of_a_model_points_to_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match="give its folder"):
        resolve(name)


def test_other_files_are_not_models(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(ModelLoadError, match="is not a model"):
        resolve("notes")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match="not a file"):
        resolve("pipe")
