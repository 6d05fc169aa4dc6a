"""Videos of all kinds are decoded upright, frame by frame; truncated ones are noticed."""

import tarfile
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from toy_videos import av, frames_of, set_display_matrix, write_sound, write_video

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import VIDEOS, list_images
from fairseq_mm.extract.videos import VideoReader, resampled

N, WIDTH, HEIGHT = 23, 48, 36


def read(video, **options) -> np.ndarray:
    """``[frames, height, width, 3]``."""
    frames = VideoReader(video, **options).frames()
    return np.stack([np.asarray(image) for _begin, _end, image in frames])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def sound_video(folder) -> str:
    return write_video(folder / "sound.mp4", frames_of(N), with_sound=True)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "mpeg4"),
        ("a.mkv", "ffv1"),
        ("a.webm", "libvpx-vp9"),
        ("a.avi", "mpeg4"),
        ("a.ts", "mpeg2video"),
        ("a.mov", "libx264"),
    ],
)
def test_all_frames_come_in_their_order(folder, name, codec):
    written = frames_of(N)
    try:
        path = write_video(folder / name, written, codec=codec)
    except ValueError as error:  # a build of FFmpeg without this encoder
        pytest.skip(str(error))
    found = read(path).astype(int)
    assert found.shape == written.shape
    assert np.abs(found - written).mean() < 12
    # each frame comes nearer to its own original than to its neighbours'
    for i in range(N - 1):
        own, other = (np.abs(found[i] - written[k]).mean() for k in (i, i + 1))
        assert own < other


def test_content_and_members_of_archives_are_read_in_place(folder, sound_video):
    expected = read(sound_video)
    with open(sound_video, "rb") as file:
        np.testing.assert_array_equal(read(file.read()), expected)
    other = write_video(folder / "other.mp4", frames_of(5, seed=2))
    with tarfile.open(folder / "all.tar", "w") as archive:
        archive.add(other, "first.mp4")
        archive.add(sound_video, "in/second.mp4")
        archive.add(other, "third.txt")
    first, second = list_images([str(folder / "all.tar")], ids="stem", kind=VIDEOS)
    assert (first.key, second.key) == ("first", "second")
    np.testing.assert_array_equal(read(second), expected)
    assert len(read(first)) == 5


ORIENTATIONS = {  # numbers a, b, c, d of the display matrix -> frames as a player shows them
    (1, 0, 0, 1): lambda frames: frames,
    (-1, 0, 0, 1): lambda frames: frames[:, :, ::-1],
    (1, 0, 0, -1): lambda frames: frames[:, ::-1],
    (-1, 0, 0, -1): lambda frames: frames[:, ::-1, ::-1],
    (0, 1, 1, 0): lambda frames: frames.swapaxes(1, 2),
    (0, 1, -1, 0): lambda frames: frames.swapaxes(1, 2)[:, :, ::-1],
    (0, -1, 1, 0): lambda frames: frames.swapaxes(1, 2)[:, ::-1],
    (0, -1, -1, 0): lambda frames: frames.swapaxes(1, 2)[:, ::-1, ::-1],
}


