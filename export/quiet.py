"""Silence for libraries that talk while they work. Exceptions pass through; nothing below an error is shown."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Mutes warnings, log records below ERROR and the progress bars of transformers and huggingface_hub."""
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
