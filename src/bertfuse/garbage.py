"""Garbage collection beside libraries that make millions of objects."""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Python 3.12 starts with a few hundred frozen objects; a program that froze its own has more, and keeps them.
_AT_START = 10_000

_lock = threading.Lock()
_inside = 0
_foreign = False
_at_exit = False


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Within it garbage is looked for among objects that are made from here on; the outermost of nested ones ends it.

    With torch and transformers imported one look at everything takes 0.3 s: of MiniLM's 14 s of `optimize` 1.8 went on
    looking, and 0.7 do with this. Nor does the process look at them when it
    ends: that took 1.6 s of the 9 in which a first Encoder embedded a sentence.
    """
    global _inside, _foreign, _at_exit
    with _lock:
        if not _at_exit:
            atexit.register(gc.freeze)
            _at_exit = True
        if not _inside:
            _foreign = gc.get_freeze_count() > _AT_START
        _inside += 1
        if not _foreign:
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and not _foreign:
                gc.unfreeze()
