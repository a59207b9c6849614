"""Images as a model takes them, by the folder's preprocessor_config.json: what transformers does with Pillow and NumPy.

Where it has torchvision, it resizes a little differently.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import read_json

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp")
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF, _IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_COMMON = {"do_resize": True, "do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255}
_COMMON |= {"do_normalize": True, "do_convert_rgb": True, "crop_size": 224}
# What a file that leaves a setting out means, by the class that it names; a size that is a number is the shorter edge's
# where `edge` says so.
_KINDS: dict[str, dict[str, Any]] = {
    "CLIP": {"do_center_crop": True, "size": 224, "edge": True, "resample": 3, "stats": (_CLIP_MEAN, _CLIP_STD)},
    "Siglip": {"size": 224, "edge": False, "resample": 3, "stats": _HALF},
    "ViT": {"size": 224, "edge": False, "resample": 2, "stats": _HALF, "do_convert_rgb": False},
    "DeiT": {"do_center_crop": True, "size": 256, "edge": False, "resample": 3, "stats": _IMAGENET},
    "Bit": {"do_center_crop": True, "size": 224, "edge": True, "resample": 3, "stats": (_CLIP_MEAN, _CLIP_STD)},
}
_READ = {"size", "resample", "image_mean", "image_std", *_COMMON}
# Of a file written by transformers: what is about something else than one image's numbers, or says what is done anyway.
_NEUTRAL = {"image_processor_type", "feature_extractor_type", "processor_class", "data_format", "input_data_format"}
_NEUTRAL |= {"return_tensors", "default_to_square", "disable_grouping", "image_seq_length", "device", "backend"}
_NEUTRAL |= {"_valid_processor_keys", "_processor_class"}


class ImageProcessor:
    """What is done with an image of any size, by the folder's settings.

    Raises BertfuseError where there are none, or some that are not known here.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "preprocessor_config.json"
        found = read_json(file)
        if not found:
            file = folder / "processor_config.json"
            found = read_json(file).get("image_processor") or {}
        named = str(found.get("image_processor_type") or found.get("feature_extractor_type") or "none")
        kind = _KINDS.get(re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", named))
        if kind is None:
            raise BertfuseError(
                f"{file}: images are processed by {named}, which is not known here; known are {', '.join(_KINDS)}"
            )
        for key in sorted(set(found) - _READ - _NEUTRAL):
            if found[key] not in (None, False):
                raise BertfuseError(f"{file}: has {key}, which is not known here, so vectors may be others")
        said = {key: value for key, value in found.items() if value is not None}
        settings = _COMMON | {"image_mean": kind["stats"][0], "image_std": kind["stats"][1]} | kind | said
        self._settings = settings
        self._file = file
        self._edge, self._size = self._sizes(settings["size"], kind["edge"])
        self._crop = self._sizes(settings["crop_size"], False)[1]

    def _sizes(self, given: Any, edge: bool) -> tuple[bool, tuple[int, int]]:
        """Whether the size is the shorter edge's, and height and width."""
        if isinstance(given, dict):
            given = {key: value for key, value in given.items() if value is not None}
            if set(given) == {"shortest_edge"}:
                edge, given = True, given["shortest_edge"]
            elif set(given) == {"height", "width"}:
                edge, given = False, (given["height"], given["width"])
        sizes = (given, given) if isinstance(given, int) else given
        if not (isinstance(sizes, list | tuple) and len(sizes) == 2 and all(isinstance(size, int) for size in sizes)):
            raise BertfuseError(
                f"{self._file}: size {given!r} is not known here: give shortest_edge, or height and width"
            )
        return edge, (sizes[0], sizes[1])

    def __call__(self, image: Any, where: str = "image") -> np.ndarray:
        """float32 [3, height, width] of a PIL image, a path of one, or uint8 [height, width, 3].

        Raises BertfuseError, which starts with `where`, for what is no image.
        """
        return self.values(self.pixels(image, where))

    def pixels(self, image: Any, where: str = "image", most: int | None = None) -> np.ndarray:
        """uint8 [height, width, 3] of the image in the model's size; `values` makes numbers of it.

        Raises BertfuseError also where it would have more than `most` pixels on its way there, as a line of pixels has
        whose shorter edge becomes 224.
        """
        settings = self._settings
        picture = opened(image, where)
        if settings["do_convert_rgb"] or picture.mode != "RGB":
            picture = picture.convert("RGB")
        if settings["do_resize"]:
            height, width = self._size
            if self._edge:
                wide, high = picture.size
                short, long = height, int(height * max(wide, high) / min(wide, high))
                height, width = (long, short) if wide <= high else (short, long)
            if most is not None and height * width > most:
                raise BertfuseError(f"{where}: is {picture.size[0]} x {picture.size[1]}: too long for its shorter edge")
            picture = picture.resize((width, height), resample=settings["resample"])
        values = np.asarray(picture)
        if settings["do_center_crop"]:
            values = _cropped(values, *self._crop)
        return values

    def values(self, pixels: np.ndarray) -> np.ndarray:
        """float32 [3, height, width], what the model takes, of `pixels`."""
        settings = self._settings
        values = pixels.astype(np.float32)
        if settings["do_rescale"]:
            values = values * np.float32(settings["rescale_factor"])
        if settings["do_normalize"]:
            mean, std = (np.asarray(settings[key], np.float32) for key in ("image_mean", "image_std"))
            values = (values - mean) / std
        return np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)


def is_image(given: Any) -> bool:
    """Whether it is no text: a PIL image, an array, a pathlib.Path, or a string that is the path of an image's file."""
    if isinstance(given, str):
        return given.lower().endswith(SUFFIXES) and os.path.isfile(given)
    return not isinstance(given, tuple)


def opened(image: Any, where: str) -> Any:
    """The PIL image. Raises BertfuseError."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise BertfuseError(f"{where}: images need Pillow: pip install pillow") from error
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise BertfuseError(f"{where}: is {image.dtype} {list(image.shape)}; give uint8 [height, width, 3]")
        return Image.fromarray(image)
    if not isinstance(image, str | os.PathLike):
        raise BertfuseError(f"{where}: is a {type(image).__name__}; give a PIL image, a path or an array")
    try:
        with Image.open(image) as file:
            file.load()
            return file.copy()
    except FileNotFoundError as error:
        raise BertfuseError(f"{where}: {image}: no such file; check the path") from error
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise BertfuseError(f"{where}: {image}: cannot be read as an image: {error}") from error


def _cropped(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of [h, w, 3]; around an image that is smaller than that are zeros."""
    pads = [max(0, size - given) for size, given in zip((height, width), values.shape, strict=False)]
    if any(pads):
        # The odd line is above and to the left.
        values = np.pad(values, [((pad + 1) // 2, pad // 2) for pad in pads] + [(0, 0)])
    top, left = (values.shape[0] - height) // 2, (values.shape[1] - width) // 2
    return values[top : top + height, left : left + width]
