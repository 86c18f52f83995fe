"""Rules of the contract, checked on a descriptor set with source information: python proto_rules.py FILE

Every message, field, oneof, enum, enum value, service and call has a comment; a field's comment says who
sets it and what unset means, unless it is a member of a oneof; names follow buf's STANDARD rules. These
rules need only protobuf; buf, where it is available, checks its own rules in addition.
"""

import re
import sys
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

MESSAGE, ENUM, SERVICE = 4, 5, 6  # field numbers in FileDescriptorProto
FIELD, NESTED, VALUE, METHOD, ONEOF = 2, 3, 2, 2, 8  # field numbers one level further down


class File:
    """One file of the contract, and what is wrong with it."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self.comments = {
            tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location
        }

    def faults(self) -> Iterator[str]:
        directory = self.file.name.rpartition("/")[0].replace("/", ".")
        if self.file.package != directory or not re.search(r"\.v\d+$", self.file.package):
            yield f"package {self.file.package!r} is not the folder's, or has no version"
        if self.file.syntax != "proto3":
            yield "the syntax is not proto3"
        for index, message in enumerate(self.file.message_type):
            yield from self.message(message, (MESSAGE, index))
        for index, enum in enumerate(self.file.enum_type):
            yield from self.enum(enum, (ENUM, index))
        for index, service in enumerate(self.file.service):
            yield from self.service(service, (SERVICE, index))

    def uncommented(self, name: str, path: tuple[int, ...]) -> Iterator[str]:
        if not self.comments.get(path):
            yield f"{name} has no comment"

    def message(self, message: DescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield from self.uncommented(message.name, path)
        for index, field in enumerate(message.field):
            name, place = f"{message.name}.{field.name}", (*path, FIELD, index)
            yield from self.uncommented(name, place)
            if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", field.name):
                yield f"{name} is not in lower_snake_case"
            arm = field.HasField("oneof_index") and not field.proto3_optional
            comment = self.comments.get(place, "")
            if not arm and "set by" not in (self.comments.get(path, "") + comment).lower():
                yield f"{name}: the comment does not say who sets it"
            if not arm and "Unset:" not in comment:
                yield f"{name}: the comment does not say what unset means"
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        for index, oneof in enumerate(message.oneof_decl):
            if index not in synthetic:
                yield from self.uncommented(f"{message.name}.{oneof.name}", (*path, ONEOF, index))
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from self.message(nested, (*path, NESTED, index))

    def enum(self, enum: EnumDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield from self.uncommented(enum.name, path)
        prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper()
        for index, value in enumerate(enum.value):
            yield from self.uncommented(f"{enum.name}.{value.name}", (*path, VALUE, index))
            if not value.name.startswith(f"{prefix}_"):
                yield f"{enum.name}.{value.name} does not start with {prefix}_"
        if (enum.value[0].name, enum.value[0].number) != (f"{prefix}_UNSPECIFIED", 0):
            yield f"{enum.name} does not begin with {prefix}_UNSPECIFIED = 0"

    def service(self, service: ServiceDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield from self.uncommented(service.name, path)
        if not service.name.endswith("Service"):
            yield f"{service.name} does not end with Service"
        for index, method in enumerate(service.method):
            name = f"{service.name}.{method.name}"
            yield from self.uncommented(name, (*path, METHOD, index))
            for found, suffix in ((method.input_type, "Request"), (method.output_type, "Response")):
                if found != f".{self.file.package}.{method.name}{suffix}":
                    yield f"{name}: {found} should be {method.name}{suffix}"


def main(path: str) -> int:
    with open(path, "rb") as stream:
        contract = FileDescriptorSet.FromString(stream.read())
    files = [file for file in contract.file if not file.name.startswith("google/")]
    faults = [f"{file.name}: {fault}" for file in files for fault in File(file).faults()]
    sys.stdout.write("\n".join(faults or [f"our own rules: {len(files)} files pass"]) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
