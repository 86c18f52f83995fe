"""Tokens: what admits a device once. The secret is made, told once, and kept nowhere."""

import json
import secrets
import sqlite3
import time

from fedserver.authority.audit import Event
from fedserver.authority.records import Terms, Token, TokenStanding
from fedserver.store.identities.audit import Audit
from shoal.core.errors import ConfigError, NotFound
from shoal.core.identity.enrolled import Role
from shoal.core.identity.proof import key_of

LONGEST = 24 * 3600.0
"""Seconds that a token may be good for."""
MOST_USES = 10_000
MOST_LABELS, LABEL = 16, 64
WRONG = 5
"""Wrong proofs that lock a token."""


class Tokens(Audit):
    """A part of the store."""

    def add_token(self, terms: Terms) -> tuple[Token, bytes]:
        """A new token and its secret, 32 bytes. Raises ConfigError for terms that cannot be."""
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
        with self._transaction():
            self._run(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    key_of(secret),
                    token.role.value,
                    token.uses,
                    token.used,
                    token.created,
                    token.expires,
                    json.dumps(token.labels),
                    token.pattern,
                    token.hold,
                    token.wrong,
                    token.standing.value,
                ),
            )
            self._audit(
                Event.TOKEN_CREATED,
                token=name,
                role=terms.role.value,
                uses=terms.uses,
                ttl=terms.ttl,
                names=terms.pattern,
                hold=terms.hold,
            )
        return token, secret

    def tokens(self) -> list[Token]:
        """All tokens, oldest first."""
        return [token_of(row) for row in self._all("SELECT * FROM tokens ORDER BY created, token")]

    def revoke_token(self, name: str) -> Token:
        """It admits nobody any more; devices that it admitted stay. Safe to repeat. Raises NotFound."""
        with self._transaction():
            rows = self._all("SELECT * FROM tokens WHERE token = ?", (name,))
            if not rows:
                raise NotFound(f"there is no token {name!r}", "fedserver token ls names them")
            if rows[0]["standing"] != TokenStanding.REVOKED.value:
                self._set_token(name, TokenStanding.REVOKED)
                self._audit(Event.TOKEN_REVOKED, token=name)
            return token_of(self._all("SELECT * FROM tokens WHERE token = ?", (name,))[0])

    def _wrong_proof(self, row: sqlite3.Row) -> None:
        """Inside a transaction: one more, which may lock the token."""
        wrong = row["wrong"] + 1
        self._run("UPDATE tokens SET wrong = ? WHERE token = ?", (wrong, row["token"]))
        if wrong == WRONG:
            self._set_token(row["token"], TokenStanding.LOCKED)
            self._audit(Event.TOKEN_LOCKED, token=row["token"], wrong_proofs=wrong)

    def _set_token(self, name: str, standing: TokenStanding) -> None:
        self._run("UPDATE tokens SET standing = ? WHERE token = ?", (standing.value, name))


def check(terms: Terms) -> None:
    """Raises ConfigError."""
    if not 1 <= terms.uses <= MOST_USES:
        raise ConfigError(f"a token cannot have {terms.uses} uses", f"use 1 to {MOST_USES}")
    if not 0.0 < terms.ttl <= LONGEST:
        raise ConfigError(f"a token cannot be good for {terms.ttl:g} s", "use more than 0, and at most 24 h")
    if not 1 <= len(terms.pattern) <= LABEL:
        raise ConfigError("a pattern of names has 1 to 64 characters", "such as 'ward-*'")
    labels = terms.labels or {}
    if len(labels) > MOST_LABELS or any(
        not 1 <= len(text) <= LABEL for label in labels.items() for text in label
    ):
        raise ConfigError(
            "these labels are too many or too long",
            f"use at most {MOST_LABELS}, names and values of 1 to {LABEL} characters",
        )


def token_of(row: sqlite3.Row) -> Token:
    return Token(
        row["token"],
        Role(row["role"]),
        row["uses"],
        row["used"],
        row["created"],
        row["expires"],
        json.loads(row["labels"]),
        row["pattern"],
        bool(row["hold"]),
        row["wrong"],
        TokenStanding(row["standing"]),
    )
