"""Small bodies that unpack to very large ones, made without ever holding those."""

import bz2
import lzma
import zlib

_MIB = 1 << 20


def zlib_bomb(size: int) -> bytes:
    """A zlib stream of about ``size`` bytes of zeros: one flushed piece, again and again."""
    packer = zlib.compressobj(9)
    head = packer.compress(bytes(64 * _MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(bytes(64 * _MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + piece * (size // (64 * _MIB) - 1) + packer.flush()


def zstd_bomb(size: int) -> bytes:
    """A zstd frame of run-length blocks, four bytes for each 128 KiB (RFC 8878)."""
    block, most = 128 << 10, size // (128 << 10)
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([7 << 3])  # no checksum, no size; a window of 128 KiB
    run = (block << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (block << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return frame + run * (most - 1) + last


def bz2_bomb(size: int) -> bytes:
    """A bzip2 stream of so many zeros."""
    packer = bz2.BZ2Compressor(9)
    return b"".join(packer.compress(bytes(_MIB)) for _ in range(size // _MIB)) + packer.flush()


def lzma_bomb(size: int) -> bytes:
    """An xz stream of so many zeros."""
    packer = lzma.LZMACompressor(preset=0)
    return b"".join(packer.compress(bytes(_MIB)) for _ in range(size // _MIB)) + packer.flush()


def lzma_dictionary_bomb() -> bytes:
    """A few bytes that ask for a dictionary of 3 GiB."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 4096}]
    packed = bytearray(lzma.compress(b"x", filters=filters))
    place = packed.index(b"\x21\x01") + 2  # LZMA2's number, the size of its properties, and then the dictionary's
    packed[place] = 39
    head = bytes(packed[12 : 12 + (packed[12] + 1) * 4 - 4])
    packed[12 + len(head) : 12 + len(head) + 4] = zlib.crc32(head).to_bytes(4, "little")
    return bytes(packed)


def json_of_objects(count: int) -> bytes:
    """A list of so many empty objects."""
    return b"[" + b",".join([b"{}"] * count) + b"]"


def zlib_of_objects(count: int) -> bytes:
    """The same as a zlib stream, three bytes for a thousand objects, made without ever holding the list."""
    packer, part = zlib.compressobj(9), b"{}," * 100_000
    packed = [packer.compress(b"["), *(packer.compress(part) for _ in range(count // 100_000))]
    return b"".join([*packed, packer.compress(b"{}]"), packer.flush()])


GIB = 1 << 30
# content type of the compression, and what makes a bomb of it; only the first two are quick to make large
BOMBS = {
    "zlib": ("application/x-gzip", lambda: zlib_bomb(10 * GIB)),
    "zstd": ("application/zstd", lambda: zstd_bomb(10 * GIB)),
    "bzip2": ("application/x-bz2", lambda: bz2_bomb(96 * _MIB)),
    "lzma": ("application/x-lzma", lambda: lzma_bomb(96 * _MIB)),
    "lzma-dictionary": ("application/x-lzma", lzma_dictionary_bomb),
}
