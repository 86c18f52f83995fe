"""The mutants: what is changed where, and which tests have to fail then."""

from dataclasses import dataclass

DISK, STORE = "tests/shell/test_disk.py", "tests/server/store"
REDUNDANCY, DAMAGE = f"{STORE}/test_redundancy.py", "tests/server/coordinator/test_damage.py"
CHANGES = "tests/server/coordinator/test_run_changes.py"
RECOVERY = "tests/server/coordinator/test_recovery.py"
ROUNDS, SCENARIOS = "tests/core/engine/test_rounds.py", "tests/scenarios/test_scenarios.py"
VERSIONS = (
    "tests/compat/test_versions.py"
    "::test_devices_of_the_version_before_serve_this_server_and_are_upgraded_in_a_round"
)
INTAKE, LEDGER = "tests/server/coordinator/test_intake.py", "tests/client/store/test_ledger.py"


@dataclass(frozen=True)
class Mutant:
    """old: text that stands exactly once in the file. new: what replaces it. tests: run until one fails."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def mutant(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, path, old, new, tests)


MUTANTS = (
    # -- what lasts on a disk
    mutant(
        "a file is named before its bytes are synced",
        "shoal/shell/disk.py",
        '    os.fsync(file.fileno())\n    crash.point("disk.synced")\n',
        '    crash.point("disk.synced")\n',
        DISK,
    ),
    mutant(
        "the name of a file is not synced",
        "shoal/shell/disk.py",
        'crash.point("disk.renamed")\n    sync_folder(target.parent)\n\n\ndef share',
        'crash.point("disk.renamed")\n\n\ndef share',
        DISK,
    ),
    mutant(
        "the second name of a file is not synced",
        "shoal/shell/disk.py",
        'crash.point("disk.renamed")\n    sync_folder(target.parent)\n\n\ndef make_folder',
        'crash.point("disk.renamed")\n\n\ndef make_folder',
        DISK,
    ),
    mutant(
        "the name of a new folder is not synced",
        "shoal/shell/disk.py",
        "            folder.mkdir(mode=0o700, exist_ok=True)\n            sync_folder(folder.parent)\n",
        "            folder.mkdir(mode=0o700, exist_ok=True)\n",
        DISK,
    ),
    mutant(
        "SQLite does not sync its commits",
        "fedserver/store/engines/sqlite.py",
        "synchronous=FULL",
        "synchronous=OFF",
        f"{STORE}/test_database.py",
    ),
    mutant(
        "SQLite syncs only checkpoints",
        "fedserver/store/engines/sqlite.py",
        "synchronous=FULL",
        "synchronous=NORMAL",
        f"{STORE}/test_database.py",
    ),
    mutant(
        "references between tables are not enforced",
        "fedserver/store/engines/sqlite.py",
        "foreign_keys=ON",
        "foreign_keys=OFF",
        f"{STORE}/test_database.py",
    ),
    mutant(
        "a report counts before its blobs are in place",
        "fedserver/store/reports.py",
        "                self._blobs.accept(arrival.record.device, arrival.uploaded)\n"
        '            crash.point("server.report-blobs-moved")\n'
        "            self._insert(arrivals)\n",
        "                pass\n"
        "            self._insert(arrivals)\n"
        '            crash.point("server.report-blobs-moved")\n'
        "            for arrival in arrivals:\n"
        "                self._blobs.accept(arrival.record.device, arrival.uploaded)\n",
        f"{STORE}/test_stops.py",
    ),
    mutant(
        "a start does not complete what is in the spool",
        "fedserver/store/content/blobs.py",
        "        self._complete()\n",
        "        self._spool.clear()\n",
        f"{STORE}/test_spool.py",
    ),
    mutant(
        "a report counts beyond those that its round lacks",
        "fedserver/coordinator/visits/counting.py",
        " and len(same) < max(1, each.run.engine.lacks)",
        "",
        "tests/server/coordinator/test_inline.py",
    ),
    mutant(
        "a round is offered before it is stored",
        "fedserver/coordinator/runs.py",
        "        await self.storage.when_space(self.storage.runs.open_round, self.run, *opened)\n",
        "",
        "tests/server/coordinator/test_coordinator.py",
    ),
    mutant(
        "blobs of open tasks are deleted",
        "fedserver/store/content/blobs.py",
        "sorted(names - held)",
        "sorted(names)",
        f"{STORE}/test_store.py",
        f"{STORE}/test_blobs.py",
        "tests/server/coordinator/test_coordinator.py",
    ),
    # -- rot
    mutant(
        "rows are not compared with their checksums when they are used",
        "fedserver/store/engines/sqlite.py",
        "            if not wrong:\n                return found\n",
        "            if True:\n                return found\n",
        REDUNDANCY,
    ),
    mutant(
        "a damaged row may be changed, and gets a new checksum",
        "fedserver/store/integrity/redundancy.py",
        "CASE WHEN repairing() THEN 0",
        "CASE WHEN 1 THEN 0",
        REDUNDANCY,
    ),
    mutant(
        "the checksum of a row is good for any row",
        "fedserver/store/integrity/row_bytes.py",
        ', key=f"{place}".encode()[:64]',
        "",
        REDUNDANCY,
    ),
    mutant(
        "rows are not copied",
        "fedserver/store/integrity/redundancy.py",
        "        if self.stale:\n            return\n",
        "        if changes:\n            return\n",
        REDUNDANCY,
    ),
    mutant(
        "a database that has lost its last transactions is believed",
        "fedserver/store/integrity/salvage.py",
        "number < found.number",
        "number < 0",
        REDUNDANCY,
    ),
    mutant(
        "rows are not checked at the start",
        "fedserver/store/engines/sqlite.py",
        "            for place in found:\n                self.repair(place)\n"
        "            self.redundancy.refresh()\n",
        "            self.redundancy.refresh()\n",
        REDUNDANCY,
    ),
    mutant(
        "what is read of a report is not compared with what arrived",
        "fedserver/store/content/checked.py",
        "found if are_sound(found.data, self._blocks, first) else None",
        "found",
        DAMAGE,
    ),
    mutant(
        "models are not copied",
        "fedserver/coordinator/repair/caretaker.py",
        "self._storage.blobs.keep_copies, newest",
        "self._storage.blobs.keep_copies, set()",
        DAMAGE,
    ),
    mutant(
        "a device that complains about wrong bytes is always wrong",
        "fedserver/coordinator/visits/intake.py",
        "report.result.code == BadPayload.code",
        "False",
        DAMAGE,
    ),
    mutant(
        "the models of a run stay mapped files",
        "fedserver/store/content/blob_cache.py",
        "        tensors = self._blobs.safe(weights)",
        "        tensors = self._blobs.load(weights)",
        DAMAGE,
    ),
    mutant(
        "a run that cannot be read ends the start",
        "fedserver/coordinator/repair/recovery.py",
        "        except DamagedRow as damaged:\n            self._set_aside(record.run, record, damaged)\n",
        "",
        DAMAGE,
    ),
    mutant(
        "abandoned rounds age the checkpoints",
        "fedserver/store/runs.py",
        "            if closed.abandoned:\n",
        "            if False:\n",
        DAMAGE,
    ),
    mutant(
        "a damaged report still counts in its round",
        "shoal/core/engine/round/open_round.py",
        "        self.is_over = False\n        self.reported.discard(device)\n",
        "        self.is_over = False\n",
        SCENARIOS,
    ),
    # -- rounds
    mutant(
        "a report of an earlier process counts",
        "shoal/core/engine/round/open_round.py",
        "if attempt != session.attempt:",
        "if False:",
        ROUNDS,
    ),
    mutant(
        "a round goes on with fewer devices than the minimum",
        "shoal/core/engine/round/view.py",
        "return max(min(minimum, len(self.plan.tasks)), quorum)",
        "return 1",
        ROUNDS,
    ),
    mutant(
        "reports are combined in another order",
        "shoal/core/engine/rounds.py",
        "tuple(sorted(self.reported))",
        "tuple(sorted(self.reported, reverse=True))",
        ROUNDS,
    ),
    mutant(
        "the seed of a task depends on the attempt",
        "shoal/core/engine/rounds.py",
        '"" if task.one_seed else device)',
        '"" if task.one_seed else device, session.attempt)',
        ROUNDS,
        "tests/core/engine",
    ),
    mutant(
        "rounds are abandoned without a pause",
        "shoal/core/engine/policy.py",
        "if abandoned else 0.0",
        "if False else 0.0",
        SCENARIOS,
    ),
    mutant(
        "the deadline passes in a pause",
        "fedserver/coordinator/runs.py",
        "self._stood += self._now() - self._stood_since",
        "self._stood += 0.0",
        CHANGES,
    ),
    mutant(
        "a pause ends with the server",
        "fedserver/store/runs.py",
        '"UPDATE runs SET paused = ? WHERE run = ?", (reason, run)',
        '"UPDATE runs SET paused = ? WHERE run = ?", ("", run)',
        CHANGES,
    ),
    mutant(
        "reports of a failed round are taken for ones that count",
        "fedserver/store/runs.py",
        '"DELETE FROM reports WHERE run = ?1 AND round >= (SELECT round FROM runs WHERE run = ?1)"',
        '"DELETE FROM reports WHERE run = ?1 AND round < 0"',
        CHANGES,
    ),
    # -- what counts, and for whom
    mutant(
        "a report counts twice",
        "fedserver/coordinator/visits/intake.py",
        "    if stored is not None:\n",
        "    if False:\n",
        INTAKE,
    ),
    mutant(
        "a report of a revoked device counts",
        "fedserver/coordinator/visits/counting.py",
        " or record.device in self._barred",
        "",
        "tests/server/authority/test_revocation.py",
    ),
    mutant(
        "every role may make every call",
        "fedserver/authority/permissions.py",
        "if role not in ALLOWED.get(method, frozenset()):",
        "if False:",
        "tests/server/authority/test_roles.py",
    ),
    mutant(
        "a certificate of ours is enough, whatever its key is",
        "fedserver/authority/peers.py",
        "if known.spki != peer.spki:",
        "if False:",
        "tests/server/authority/test_theft.py",
    ),
    mutant(
        "a server is followed to a key that the former one has not signed",
        "shoal/core/identity/succession.py",
        "return all(_signed(key, signature, following) for (key, signature), (_, following) in steps)",
        "return True",
        "tests/core/identity/test_succession.py",
    ),
    mutant(
        "an old backup lets in again who was revoked",
        "fedserver/store/identities/dead_keys.py",
        "                if self.of(spki) is None:\n",
        "                if False:\n",
        "tests/server/authority/test_restored.py",
    ),
    mutant(
        "a token admits one device too many",
        "fedserver/store/identities/admission.py",
        'if row["used"] >= row["uses"]:',
        'if row["used"] > row["uses"]:',
        "tests/server/authority/test_joining.py",
    ),
    mutant(
        "the content of a line of the audit log is not checked",
        "fedserver/store/identities/audit.py",
        "if said != _hash(line) or text != _json",
        "if text != _json",
        "tests/server/authority/test_audit.py",
    ),
    mutant(
        "the marks of another history are believed",
        "fedserver/store/history.py",
        'if mark.revision <= rows[0]["revision"]:',
        "if True:",
        f"{STORE}/test_history.py",
    ),
    mutant(
        "the hash of an upload is not checked",
        "fedserver/store/content/upload.py",
        "elif self.sums.sha256 == self._blob.sha256:",
        "elif self.sums.sha256:",
        f"{STORE}/test_blobs.py",
    ),
    mutant(
        "the hash of a download is not checked",
        "fedclient/store/blobs.py",
        "elif held > blob.size or sha.hexdigest() != blob.sha256:",
        "elif held > blob.size:",
        "tests/client/store/test_blobs.py",
    ),
    mutant(
        "models that are not finite are admitted",
        "shoal/core/exchange/tensors.py",
        "for spec in floats_of(manifest_of(tensors)):\n        parts",
        "for spec in ():\n        parts",
        "tests/core/exchange/test_tensors.py",
    ),
    # -- privacy
    mutant(
        "a release is paid for after it was drawn",
        "fedclient/store/ledger.py",
        '            self._file.append(debit)\n            crash.point("device.debited")\n',
        '            crash.point("device.debited")\n            self._file.append(debit)\n',
        "tests/crash/test_ledger.py",
    ),
    mutant(
        "a release beyond the budget is allowed",
        "shoal/core/privacy/budget.py",
        "< -ROUNDING * cost.rho",
        "< -1e9 * cost.rho",
        "tests/core/privacy/test_budget.py",
    ),
    mutant(
        "a release does not need a budget that covers all of them",
        "shoal/core/privacy/budget.py",
        "limit.used + cost",
        "limit.kept + cost",
        "tests/core/privacy/test_budget.py",
    ),
    mutant(
        "a run can spend what is reserved for another",
        "shoal/core/privacy/budget.py",
        "limit.used + cost",
        "limit.spent + cost",
        "tests/client/store/test_reservations.py",
    ),
    mutant(
        "a device takes the masks off a sum of any size",
        "shoal/core/privacy/secure/member.py",
        "if len(found) < manifest.threshold:",
        "if not found:",
        "tests/core/privacy/secure/test_games.py",
    ),
    mutant(
        "a device opens for survivors for which it has not masked",
        "shoal/core/privacy/secure/member.py",
        "if not found <= {*member.senders} or member.me not in found:",
        "if member.me not in found:",
        "tests/core/privacy/secure/test_lists.py",
    ),
    mutant(
        "openings for other survivors can be read together",
        "shoal/core/privacy/secure/opening.py",
        "marks = self.manifest.marks(self.survivors)",
        'marks = b""',
        "tests/core/privacy/secure/test_lists.py",
    ),
    mutant(
        "the dealer answers for the shares that others return",
        "shoal/core/privacy/secure/total.py",
        "                liars.add(by)",
        "                liars.add(dealer)",
        "tests/core/privacy/secure/test_liars.py",
    ),
    mutant(
        "a cohort may be of any size",
        "shoal/core/privacy/secure/cohort.py",
        "if not MIN_COHORT <= len(self.announcements) <= MAX_COHORT:",
        "if not self.announcements:",
        "tests/core/privacy/secure/test_games.py",
    ),
    mutant(
        "the limit on what is spent holds at whatever order is best",
        "shoal/core/privacy/cost.py",
        "spent = _between(_grouped(self.curve, size), size, order)",
        "spent = min(divergence * order / (at / size) for at, divergence in _grouped(self.curve, size))",
        "tests/core/privacy/test_filter.py",
    ),
    # -- what operators see
    mutant(
        "a row that cannot be encoded fails the whole list",
        "fedserver/rpc/wire/converter.py",
        '                yield self.bare(each, f"it cannot be shown: {error}")',
        "                raise",
        "tests/server/rpc/test_what_operators_see.py",
    ),
    mutant(
        "a report that is gone is not fetched from the bucket before it is read",
        "fedserver/store/content/blobs.py",
        "            if lost := repair():\n                raise LostTensors(lost) from None\n"
        "            return opened()\n",
        "            raise\n",
        "tests/server/ha/test_bucket_away.py",
    ),
    # -- what the version before has on the wire and on its disks
    mutant(
        "tensors are packed in another way",
        "shoal/core/exchange/tensors.py",
        "ALIGNMENT = 64\n",
        "ALIGNMENT = 32\n",
        VERSIONS,
    ),
    mutant(
        "the state of a run is stored in another form",
        "shoal/core/engine/checkpoint.py",
        "FORMAT = 1\n",
        "FORMAT = 2\n",
        "tests/compat/test_stopped_run.py",
    ),
    mutant(
        "a result is forgotten before its receipt",
        "fedclient/agent/agent.py",
        '        crash.point("device.uploaded")\n',
        '        self._outbox.clear()\n        crash.point("device.uploaded")\n',
        VERSIONS,
    ),
)
