"""What a maker signs of a release, and what is taken for one."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.core.errors import BadPayload, ConfigError
from shoal.core.identity.release import CONTEXT, MAKER, Release, numbers, private_key, public_key, read

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
RELEASE = Release("0.3.1", "ab" * 32, 1_600_000)
BY_MAKER = (
    b"ZKKo370MV9wX/uh/PD+IAEBPSpGDHvNPJmOh7/k9cXMIkgvzNfcCWZNnpZutITlCOhxH5JpuRuLGV2SmYn+lDA==\n"
    b'{"version": "0.0.1", "sha256": "' + b"0" * 64 + b'", "size": 1}\n'
)
"""A statement that was signed by the project's key."""


def test_a_statement_of_the_projects_key_is_read_by_every_version() -> None:
    assert read(BY_MAKER, public_key(MAKER)) == Release("0.0.1", "0" * 64, 1)


def test_every_other_byte_is_refused() -> None:
    statement = RELEASE.signed(KEY)
    assert read(statement, KEY.public_key()) == RELEASE
    for place in range(len(statement) - 1):
        changed = bytearray(statement)
        changed[place] ^= 1
        with pytest.raises(BadPayload):
            read(bytes(changed), KEY.public_key())
    for size in range(len(statement) - 1):
        with pytest.raises(BadPayload):
            read(statement[:size], KEY.public_key())


def test_another_key_and_another_use_of_the_key_are_refused() -> None:
    with pytest.raises(BadPayload):
        read(RELEASE.signed(Ed25519PrivateKey.generate()), KEY.public_key())
    line, _, text = RELEASE.signed(KEY).partition(b"\n")
    with pytest.raises(BadPayload):
        read(line + b"\n" + CONTEXT + text, KEY.public_key())


@pytest.mark.parametrize(
    "changes",
    [
        *({"version": text} for text in ("0.3", "0.3.1rc1", "../0.3.1", "0.03.1", "0.3.1\n", "٣.0.0")),
        *({"sha256": text} for text in ("", "AB" * 32, "ab" * 31)),
        *({"size": size} for size in (0, -1, 1 << 40)),
    ],
)
def test_what_is_no_release_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadPayload):
        replace(RELEASE, **changes)  # type: ignore[arg-type]


def test_a_wheel_is_the_signed_one_or_none() -> None:
    empty = Release("1.0.0", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d", 1)
    empty.check(b"\0")
    for other in (b"\1", b"", b"\0\0"):
        with pytest.raises(BadPayload):
            empty.check(other)


def test_versions_are_compared_by_number() -> None:
    assert numbers("0.9.0") < numbers("0.10.0") < numbers("1.0.0")


def test_a_file_that_has_no_key_is_refused() -> None:
    for text in (b"", b"no key", MAKER):
        with pytest.raises(ConfigError):
            private_key(text)
    with pytest.raises(ConfigError):
        public_key(b"no key")
