"""`fedclient join`: from a join string to an identity, by steps each of which may be repeated."""

import asyncio
import math
import secrets
import socket

from fedclient.backoff import Backoff, patiently
from fedclient.faults import NotApproved
from fedclient.identity.keyring import Asking, EnrolPort, Identity, Keyring, fingerprint_of, identity_of
from fedclient.identity.rpc import enrolment
from fedcore.identity.enrolled import Enrolled, Joining, Pending
from fedcore.identity.join import JoinString
from fedcore.identity.proof import key_of, prove
from fedcore.shell.console import Console
from fedcore.types import DeviceId

SHORTEST, LONGEST = 1.0, 60.0
"""Seconds between two looks whether the operator has approved, whatever the server says."""
