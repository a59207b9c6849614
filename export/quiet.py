"""Silence for libraries that talk while they work. Exceptions pass through; nothing below an error is shown."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from bertfuse.garbage import only_new_garbage


@contextmanager
def quiet() -> Iterator[None]:
    """Mutes warnings, log records below ERROR and the progress bars of transformers and huggingface_hub.

    Garbage is not looked for: importing torch and exporting make millions of objects, hardly any of them garbage, and
    looking took an eighth of the time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    # huggingface_hub reads the variable when it is imported, which may happen inside this block.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    previous = logging.root.manager.disable
    logging.disable(max(previous, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers.utils import logging as transformers_logging

            bars = transformers_logging.is_progress_bar_enabled()
            transformers_logging.disable_progress_bar()
            try:
                yield
            finally:
                if bars:
                    transformers_logging.enable_progress_bar()
    finally:
        logging.disable(previous)
        gc.set_threshold(*thresholds)


@contextmanager
def beside_torch() -> Iterator[None]:
    """`quiet`, with torch and transformers imported, and without looking for garbage among what they are made of."""
    with quiet():
        import torch  # noqa: F401
        import transformers.modeling_utils  # noqa: F401

        with only_new_garbage():
            yield
