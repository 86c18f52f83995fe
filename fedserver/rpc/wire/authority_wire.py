"""Convert tokens, devices and operators to protobuf, and back."""

from fedserver.authority.answers import Ended, IssuedOperator, Known, Withdrawn
from fedserver.rpc.wire.converter import Converter, time_from_now
from fedserver.store.identities.records import Operator, Successor, Terms, Token
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb

KEY = {"spki": "fingerprint"}
TERMS = Converter(Terms, pb.CreateTokenRequest, own={"ttl": time_from_now("ttl")})
TOKEN = Converter(Token, pb.Token)
SUCCESSOR = Converter(Successor, pb.Successor, names=KEY)
DEVICE = Converter(Known, pb.Device, names=KEY, parts=(SUCCESSOR,), words="token")
ENDED = Converter(Ended, pb.RevokeDeviceResponse, parts=(DEVICE,))
WITHDRAWN = Converter(Withdrawn, pb.WithdrawDeviceResponse, parts=(DEVICE,))
OPERATOR = Converter(Operator, pb.Operator, names={**KEY, "name": "operator"})
ISSUED = Converter(IssuedOperator, pb.AddOperatorResponse, parts=(OPERATOR,))
