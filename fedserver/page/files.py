"""The page's own files, in memory, under an address that changes with them.

A browser asks for thirty of them before it shows anything, so it keeps them for good: the address of each has
a digest of all, and another version of the page has other addresses.
"""

import hashlib
from pathlib import Path

from starlette.responses import PlainTextResponse, Response

STATIC = Path(__file__).parent / "static"
ROOT = "/static/"
"""Where the files are as they name each other."""
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}


class Files:
    """All files below `STATIC`. root: where they are, such as /static/3f2a.../."""

    def __init__(self) -> None:
        self._files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*.*")}
        digest = hashlib.sha256()
        for name, content in sorted(self._files.items()):
            digest.update(f"{name} {len(content)} ".encode() + content)
        self.root = f"{ROOT}{digest.hexdigest()[:16]}/"

    def linked(self, page: str) -> str:
        """A page, with links to the files at their addresses."""
        return page.replace(f'"{ROOT}', f'"{self.root}')

    def page(self) -> str:
        """The page itself, which no browser keeps."""
        return self.linked(self._files["index.html"].decode())

    def answer(self, path: str) -> Response:
        """A file at its address."""
        name = path.removeprefix(self.root)
        if name == path or name not in self._files:
            return PlainTextResponse("There is no such file.\n", 404)
        return Response(self._files[name], headers=FOR_GOOD, media_type=TYPES[name.rpartition(".")[2]])
