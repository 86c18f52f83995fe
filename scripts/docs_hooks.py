"""Hooks of mkdocs: pages that live outside docs/ become pages of the site, and links between them are kept.

README.md and its neighbors link to each other as files of the repository, which is how they are read there. A
link to a page of the site is rewritten to that page; a link to any other file of the repository becomes plain
text, since the site does not contain it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deployment.md",
    "lab/README.md": "laboratory.md",
}
LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    names = {page: source for source, page in OUTSIDE.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    here = posixpath.dirname(source)

    def link(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(here, target))
        name = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not name or files.get_file_from_path(name) is None:
            return text
        way = posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or ".")
        return f"{image}[{text}]({way}{anchor})"

    return LINK.sub(link, markdown)
