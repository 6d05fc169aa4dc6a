"""Processes give the inputs of all files in order, never far ahead, and end with their parent."""

import os
import signal
import weakref

import numpy as np
import pytest
from toy_videos import frames_of, write_video

from fairseq_mm.errors import UserError
from fairseq_mm.extract import readers
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.media import MediaFile
from fairseq_mm.extract.readers import ClipReader, MediaEnd, decode_files

CLIPS = ClipPreprocessing(resize_size=8, size=8, frames=4, stride=4)
COUNTS = (9, 4, 13, 30, 5, 8, 21)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[MediaFile]:
    folder = tmp_path_factory.mktemp("videos")
    paths = [
        write_video(folder / f"{i}.mp4", frames_of(count, seed=i)) for i, count in enumerate(COUNTS)
    ]
    (folder / "bad.mp4").write_bytes(b"bad")
    paths.insert(2, str(folder / "bad.mp4"))
    return [MediaFile(os.path.basename(path), path) for path in paths]


def equal(one, other) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_give_what_one_process_gives(videos, workers):
    expected = list(decode_files(videos, ClipReader(CLIPS)))
    ends = [event for event in expected if not isinstance(event, np.ndarray)]
    frames = [int(end.fields[0]) if isinstance(end, MediaEnd) else "bad" for end in ends]
    assert frames == [9, 4, "bad", *COUNTS[2:]]
    found = list(decode_files(videos, ClipReader(CLIPS), workers=workers))
    assert len(found) == len(expected)
    assert all(equal(one, other) for one, other in zip(found, expected))


@pytest.fixture
def long_video(tmp_path) -> str:
    """400 frames."""
    return write_video(tmp_path / "long.mp4", frames_of(50, 32, 24).repeat(8, axis=0))


def test_of_a_long_video_a_clip_and_a_frame_are_held(long_video, monkeypatch):
    alive: set[int] = set()
    most = []
    image_of = readers.VideoReader._to_image

    def counted(reader, av, frame):
        image = image_of(reader, av, frame)
        number = reader.num_frames
        alive.add(number)
        weakref.finalize(image, alive.discard, number)
        most.append(len(alive))
        return image

    monkeypatch.setattr(readers.VideoReader, "_to_image", counted)
    assert sum(1 for _ in ClipReader(CLIPS).events(MediaFile("long", long_video))) == 100 + 1
    assert len(most) == 400
    assert max(most) <= 3


def test_a_killed_process_is_said_with_the_video(videos, monkeypatch):
    def killed(_reader, video):
        if video.key == "3.mp4":
            os.kill(os.getpid(), signal.SIGKILL)
        yield MediaEnd()

    monkeypatch.setattr(ClipReader, "events", killed)
    with pytest.raises(UserError, match=r"3\.mp4: the process that decoded it was killed, perhaps"):
        list(decode_files(videos, ClipReader(CLIPS), workers=1))


def test_whatever_decoding_raises_is_a_reason(videos, monkeypatch):
    for error, reason in (
        (MemoryError(), "cannot be read (MemoryError)."),
        (RuntimeError("broken"), "cannot be read (broken)."),
        (KeyError(), "cannot be read (KeyError)."),
    ):

        def failing(_reader, error=error):
            raise error

        monkeypatch.setattr(readers.VideoReader, "frames", failing)
        (event,) = ClipReader(CLIPS).events(videos[0])
        assert event.reason == reason
        assert event.source.size == os.path.getsize(videos[0].path)
