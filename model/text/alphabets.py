"""The two ways in which tokens are written in a vocabulary: their bytes as characters, or a mark for each space."""

from __future__ import annotations

import re
from typing import Protocol

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


class Alphabet(Protocol):
    """A way to write tokens. One that has any of `nuls` in its name stands for a NUL, among others."""

    nuls: tuple[str, ...]

    def bytes_of(self, name: str) -> bytes:
        """Gives the bytes that a token of this name stands for, which may be part of a character."""
        ...


def alphabet_of(tokenizer: Tokenizer) -> Alphabet:
    """Gives the alphabet in which a tokenizer's tokens are written."""
    return ByteAlphabet() if b'"ByteLevel"' in tokenizer.decoder.__getstate__() else SpaceAlphabet()


class ByteAlphabet:
    """The alphabet of byte-level BPE: printable bytes as themselves, the others as characters from 256 on."""

    nuls: tuple[str, ...] = (chr(256),)

    def __init__(self) -> None:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + n): byte for n, byte in enumerate(others)}

    def bytes_of(self, name: str) -> bytes:
        if self._bytes.keys() >= set(name):
            return bytes(self._bytes[character] for character in name)
        return name.encode()  # one that was added as it stands


class SpaceAlphabet:
    """The alphabet of SentencePiece: a mark is a space, and a byte of what is in no other token a name of its own."""

    nuls: tuple[str, ...] = ("<0x00>", "\0")

    def bytes_of(self, name: str) -> bytes:
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return name.replace(_SPACE, " ").encode()
