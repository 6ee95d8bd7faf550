"""Builds the API reference from the docstrings: ``make docs`` writes it to site/."""

from pathlib import Path

import pdoc

PUBLIC = [
    "ramet",
    "ramet.lang",
    "ramet.runtime.engine",
    "ramet.runtime.protocol",
    "ramet.runtime.scheduler",
    "ramet.runtime.cache",
]


def main() -> None:
    target = Path(__file__).resolve().parents[1] / "site"
    pdoc.render.configure(docformat="google", footer_text="ramet")
    pdoc.pdoc(*PUBLIC, output_directory=target)
    print(f"wrote {target / 'index.html'}")


if __name__ == "__main__":
    main()
