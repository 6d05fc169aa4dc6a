"""Small videos for tests, made with PyAV."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Optional, Union

import numpy as np
import pytest

av = pytest.importorskip("av")


def frames_of(num_frames: int, width: int = 48, height: int = 36, seed: int = 0) -> np.ndarray:
    """A grey level and a pattern that move: ``[num_frames, height, width, 3]`` uint8."""
    y, x = np.mgrid[:height, :width]
    times = np.arange(num_frames)[:, None, None]
    waves = [np.sin(0.2 * x + 0.1 * y * (c + 1) + 0.3 * times + seed) for c in range(3)]
    return np.rint(127 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def write_video(
    path: Union[str, Path],
    frames: np.ndarray,
    *,
    codec: str = "mpeg4",
    fps: float = 25,
    times: Optional[list[int]] = None,
    pix_fmt: str = "yuv420p",
    with_sound: bool = False,
    options: Optional[dict[str, str]] = None,
) -> str:
    """
    Args:
        path: its suffix decides about the container.
        frames: ``[frames, height, width, 3]`` uint8.
        codec: of FFmpeg.
        fps: frames a second.
        times: of the frames, in milliseconds, instead of a constant rate.
        pix_fmt: of the codec.
        with_sound: two channels, as long as the video.
        options: of the container.
    """
    with av.open(str(path), "w", options=options or {}) as container:
        rate = Fraction(fps).limit_denominator(1001)
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        stream.bit_rate = 400_000
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound = container.add_stream("aac", rate=8000) if with_sound else None
        for i, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = i if times is None else times[i]
            frame.time_base = 1 / rate if times is None else Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            write_sound(container, sound, len(frames) / fps)
    return str(path)


def write_sound(container, stream, seconds: float) -> None:
    silence = np.zeros((1, int(8000 * seconds)), dtype=np.float32)
    frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
    frame.sample_rate = 8000
    container.mux(stream.encode(frame))
    container.mux(stream.encode())


def set_display_matrix(path: str, numbers: tuple[int, int, int, int]) -> None:
    """Writes a matrix into the track of an MP4 file: pixel x, y is shown at (ax + cy, bx + dy)."""
    content = bytearray(Path(path).read_bytes())
    place = content.index(b"tkhd") + 4 + 40  # version 0: the matrix follows 40 bytes of fields
    a, b, c, d = (number << 16 for number in numbers)
    content[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    Path(path).write_bytes(bytes(content))
