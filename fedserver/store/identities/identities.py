"""All parts of the store that deal with identities."""

from fedserver.store.database import Database
from fedserver.store.identities.admission import Admissions
from fedserver.store.identities.audit import AuditLog
from fedserver.store.identities.operators import Operators
from fedserver.store.identities.registry import Registry
from fedserver.store.identities.restored import RestoreGap
from fedserver.store.identities.tokens import Tokens


class Identities:
    """The parts of the store that deal with the certificates of devices and of operators."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self.audit = audit
        self.tokens, self.registry = Tokens(database, audit), Registry(database, audit)
        self.operators = Operators(database, audit)
        self.gap = RestoreGap(database, audit, self.registry, self.tokens, self.operators)
        self.admission = Admissions(database, audit, self.registry, self.tokens, self.gap)
