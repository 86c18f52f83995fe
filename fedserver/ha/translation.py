"""The store's SQL in PostgreSQL's words: the same statements, with its types and its placeholders."""

import re
from functools import lru_cache

PLACEHOLDER = re.compile(r"\?(\d*)")
BYTES = re.compile(r"x'([0-9a-f]*)'"), r"'\\x\1'::bytea"
COMMENT = re.compile(r"--[^\n]*")
NEW_TABLE = re.compile(r"(CREATE TABLE \w+ \(.*)\)", re.DOTALL)
WORDS = (
    (re.compile(r"\bINTEGER\b"), "BIGINT"),
    (re.compile(r"\bREAL\b"), "DOUBLE PRECISION"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),  # the order of devices is that of their bytes, everywhere
    (re.compile(r"\brandomblob\(32\)"), "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"),
)
ORDER = "rowid BIGINT GENERATED ALWAYS AS IDENTITY"
"""What SQLite gives every table by itself: a number that grows with each row."""


@lru_cache(maxsize=512)
def numbered(statement: str) -> str:
    """A statement with `$1` for `?1`, for each bare `?` the next number, and PostgreSQL's form of bytes.

    Example:
        >>> numbered("DELETE FROM reports WHERE run = ? AND round < ?")
        'DELETE FROM reports WHERE run = $1 AND round < $2'
    """
    count = iter(range(1, 1000))
    pattern, form = BYTES
    return PLACEHOLDER.sub(lambda found: f"${found[1] or next(count)}", pattern.sub(form, statement))


def statements(schema: str) -> list[str]:
    """The statements of a schema, one by one."""
    found = (each.strip() for each in COMMENT.sub("", schema).split(";"))
    return [_statement(each) for each in found if each]


def _statement(text: str) -> str:
    for pattern, word in WORDS:
        text = pattern.sub(word, text)
    if table := NEW_TABLE.match(text):
        return f"{table[1].rstrip()},\n    {ORDER}\n)"
    return text
