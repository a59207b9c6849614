"""The messages of `tei.proto` as classes, of what protoc made of it: any release of protobuf reads that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tei.v1"
COMPILED = Path(__file__).with_name("tei.binpb")


class Interface:
    """The interface's services and messages, in a pool of their own: a client in the same process may have its own."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
            self._pool.AddSerializedFile(file.SerializeToString())
            self.file = self._pool.FindFileByName(file.name)

    def __getattr__(self, name: str) -> Any:
        """The class of the message of that name."""
        try:
            made = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        except KeyError:
            raise AttributeError(name) from None
        setattr(self, name, made)
        return made


TEI = Interface()
