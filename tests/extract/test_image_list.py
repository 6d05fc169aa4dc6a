"""Inputs of every kind become images with ids, in a fixed order."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import by_any_key, list_folder, list_images


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    for name in ("b.jpg", "a.PNG", "sub/c.webp", "sub/deeper/b2.jpeg", "notes.txt", ".hidden.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def keys(images):
    return [image.key for image in images]


def content(image) -> bytes:
    with image.open() as file:
        return file.read()


def test_a_folder_is_searched_in_alphabetical_order(folder):
    images = list_images([str(folder)])
    assert keys(images) == ["a.PNG", "b.jpg", "c.webp", "b2.jpeg"]
    assert [content(image) for image in images][2] == b"sub/c.webp"
    assert keys(list_images([str(folder)], ids="stem")) == ["a", "b", "c", "b2"]
    by_path = keys(list_images([str(folder)], ids="path"))
    assert by_path == ["a.PNG", "b.jpg", "sub/c.webp", "sub/deeper/b2.jpeg"]


def test_links_in_a_circle_end(folder):
    (folder / "sub" / "up").symlink_to(folder)
    assert len(list_images([str(folder)])) == 4


def test_an_archive_is_read_in_place(folder, tmp_path):
    path = tmp_path / "all.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "top")
    images = list_images([str(path)], ids="path")
    assert keys(images) == ["top/a.PNG", "top/b.jpg", "top/sub/c.webp", "top/sub/deeper/b2.jpeg"]
    assert [content(p) for p in images][3] == b"sub/deeper/b2.jpeg"
    assert images[0].name == f"{path}:top/a.PNG"


def add(archive, name, content=b"", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def test_the_last_member_of_a_name_counts_and_links_are_followed(tmp_path):
    path = tmp_path / "all.tar"
    with tarfile.open(path, "w") as archive:
        add(archive, "a.png", b"first")
        add(archive, "hard.png", type=tarfile.LNKTYPE, linkname="a.png")
        add(archive, "./a.png", b"second")
        add(archive, "b.png", b"a file")
        add(archive, "b.png", type=tarfile.DIRTYPE)
        add(archive, "sub/soft.png", type=tarfile.SYMTYPE, linkname="../a.png")
        add(archive, "chain.png", type=tarfile.SYMTYPE, linkname="sub/soft.png")
        add(archive, "circle.png", type=tarfile.SYMTYPE, linkname="circle.png")
        add(archive, "outside.png", type=tarfile.SYMTYPE, linkname="/etc/hostname")
        add(archive, "c.png", type=tarfile.SYMTYPE, linkname="a.png")
        add(archive, "c.png", b"no link")
    unpacked = tmp_path / "unpacked"
    subprocess.run(["mkdir", unpacked], check=True)
    subprocess.run(["tar", "-C", unpacked, "--exclude=b.png", "-xf", path], check=True)
    found = {image.key: content(image) for image in list_images([str(path)], ids="path")}
    assert found == {
        "a.png": b"second",
        "c.png": b"no link",
        "chain.png": b"second",
        "hard.png": b"first",
        "sub/soft.png": b"second",
    }
    assert found == {key: (unpacked / key).read_bytes() for key in found}


def test_a_compressed_archive_is_refused(folder, tmp_path):
    path = tmp_path / "all.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "top")
    with pytest.raises(UserError, match=r"all\.tar\.gz: .*is no uncompressed tar archive"):
        list_images([str(path)])


def test_jsonl_names_one_image_or_several(folder):
    path = folder / "data.jsonl"
    lines = [{"image": "b.jpg"}, {"images": ["sub/c.webp", "b.jpg"]}, {"image": "a.PNG"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert keys(list_images([str(path)])) == ["b.jpg", "c.webp", "a.PNG"]


@pytest.mark.parametrize("line", ['{"file": "b.jpg"}', '{"image": 3}', "{}"])
def test_a_line_without_image_is_named(folder, line):
    path = folder / "data.jsonl"
    path.write_text('{"image": "b.jpg"}\n' + line + "\n")
    with pytest.raises(UserError, match=r'data\.jsonl:2: must have "image"'):
        list_images([str(path)])


def test_one_id_for_two_images_names_both(folder):
    (folder / "sub" / "b.jpg").write_bytes(b"another")
    message = r"the id 'b\.jpg' stands for two images: .*photos/b\.jpg and .*photos/sub/b\.jpg"
    with pytest.raises(UserError, match=message):
        list_images([str(folder)])
    assert len(list_images([str(folder)], ids="path")) == 5


@pytest.mark.parametrize("name", [b"a\tb.jpg", b"a\nb.jpg", b"caf\xe9.jpg"])
def test_names_that_cannot_be_ids_are_refused_before_the_run(folder, name):
    with open(os.path.join(os.fsencode(folder), name), "wb"):
        pass
    with pytest.raises(UserError, match=r"must be UTF-8 text of one line without tabs"):
        list_images([str(folder)])


def test_missing_inputs_are_named(tmp_path):
    with pytest.raises(UserError, match=r"absent: cannot be read .No such file"):
        list_images([str(tmp_path / "absent")])
    with pytest.raises(UserError, match=r"no images found in .* \(suffixes: \.apng"):
        list_images([str(tmp_path)])


def test_id_beside_an_image_goes_before_its_name(folder):
    path = folder / "data.jsonl"
    path.write_text(
        '{"image": "b.jpg", "id": "bird 1"}\n{"image": "a.PNG"}\n'
        '{"images": ["sub/b2.jpeg"], "id": "story"}\n'
    )
    assert keys(list_images([str(path)])) == ["bird 1", "a.PNG", "b2.jpeg"]
    path.write_text('{"image": "b.jpg", "id": 7}\n')
    with pytest.raises(UserError, match=r"data\.jsonl:1: an image's id must be .* is 7 in"):
        list_images([str(path)])


def test_a_name_that_several_images_have_stands_for_none_of_them(tmp_path):
    for name in ("a/1.jpg", "b/1.jpg", "b/2.jpg", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = by_any_key(list_images([str(tmp_path)], ids="path"))
    assert found.keys() == {"a/1.jpg", "b/1.jpg", "b/2.jpg", "b/2.png", "2.jpg", "2.png"}
    assert found["2.png"].key == "b/2.png"


def test_what_cannot_be_listed_does_not_stop_the_rest_of_a_folder(folder, monkeypatch):
    files, refused = list_folder(str(folder))
    assert files == list_images([str(folder)], ids="path")
    assert refused == []
    (folder / "a\tb.jpg").touch()
    listdir = os.listdir

    def refuse_deeper(path):
        if path.endswith("deeper"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse_deeper)
    files, refused = list_folder(str(folder))
    assert keys(files) == ["a.PNG", "b.jpg", "sub/c.webp"]
    assert refused == [
        (f"{folder}/a\tb.jpg", "its name must be UTF-8 text of one line without tabs."),
        (f"{folder}/sub/deeper", "Permission denied."),
    ]
    (folder / "a\tb.jpg").unlink()
    with pytest.raises(UserError, match="Permission denied"):
        list_images([str(folder)])
    for name, reason in (("sub/deeper", "Permission denied"), ("a.PNG", "Not a directory")):
        with pytest.raises(UserError, match=f"{name}: cannot be read .{reason}"):
            list_folder(str(folder / name))
