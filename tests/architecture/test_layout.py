"""The rules of the tree that no single module can hold: links, sizes, imports, packaging."""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ramet", "lang", "runtime", "kernels")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_KERNEL_LINES = 120
MAX_PUBLIC_METHODS = 20


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sources():
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("name", ["lang", "runtime", "kernels"])
def test_links_resolve_to_the_folders(name: str) -> None:
    link = ROOT / "ramet" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
    }
    assert not long, f"split by rule: {long}"


def test_functions_fit_a_screen() -> None:
    long = []
    for path, tree in trees():
        limit = MAX_KERNEL_LINES if path.is_relative_to(ROOT / "kernels") else MAX_FUNCTION_LINES
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > limit:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_classes_stay_narrow_and_are_no_mixins() -> None:
    wide = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            assert "Mixin" not in node.name, f"{path}: {node.name}"
            # A name once: overloads are one method.
            public = {
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_")
            }
            if len(public) > MAX_PUBLIC_METHODS:
                wide.append(f"{path.relative_to(ROOT)} {node.name}: {len(public)} public methods")
    assert not wide, "\n".join(wide)


def test_no_global_statement_and_no_swallowed_error() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Global):
                found.append(f"{where} global")
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    found.append(f"{where} bare except")
                if all(isinstance(item, ast.Pass) for item in node.body) and _is_broad(node.type):
                    found.append(f"{where} broad except that does nothing")
    assert not found, "\n".join(found)


def _is_broad(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")


def test_environment_is_read_in_one_module() -> None:
    found = []
    for path, tree in trees():
        if path == ROOT / "runtime" / "env.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, "\n".join(found)


def test_every_module_has_a_test_file() -> None:
    tested = {path.name.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.name not in tested and path.name not in ("__init__.py", "__main__.py") and _has_code(path)
    ]
    assert not missing, f"no tests/**/test_<module>.py for: {missing}"


def _has_code(path: Path) -> bool:
    """Modules that only declare records or protocols are covered by their users' tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [
                item
                for item in node.body
                if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ]
            if body:
                return True
    return False


@pytest.mark.parametrize(
    ("statement", "banned"),
    [
        ("import ramet", ["torch", "numpy", "fastapi", "tokenizers", "zmq"]),
        ("import ramet.lang", ["torch", "fastapi", "transformers"]),
        ("import ramet.runtime.protocol", ["torch", "numpy"]),
        ("import ramet.runtime.scheduler", ["torch", "transformers"]),
        ("import ramet.runtime.tokenizer", ["torch", "transformers"]),
        ("from ramet import EngineProcess", ["torch", "transformers"]),
        ("from ramet import Engine", ["transformers", "triton"]),
        ("import ramet.runtime.cli", ["torch", "transformers"]),
    ],
)
def test_imports_stay_light(statement: str, banned: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {banned!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_all_lists_what_is_exported() -> None:
    import ramet

    for name in ramet.__all__:
        assert getattr(ramet, name) is not None
    assert set(ramet.__all__) - {"__version__"} == set(ramet._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ramet.nothing


@pytest.mark.slow
def test_wheel_holds_the_modules_on_disk(tmp_path: Path) -> None:
    """Built from a copy of what git tracks, so that left-over build folders cannot hide a missing file."""
    copy = tmp_path / "copy"
    copy.mkdir()
    tracked = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    subprocess.run(["tar", "-x", "-C", str(copy)], input=tracked.stdout, check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(copy)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".py", ".c", ".h"))}
    expected = set()
    for package in PACKAGES:
        for path in (*(copy / package).rglob("*.py"), *(copy / package).rglob("*.[ch]")):
            if any(parent.is_symlink() for parent in path.parents):
                continue
            inside = path.relative_to(copy)
            expected.add(str(inside if package == "ramet" else Path("ramet") / inside))
    assert packed == expected
