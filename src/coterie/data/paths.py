"""Shorten paths to their last component, so that shared files do not reveal local folders."""

from __future__ import annotations

import re

# an absolute path in a word of a command: "/a/b", "out=/a/b", "folder:/a/b?label=y", "C:\a\b"
IN_WORD = re.compile(r"(?<![^=:,])(?:[A-Za-z]:)?[\\/][^?&]*")
# the folders of an absolute path in a sentence, up to the last slash; names may have spaces
NAME = r"[^\s\\/:;,'\"()]+"
IN_SENTENCE = re.compile(rf"(?<![\w.~\\/-])(?:[A-Za-z]:)?[\\/](?:{NAME}(?: {NAME})*[\\/])+")


def last_name(path: str) -> str:
    """Return the last component of a path: "sites" for /home/me/sites/."""
    names = [name for name in re.split(r"[\\/]", path) if name]
    if not names:
        return path
    return names[-1]


def shorten_spec(spec: str) -> str:
    """Shorten the path in the spec of a data set: folder:sites?label=y."""
    head, mark, query = spec.partition("?")
    maker, colon, first = head.partition(":")
    return f"{maker}{colon}{last_name(first)}{mark}{query}"


def shorten_word(word: str) -> str:
    """Shorten each absolute path in one word of a command line."""
    return IN_WORD.sub(lambda path: last_name(path[0]), word)


def shorten_sentence(sentence: str) -> str:
    """Shorten each absolute path in a sentence."""
    return IN_SENTENCE.sub("", sentence)
