"""Protobuf's wire format, as far as large initialisers need it: written one by one, and read without their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

_DELIMITED = 2
_FIXED = {1: 8, 5: 4}


def length_prefix(message: Any, field: str, size: int) -> bytes:
    """Tag and length of a length-delimited field."""
    return _varint(_number(message, field) << 3 | _DELIMITED) + _varint(size)


def without_large_data(file: memoryview, least: int) -> tuple[bytes, dict[int, tuple[int, int]]] | None:
    """A serialised ModelProto without the raw data, from `least` bytes on, of its graph's initialisers; and where in
    `file` the data of each of these stands, (begin, end) by the initialiser's index.

    None for a message that is broken or written in another way than anybody writes it: to be parsed whole.
    """
    try:
        graphs = [field for field in _fields(file, 0, len(file)) if field[0] == _GRAPH]
        if len(graphs) != 1:
            return None
        _, wire, first, begin, end = graphs[0]
        if wire != _DELIMITED:
            return None
        graph, places = _graph_without_data(file, begin, end, least)
    except (IndexError, ValueError):
        return None
    head = length_prefix(onnx.ModelProto, "graph", len(graph))
    return b"".join([file[:first], head, graph, file[end:]]), places


def _graph_without_data(file: memoryview, begin: int, end: int, least: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
    parts: list[Any] = []
    places: dict[int, tuple[int, int]] = {}
    done, index = begin, -1
    for number, wire, first, start, stop in _fields(file, begin, end):
        if number != _INITIALIZER or wire != _DELIMITED:
            continue
        index += 1
        if stop - start < least:
            continue
        data = [field for field in _fields(file, start, stop) if field[0] == _RAW_DATA]
        if len(data) != 1 or data[0][1] != _DELIMITED or data[0][4] - data[0][3] < least:
            continue
        _, _, before, *place = data[0]
        rest = bytes(file[start:before]) + bytes(file[place[1] : stop])
        parts += [file[done:first], length_prefix(onnx.GraphProto, "initializer", len(rest)), rest]
        places[index] = place[0], place[1]
        done = stop
    return b"".join([*parts, file[done:end]]), places


def _fields(file: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, wire type, and where the field, its payload and what follows begin. ValueError where it is not whole."""
    while at < end:
        first = at
        tag, at = _read_varint(file, at)
        wire, size = tag & 7, 0
        if wire == _DELIMITED:
            size, at = _read_varint(file, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        elif wire == 0:
            size = _read_varint(file, at)[1] - at
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > end:
            raise ValueError("cut short")
        yield tag >> 3, wire, first, at, at + size
        at += size


def _read_varint(file: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = file[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(message: Any, field: str) -> int:
    return message.DESCRIPTOR.fields_by_name[field].number


_GRAPH, _INITIALIZER = _number(onnx.ModelProto, "graph"), _number(onnx.GraphProto, "initializer")
_RAW_DATA = _number(onnx.TensorProto, "raw_data")
