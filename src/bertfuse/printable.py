"""Names come from files that anybody may have made: what of them could steer a terminal is written out."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with everything but lines, tabs and printable characters as an escape: "\\\\x1b[2J", "\\\\u202e"."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
