"""Tokens, which admit devices. A token's secret is shown once and not stored."""

import json
import secrets
import time

from fedserver.store.database import Database, Row, record_of
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import Terms, Token, TokenStanding
from shoal.core.errors import ConfigError, NotFound
from shoal.core.identity.joining import Role
from shoal.core.identity.proof import key_of

LONGEST = 24 * 3600.0
"""The longest validity of a token, in seconds."""
MAX_USES = 10_000
MAX_LABELS, LABEL = 16, 64
WRONG = 5
"""How many wrong proofs lock a token."""


class Tokens:
    """All tokens in the database."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._db, self._audit = database, audit

    def add(self, terms: Terms) -> tuple[Token, bytes]:
        """Create a token.

        Returns it and its secret of 32 bytes. Raises ConfigError if the terms are not allowed.
        """
        check(terms)
        secret, now = secrets.token_bytes(32), time.time()
        name = secrets.token_hex(6)
        token = Token(
            name,
            terms.role,
            terms.uses,
            0,
            now,
            now + terms.ttl,
            dict(terms.labels or {}),
            terms.pattern,
            terms.hold,
            0,
            TokenStanding.OPEN,
        )
        with self._db.transaction():
            stored = {"labels": json.dumps(token.labels), "standing": token.standing.value}
            row = {**vars(token), **stored, "role": token.role.value, "key": key_of(secret)}
            self._db.insert("tokens", row)
            self._audit.record(
                Event.TOKEN_CREATED,
                token=name,
                role=terms.role.value,
                uses=terms.uses,
                ttl=terms.ttl,
                names=terms.pattern,
                hold=terms.hold,
            )
        return token, secret

    def use_up(self, token: str) -> None:
        """Inside a transaction: count a device that the token admits."""
        self._db.execute("UPDATE tokens SET used = used + 1 WHERE token = ?", (token,))

    def all(self) -> list[Token]:
        """All tokens, oldest first."""
        return [token_of(row) for row in self._db.rows("tokens", "ORDER BY created, token")]

    def has(self, name: str) -> bool:
        """Whether there is, or was, a token of this name."""
        return bool(self._db.query("SELECT 1 FROM tokens WHERE token = ?", (name,)))

    def revoke(self, name: str) -> Token:
        """Let a token admit no more devices; admitted devices stay. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            rows = self._db.rows("tokens", "WHERE token = ?", (name,))
            if not rows:
                raise NotFound(f"there is no token {name!r}", "fedserver token ls lists them")
            if rows[0]["standing"] != TokenStanding.REVOKED.value:
                self.set_standing(name, TokenStanding.REVOKED)
                self._audit.record(Event.TOKEN_REVOKED, token=name)
            return token_of(self._db.rows("tokens", "WHERE token = ?", (name,))[0])

    def revoke_open(self) -> None:
        """Let no token admit a device any more: a restored state does not know which of them were used."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE tokens SET standing = ? WHERE standing = ?",
                (TokenStanding.REVOKED.value, TokenStanding.OPEN.value),
            )
            self._audit.record(Event.RESTORED)

    def count_wrong_proof(self, row: Row) -> None:
        """Inside a transaction: count a wrong proof; `WRONG` of them lock the token."""
        wrong = row["wrong"] + 1
        self._db.execute("UPDATE tokens SET wrong = ? WHERE token = ?", (wrong, row["token"]))
        if wrong == WRONG:
            self.set_standing(row["token"], TokenStanding.LOCKED)
            self._audit.record(Event.TOKEN_LOCKED, token=row["token"], wrong_proofs=wrong)

    def set_standing(self, name: str, standing: TokenStanding) -> None:
        """Inside a transaction: change whether a token admits devices."""
        self._db.execute("UPDATE tokens SET standing = ? WHERE token = ?", (standing.value, name))


def check(terms: Terms) -> None:
    """Raises ConfigError if the terms are not allowed."""
    if not 1 <= terms.uses <= MAX_USES:
        raise ConfigError(f"a token cannot have {terms.uses} uses", f"use 1 to {MAX_USES}")
    if not 0.0 < terms.ttl <= LONGEST:
        raise ConfigError(
            f"a token cannot be valid for {terms.ttl:g} s", "use more than 0 s and at most 24 h"
        )
    if not 1 <= len(terms.pattern) <= LABEL:
        raise ConfigError("a name pattern must have 1 to 64 characters", "use a pattern such as 'ward-*'")
    labels = terms.labels or {}
    if len(labels) > MAX_LABELS or any(
        not 1 <= len(text) <= LABEL for label in labels.items() for text in label
    ):
        raise ConfigError(
            "there are too many labels, or they are too long",
            f"use at most {MAX_LABELS} labels, with names and values of 1 to {LABEL} characters",
        )


def token_of(row: Row) -> Token:
    return record_of(
        Token,
        row,
        role=Role(row["role"]),
        labels=json.loads(row["labels"]),
        hold=bool(row["hold"]),
        standing=TokenStanding(row["standing"]),
    )
