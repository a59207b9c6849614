"""The process that reads images: what a hostile one does to a library, it does here. Started by pictures.py."""

from __future__ import annotations

import io
import os
import resource
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from PIL import Image, UnidentifiedImageError

from bertfuse.errors import BertfuseError, first_line
from bertfuse.inference.image_processing import ImageProcessor
from bertfuse.model_folder.files import folder_of

from .child import configuration

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")  # others start programs, as EPS does, or are hardly used
# Bytes for each pixel that may be: of an image as it is, of one converted, of one resized.
BYTES = 16


class _TooLarge(Exception):
    pass


def _main(given: BinaryIO, out: BinaryIO) -> None:
    settings = configuration()
    most = settings["max_pixels"]
    processors = {
        index: (ImageProcessor(folder_of(Path(path))), tuple(size))
        for index, (path, size) in settings["models"].items()
    }
    Image.MAX_IMAGE_PIXELS = most
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    _limit_memory(most)
    while line := given.readline():
        asked = orjson.loads(line)
        told, pixels = _answer(processors, given.read(asked["size"]), asked, most)
        out.write(orjson.dumps(told | {"size": len(pixels)}) + b"\n" + pixels)
        out.flush()


def _answer(processors: dict[str, Any], image: bytes, asked: dict[str, Any], most: int) -> tuple[dict[str, Any], bytes]:
    where, (processor, wanted) = asked["where"], processors[asked["model"]]
    try:
        picture = _opened(image, asked["left"])
        made = processor.pixels(picture, where, most)
        if made.shape[:2] != wanted:
            size = "{} x {}".format(*reversed(made.shape[:2]))
            raise BertfuseError(f"{where}: is made {size}, and the model takes {wanted[1]} x {wanted[0]}")
    except (_TooLarge, Image.DecompressionBombError, Image.DecompressionBombWarning):
        why = f"{where}: with it the request's images have more than {most} pixels: send smaller ones, or fewer."
        return {"error": why, "status": 413}, b""
    except BertfuseError as error:
        return {"error": f"{first_line(error).rstrip('.')}.", "status": 400}, b""
    except MemoryError:
        return {"error": f"{where}: takes more memory than there is for an image.", "status": 413}, b""
    except Exception as error:  # Pillow raises what comes: SyntaxError, struct.error, IndexError
        why = first_line(error).rstrip(".")
        if isinstance(error, UnidentifiedImageError):  # which names an object of ours
            why = f"{', '.join(FORMATS)} are known"
        return {"error": f"{where} cannot be read as an image: {why}.", "status": 400}, b""
    return {"shape": made.shape, "pixels": picture.size[0] * picture.size[1]}, np.ascontiguousarray(made).tobytes()


def _opened(image: bytes, left: int) -> Image.Image:
    """The image, read; its size is looked at before."""
    picture = Image.open(io.BytesIO(image), formats=FORMATS)
    if picture.size[0] * picture.size[1] > left:
        raise _TooLarge
    picture.load()
    return picture


def _limit_memory(pixels: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = used + BYTES * pixels + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    with os.fdopen(0, "rb") as given, os.fdopen(1, "wb") as out:
        _main(given, out)
