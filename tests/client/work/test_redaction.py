"""What of a failure leaves the device."""

from pathlib import Path

import pytest

from fedclient.work.redaction import MAX_DETAILS, MAX_MESSAGE, redacted
from shoal.core.exchange.link import Failure
from tests.client.memory_server import MemoryServer
from tests.client.visits import Device

KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIabc\n-----END EC PRIVATE KEY-----"
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUt/nFEMI",
    "PATH": "/usr/bin:/bin",
    "API_TOKEN": "ab",
    "HOME": "/",
}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('File "/home/anna/learner.py", line 3, in train', 'File "~/learner.py", line 3, in train'),
        ("no such file: /home/anna", "no such file: ~"),
        ("/home/annabel/data is another's", "/home/annabel/data is another's"),
        ("joined with shoal1:abc.def-123 just now", "joined with shoal1:[removed] just now"),
        ("sent wJalrXUt/nFEMI to S3", "sent [removed] to S3"),
        ("PATH is /usr/bin:/bin, ab", "PATH is /usr/bin:/bin, ab"),
        ("postgres://anna:hunter2@db/x failed", "postgres://[removed]@db/x failed"),
        ("connect(password='hunter2', port=1)", "connect(password='[removed]', port=1)"),
        ('{"api_key": "k-123456", "epochs": 3}', '{"api_key": "[removed]", "epochs": 3}'),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [removed]"),
        (f"read {KEY} and more", "read [removed] and more"),
        (KEY[:40], "[removed]"),
        ("loss is nan in epoch 3: tokens: 4", "loss is nan in epoch 3: tokens: [removed]"),
    ],
)
def test_what_is_the_owners_stays(text: str, left: str) -> None:
    found = redacted(Failure("learner-failed", text, text), ENVIRONMENT, Path("/home/anna"))
    assert (found.message, found.details) == (left, left)
    assert found.code == "learner-failed"


def test_it_is_bounded_to_where_the_cause_stands() -> None:
    found = redacted(Failure("bug", "x" * 9999, "begin" + "y" * 99_999 + "end"), {}, Path("/home/anna"))
    assert (len(found.message), len(found.details)) == (MAX_MESSAGE, MAX_DETAILS)
    assert found.details.endswith("yend")


def test_a_report_of_a_failure_is_redacted_before_it_is_sent(
    device: Device, server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    trace = 'Traceback: File "/home/anna/learner.py"\nValueError: secret=hunter2'
    device.executor.before = [lambda: Failure("learner-failed", "in /home/anna/learner.py", trace)]
    device.run()
    sent = server.reports[0].result
    assert isinstance(sent, Failure)
    assert sent.details == 'Traceback: File "~/learner.py"\nValueError: secret=[removed]'
    assert sent.message == "in ~/learner.py"
    assert any("/home/anna/learner.py" in line for line in device.said)  # its owner sees all of it
