"""Framed messages over a socket: a JSON object plus raw byte blobs. Never pickle.

Frame: 8 bytes length of the header, header (JSON: {"m": message, "b": [blob lengths]}), then the blobs.
"""

import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from tools.codec import Json

_HEAD = struct.Struct("<Q")
MAX_HEADER_BYTES = 256 << 20  # a plan with big constants; anything above is an attack or a bug


class WireError(ConnectionError):
    """The other side closed, or sent something that is not a frame."""


@dataclass(frozen=True)
class Message:
    """A JSON object and the blobs that belong to it."""

    body: dict[str, Json]
    blobs: list[bytes] = field(default_factory=list)


def send(sock: socket.socket, body: dict[str, Json], blobs: list[Any] | None = None) -> None:
    """Send one frame; blobs are anything with the buffer protocol. Raises OSError when the other side is gone."""
    views = [memoryview(b).cast("B") for b in blobs or []]
    header = json.dumps({"m": body, "b": [v.nbytes for v in views]}).encode()
    sock.sendall(_HEAD.pack(len(header)) + header)
    for view in views:
        sock.sendall(view)


def receive(sock: socket.socket, *, max_blob_bytes: int = 1 << 36) -> Message:
    """Read one frame. Raises WireError at end of stream or on a malformed frame, TimeoutError as the socket's."""
    (length,) = _HEAD.unpack(_read(sock, _HEAD.size))
    if length > MAX_HEADER_BYTES:
        raise WireError(f"a header of {length} bytes; the limit is {MAX_HEADER_BYTES}")
    try:
        header = json.loads(bytes(_read(sock, length)))
        body, sizes = header["m"], header["b"]
        if not isinstance(body, dict) or not all(isinstance(n, int) and n >= 0 for n in sizes):
            raise WireError("malformed frame")
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"malformed frame: {error}") from error
    if sum(sizes) > max_blob_bytes:
        raise WireError(f"{sum(sizes)} bytes of blobs; the limit is {max_blob_bytes}")
    return Message(body, [bytes(_read(sock, n)) for n in sizes])


def _read(sock: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    done = 0
    while done < length:
        count = sock.recv_into(view[done:])
        if count == 0:
            raise WireError("the other side closed the connection")
        done += count
    return data
