"""Files that are not images, or that become very large when they are decoded."""

import functools
import struct
import zlib

from tests.pictures import encoded, picture


@functools.cache
def hostile_images():
    """{description: content}. Each has at most some hundred KB."""
    jpeg, png, gif, bmp, webp = (encoded(picture(60, 90), kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP"))
    frame = gif.index(b"\x2c\0\0\0\0")  # The image descriptor.
    return {
        "empty": b"",
        "text": b"Not an image, but a list of what to buy: milk, bread, three lemons.\n" * 9,
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>',
        "jpeg_cut_off": jpeg[: len(jpeg) // 2],
        "jpeg_header_only": jpeg[:20],
        "png_cut_off": png[: len(png) // 2],
        "png_bomb": png_bomb(30_000),
        "jpeg_of_65500": _with_size(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH", 65_500),
        "gif_of_65535": _with_size(_with_size(gif, 6, "<HH", 65_535), frame + 5, "<HH", 65_535),
        "gif_with_a_frame_of_65535": _with_size(gif, frame + 5, "<HH", 65_535),
        "bmp_of_2147483647": _with_size(bmp, 18, "<ii", 2**31 - 1),
        "webp_of_16383": _with_size(webp, webp.index(b"\x9d\x01\x2a") + 3, "<HH", 2**14 - 1),
    }


def png_bomb(side):
    """A valid PNG with side x side black 1-bit pixels (PNG, third edition, section 5.2 and 11.2)."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    row = bytes(1 + -(-side // 8))  # Each row starts with the number of its filter.
    compressor = zlib.compressobj(9)
    pixels = b"".join(compressor.compress(row * 1000) for _ in range(side // 1000)) + compressor.flush()
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _with_size(content, offset, order, side):
    """The file with another height and width in its header."""
    size = struct.pack(order, side, side)
    return content[:offset] + size + content[offset + len(size) :]
