"""Decodes videos of any format to upright RGB frames, one after the other, in bounded memory.

Frames are decoded by FFmpeg through PyAV. In addition, this module

- reads the first video stream that is not the cover image of a song;
- turns and mirrors frames by the display matrix (phones store upright videos rotated). Pixels that
  are not square stay as they are, as in the training of the networks;
- reports truncated and damaged files, which FFmpeg plays without a message: packets that are cut
  off or cannot be decoded, damaged frames, and a video that ends more than a second earlier than
  its header says;
- returns each frame once, whatever its time stamp. :func:`resampled` turns these frames into the
  frames that a player would show at a constant frame rate.

This module imports neither torch nor fairseq, since it runs in the decoding processes.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any, BinaryIO, Optional

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError, describe_error, file_errors, import_extra
from fairseq_mm.extract.media import MAX_PIXELS, AnyMedia, open_media

# tolerance at the end of a whole file: seconds, and share of its length
MAX_MISSING_SECONDS = 1.0
MAX_MISSING_PART = 0.01
# formats whose header has the length of the whole file, but not of its streams
WITH_LENGTH = ("matroska", "flv")


def import_av() -> ModuleType:
    """Import PyAV; if it is missing, raise UserError that says how to install it."""
    av = import_extra("av", extra="video", purpose="reading videos")
    # messages of FFmpeg would break a progress bar
    av.logging.set_level(None)
    return av


class VideoReader:
    """Decoder of the frames of one video, which can be read once.

    Args:
        video: Path, bytes, binary file, or :class:`.MediaFile`.
        keep_damaged: Return the frames of a damaged video that can be decoded.
        max_pixels: Largest number of pixels of a frame; a video with larger frames is refused.

    Attributes:
        num_frames: Number of frames decoded so far.
        seconds: Time from the start of the first frame to the end of the last frame decoded so far.
        damage: Description of the damage; empty if none has been found so far.
    """

    def __init__(
        self, video: AnyMedia, *, keep_damaged: bool = False, max_pixels: int = MAX_PIXELS
    ) -> None:
        self.video = video
        self.keep_damaged = keep_damaged
        self.max_pixels = max_pixels
        self.num_frames = 0
        self.damage = ""
        self._first_time = self._end_time = Fraction(0)
        self._has_sound_frame = False

    @property
    def seconds(self) -> float:
        return float(self._end_time - self._first_time)

    @property
    def frame_rate(self) -> float:
        """Average frames per second of the frames decoded so far; 0 if they have no duration."""
        return self.num_frames / self.seconds if self.seconds > 0 else 0.0

    def frames(self) -> Iterator[tuple[Fraction, Fraction, Image.Image]]:
        """Yield begin and end of each frame (seconds after the start of the first one), and its
        upright image in mode RGB. Messages of UserErrors do not name the video."""
        av = import_av()
        reading = file_errors(kinds=OSError)
        with reading, open_media(self.video) as file:
            with file_errors(problem="is no video, or its head or index is missing"):
                container = _open_container(av, file)
            with container:
                yield from self._decode_container(av, container)
        if not self.num_frames:
            raise UserError("has a video stream, but no frame that can be decoded.")

    def _decode_container(
        self, av: ModuleType, container: Any
    ) -> Iterator[tuple[Fraction, Fraction, Image.Image]]:
        form, types = container.format.name, sorted({stream.type for stream in container.streams})
        videos = [
            stream
            for stream in container.streams.video
            if not stream.disposition & av.stream.Disposition.attached_pic and stream.codec_context
        ]
        # FFmpeg opens images as videos of one frame
        if not videos or form.endswith("_pipe") or form == "image2":
            raise UserError(f"has no video ({', '.join(types) or 'nothing'} in the format {form}).")
        stream = videos[0]
        self._check_size(stream.codec_context.width, stream.codec_context.height)
        # the decoding processes use all cores already
        stream.codec_context.thread_count = 1
        rate = _fraction(stream.average_rate) or _fraction(stream.guessed_rate) or Fraction(25)
        time_base = _fraction(stream.time_base)
        for frame in self._decode_packets(av, container, stream):
            # raw streams have no time stamps
            begin = self._end_time if frame.pts is None else frame.pts * time_base
            duration = getattr(frame, "duration", None)  # missing in older versions of PyAV
            end = begin + (duration * time_base if duration else 1 / rate)
            if not self.num_frames:
                self._first_time = begin
            self._end_time = max(self._end_time, end) if self.num_frames else end
            self.num_frames += 1
            yield begin - self._first_time, end - self._first_time, self._to_image(av, frame)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            raise UserError(
                f"has {width} x {height} pixels, more than the {self.max_pixels:,} that are "
                f"decoded (--max-pixels {width * height} allows it)."
            )

    def _to_image(self, av: ModuleType, frame: Any) -> Image.Image:
        # again: the size may change within a stream
        self._check_size(frame.width, frame.height)
        pixels = frame.to_ndarray(format="rgb24")  # faster than to_image
        matrix = frame.side_data.get(av.sidedata.sidedata.Type.DISPLAYMATRIX)
        if matrix is not None:
            # pixel x, y is shown at (a x + c y, b x + d y)
            a, b, _, c, d = np.frombuffer(matrix, np.int32, 5)
            if abs(int(c)) > abs(int(a)):  # turned by a quarter
                pixels, a, d = pixels.transpose(1, 0, 2), c, b
            pixels = pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
        return Image.fromarray(np.ascontiguousarray(pixels))

    def _decode_packets(self, av: ModuleType, container: Any, stream: Any) -> Iterator[Any]:
        last: dict[int, Fraction] = {}  # number of a stream -> end of its last packet
        # of all streams: some formats give only the length of the whole file
        packets = container.demux()
        while True:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError, ValueError) as error:
                self._note_damage(f"cannot be read further ({describe_error(error)})")
                break
            if packet is None:
                break
            index = packet.stream.index
            if packet.pts is not None:
                end = (packet.pts + (packet.duration or 0)) * _fraction(packet.time_base)
                last[index] = max(last.get(index, end), end)
            if index != stream.index:
                continue
            if packet.is_corrupt:
                self._note_damage("a packet is cut off")
            try:
                frames = packet.decode()
            except (av.FFmpegError, ValueError) as error:
                # a recording may start between two key frames: its first packets are no damage
                if self._has_sound_frame:
                    self._note_damage(f"cannot be decoded there ({describe_error(error)})")
                continue
            for frame in frames:
                if not frame.is_corrupt:
                    self._has_sound_frame = True
                elif self._has_sound_frame:
                    self._note_damage("a frame has holes")
                yield frame
        self._check_end(container, stream, last)

    def _check_end(self, container: Any, stream: Any, last: dict[int, Fraction]) -> None:
        actual = last.get(stream.index)
        if actual is None:
            return
        if stream.duration:
            promised = stream.duration * _fraction(stream.time_base)
            begin = (stream.start_time or 0) * _fraction(stream.time_base)
        elif container.duration and container.format.name.startswith(WITH_LENGTH):
            promised = Fraction(container.duration, 1_000_000)
            begin = Fraction(container.start_time or 0, 1_000_000)
            actual = max(last.values())
        else:
            return
        missing = float(begin + promised - actual)
        if missing > MAX_MISSING_SECONDS + MAX_MISSING_PART * float(promised):
            self._note_damage(
                f"{missing:.1f} of the {float(promised):.1f} s that its head promises are not there"
            )

    def _note_damage(self, what: str) -> None:
        if not self.damage:
            self.damage = f"truncated or damaged after {self.num_frames} frames: {what}"
        if not self.keep_damaged:
            raise UserError(f"is {self.damage}.")


def resampled(
    frames: Iterable[tuple[Fraction, Fraction, Image.Image]], fps: float
) -> Iterator[Image.Image]:
    """Yield the images that a player shows at the times 0, 1 / fps, 2 / fps, ... (in seconds);
    ``frames`` is the result of :meth:`VideoReader.frames`."""
    # floats are not exact: 29.97003 means 30000/1001, and over a long video errors would add up
    step = 1 / Fraction(fps).limit_denominator(1001)
    shown: Optional[Image.Image] = None
    last_end = Fraction(0)
    time = Fraction(0)
    for begin, end, image in frames:
        while shown is not None and time < begin:
            yield shown
            time += step
        shown, last_end = image, end
    while shown is not None and time < last_end:
        yield shown
        time += step


def _open_container(av: ModuleType, file: BinaryIO) -> Any:
    # playlists and session descriptions would open other files and connections: no protocol has
    # this name
    options = {"protocol_whitelist": "none"}
    try:
        # by default, a title that is not UTF-8 makes a video unreadable
        return av.open(file, mode="r", metadata_errors="replace", options=options)
    except TypeError:  # PyAV 19 and newer accept any title
        return av.open(file, mode="r", options=options)


def _fraction(rational: Any) -> Fraction:
    # a number that PyAV does not know is None, or 0/1 in newer versions
    return Fraction(rational.numerator, rational.denominator) if rational else Fraction(0)