def remux(path: str, target) -> str:
    with av.open(path) as source, av.open(str(target), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    return str(target)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("numbers", ORIENTATIONS)
def test_frames_are_turned_and_mirrored_by_all_orientations(tmp_path, suffix, numbers):
    path = write_video(tmp_path / f"v{suffix.replace('mkv', 'mp4')}", frames_of(3))
    plain = read(path)
    set_display_matrix(path, numbers)
    if suffix == ".mkv":
        path = remux(path, tmp_path / "v.mkv")
    np.testing.assert_array_equal(read(path), ORIENTATIONS[numbers](plain))


def test_frames_of_a_variable_rate_are_taken_once_each(folder):
    times = [0, 40, 80, 500, 1000, 1040]
    path = write_video(folder / "vfr.mkv", frames_of(6), times=times)
    reader = VideoReader(path)
    found = [begin for begin, _end, _image in reader.frames()]
    assert found == [Fraction(time, 1000) for time in times]
    assert 5 < reader.frame_rate < 6


def test_resampling_shows_what_a_player_shows():
    def shown(times, fps, last=Fraction(1, 10)):
        ends = [*times[1:], times[-1] + last]
        frames = (
            (begin, end, Image.new("L", (1, 1), i))
            for i, (begin, end) in enumerate(zip(times, ends))
        )
        return [image.getpixel((0, 0)) for image in resampled(frames, fps)]

    tenths = [Fraction(i, 10) for i in range(8)]
    assert shown(tenths, 10) == list(range(8))
    assert shown(tenths, 5) == [0, 2, 4, 6]
    assert shown(tenths, 20) == [i // 2 for i in range(16)]
    # 0, 0.3, 0.6: shown at 0, 0.25, 0.5, 0.75
    assert shown(tenths, 4) == [0, 2, 5, 7]
    assert shown([Fraction(0), Fraction(1, 10), Fraction(1)], 4) == [0, 1, 1, 1, 2]
    assert shown([Fraction(0)], 1) == [0]
    ntsc = [Fraction(1001 * i, 30000) for i in range(300)]
    assert len(shown(ntsc, 29.97, Fraction(1001, 30000))) == 300


@pytest.fixture(scope="module")
def long_videos(folder) -> dict[str, str]:
    """Of 10 seconds, with key frames in between, and their index in front."""
    frames = frames_of(250)
    return {
        "mp4": write_video(folder / "whole.mp4", frames, options={"movflags": "faststart"}),
        "mkv": write_video(folder / "whole.mkv", frames),
        "avi": write_video(folder / "whole.avi", frames),
        "flv": write_video(folder / "whole.flv", frames, codec="flv"),
    }


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "flv"])
def test_a_truncated_video_is_noticed_and_kept_on_demand(folder, long_videos, suffix):
    with open(long_videos[suffix], "rb") as file:
        content = file.read()
    assert len(read(content)) == 250
    cut = content[: len(content) * 6 // 10]
    with pytest.raises(UserError, match=r"^is truncated or damaged after \d+ frames: "):
        read(cut)
    reader = VideoReader(cut, keep_damaged=True)
    count = sum(1 for _ in reader.frames())
    assert 100 < count < 200
    assert reader.num_frames == count
    assert reader.damage.startswith("truncated or damaged after ")


def test_a_damaged_video_is_noticed_and_kept_on_demand(long_videos):
    with open(long_videos["mp4"], "rb") as file:
        content = bytearray(file.read())
    middle = len(content) * 6 // 10
    content[middle : middle + 4000] = bytes(4000)
    with pytest.raises(UserError, match="is truncated or damaged after "):
        read(bytes(content))
    reader = VideoReader(bytes(content), keep_damaged=True)
    assert 200 < sum(1 for _ in reader.frames()) <= 250
    assert reader.damage


def test_what_is_no_video_is_said(tmp_path, sound_video):
    with open(sound_video, "rb") as file:
        content = file.read()
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.jpg")
    with av.open(str(tmp_path / "song.m4a"), "w") as container:
        write_sound(container, container.add_stream("aac", rate=8000), 1)
    no_video = "^is no video, or its head or index is missing"
    for video, message in (
        (b"", no_video),
        (b"a text, not a video " * 100, no_video),
        (content[: len(content) // 2], no_video),  # its index stands at the end
        (str(tmp_path / "absent.mp4"), "No such file or directory"),
        (str(tmp_path), "^is a folder"),
        (str(tmp_path / "photo.jpg"), "^has no video .video in the format"),
        (str(tmp_path / "song.m4a"), "^has no video .audio in the format"),
    ):
        with pytest.raises(UserError, match=message):
            read(video)
    with pytest.raises(UserError, match=r"48 x 36 pixels, more than the 1,000 .*--max-pixels 1728"):
        read(sound_video, max_pixels=1000)


SESSION = """v=0
o=- 0 0 IN IP4 127.0.0.1
s=x
c=IN IP4 127.0.0.1
t=0 0
m=video 40000 RTP/AVP 96
a=rtpmap:96 H264/90000
"""


@pytest.mark.parametrize(
    "content", ["ffconcat version 1.0\nfile own.mp4\n", SESSION], ids=["playlist", "session"]
)
def test_a_file_opens_no_other_file_and_no_connection(content, tmp_path, monkeypatch):
    """FFmpeg would show the frames of the other file, or wait for packets of the network."""
    write_video(tmp_path / "own.mp4", frames_of(3))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"is no video, or its head or index is missing"):
        list(VideoReader(content.encode()).frames())
