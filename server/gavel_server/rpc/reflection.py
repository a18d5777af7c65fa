"""Server reflection, v1 and v1alpha: callers like grpcurl and ghz learn the contract without its files.

grpcio-reflection implements v1alpha. The versions differ in the package's name alone, so v1's descriptor is made from v1alpha's, and the
same servicer serves both. `ghz --call` and `grpcurl describe` ask for a method by its name, which protobuf's pool does not find; the pool
here does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection, reflection_pb2

_SERVICE: Final = "ServerReflection"
_PACKAGE_V1ALPHA: Final = "grpc.reflection.v1alpha"
_PACKAGE_V1: Final = "grpc.reflection.v1"

_pool: Final = descriptor_pool.Default()


def _v1() -> Any:
    """Return the descriptor of grpc.reflection.v1.ServerReflection."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = f"{_PACKAGE_V1.replace('.', '/')}/reflection.proto"
    text = text_format.MessageToString(file).replace(_PACKAGE_V1ALPHA, _PACKAGE_V1)
    _pool.AddSerializedFile(text_format.Parse(text, FileDescriptorProto()).SerializeToString())
    return _pool.FindServiceByName(f"{_PACKAGE_V1}.{_SERVICE}")


V1ALPHA: Final[Any] = reflection_pb2.DESCRIPTOR.services_by_name[_SERVICE]
V1: Final[Any] = _v1()


class _PoolWithMethods:
    """protobuf's default pool, where methods are found by their full names too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802  # the pool's name
        """Return the file that defines a type, a service or a method. Raises KeyError."""
        try:
            return _pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return _pool.FindServiceByName(service).methods_by_name[method].containing_service.file


class Reflection:
    """Servicer of both versions: the requests and answers of v1 have the form of v1alpha's."""

    def __init__(self, service_names: Sequence[str]) -> None:
        pool: Any = _PoolWithMethods()
        self._servicer: Final = reflection.aio.ReflectionServicer(service_names, pool)

    async def ServerReflectionInfo(  # noqa: N802  # gRPC's name
        self, requests: AsyncIterator[Message], context: Any
    ) -> AsyncGenerator[reflection_pb2.ServerReflectionResponse, None]:
        """Answer each request of the stream."""
        answers: Any = self._servicer.ServerReflectionInfo(_in_v1alpha(requests), context)
        async with aclosing(answers):
            async for answer in answers:
                yield answer


async def _in_v1alpha(requests: AsyncIterator[Message]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for request in requests:
        yield reflection_pb2.ServerReflectionRequest.FromString(request.SerializeToString())
