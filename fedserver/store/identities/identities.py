"""All parts of the store that deal with identities."""

from pathlib import Path

from fedserver.store.database import Database
from fedserver.store.identities.admission import Admissions
from fedserver.store.identities.audit import AuditLog
from fedserver.store.identities.dead_keys import DeadKeys
from fedserver.store.identities.operators import Operators
from fedserver.store.identities.registry import Registry
from fedserver.store.identities.tokens import Tokens


class Identities:
    """The parts of the store that deal with the keys of devices and of operators. revoked: the file for those
    that hold no more."""

    def __init__(self, database: Database, audit: AuditLog, revoked: Path) -> None:
        self.audit = audit
        self.dead = DeadKeys(database, audit, revoked)
        self.tokens, self.registry = Tokens(database, audit), Registry(database, audit, self.dead)
        self.operators = Operators(database, audit, self.dead)
        self.admission = Admissions(database, audit, self.registry, self.tokens)
