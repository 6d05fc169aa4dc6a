"""Prepared data folders whose files were changed: ``doctor`` sees every change, training most."""

import json
import logging
import os
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from fairseq.data import indexed_dataset
from toy_data import EXTRACTOR, forget_digests

from fairseq_mm.cli import doctor
from fairseq_mm.cli.doctor_data import KINDS, set_up
from fairseq_mm.cli.main import main
from fairseq_mm.data import prepared_files
from fairseq_mm.data.feature_store import FeatureStore, open_folder_features
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.input_files import read_json
from fairseq_mm.data.split_text import read_story_words
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.tagging import tag_folder

SPLITS = ("train", "valid")
LINES = 6  # in each of the two splits, so that their files can be exchanged
WORDS = "a the dog cat man runs sits jumps on in grass snow red blue small big".split()  # noqa: SIM905
DIM = 4


def sentences(generator, count):
    sizes = generator.integers(4, 9, size=count)
    return [" ".join(generator.choice(WORDS, size=size)) for size in sizes]


def write_data(path, entry):
    """JSON lines of both splits, made by ``entry(generator, key)``."""
    generator = np.random.default_rng(7)
    lines = [
        json.dumps({**entry(generator, f"{split[0]}{number}"), "split": split})
        for split in SPLITS
        for number in range(LINES)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def import_features(folder, output, keys, rows=1):
    generator = np.random.default_rng(5)
    (folder / "rows").mkdir()
    for key in keys:
        np.save(folder / "rows" / f"{key}.npy", generator.normal(size=(rows, DIM)))
    output.parent.mkdir(exist_ok=True)
    options = "--dtype float32 --extractor drawn --weights torchvision:V1 --layer pool"
    command = ["store", "import", str(folder / "rows"), "--output", str(output)]
    assert main([*command, *options.split()]) == 0


def prepare(kind, folder, entry, *options):
    data = write_data(folder / "data.jsonl", entry)
    prepared = folder / "prepared"
    arguments = ["prepare", kind, data, "--output", prepared, *options]
    assert main([*map(str, arguments)]) == 0
    return prepared


def image_keys():
    return [f"{split[0]}{number}" for split in SPLITS for number in range(LINES)]


def make_captions(folder):
    data = prepare(
        "captions",
        folder,
        lambda generator, key: {"image": key, "captions": sentences(generator, 2)},
        *("--threshold", "1"),
    )
    list(tag_folder(data, tagger="rules"))
    import_features(folder, data / "features.h5", image_keys())
    return data


def make_text_alone(folder):
    return prepare(
        "captions",
        folder,
        lambda generator, key: {"captions": sentences(generator, 1)},
        *("--threshold", "1", "--without-images"),
    )


def make_stories(folder):
    keys = [f"{key}_{place}" for key in image_keys() for place in range(5)]
    import_features(folder, folder / "prepared" / "features.h5", keys[1:])
    return prepare(
        "stories",
        folder,
        lambda generator, key: {
            "images": [f"{key}_{place}" for place in range(5)],
            "sentences": sentences(generator, 5),
            "id": key,
            "album": f"album {key}",
        },
        *("--threshold", "1", "--features", folder / "prepared" / "features.h5"),
        *("--missing", "keep"),
    )


def make_prompts(folder):
    return prepare(
        "prompts",
        folder,
        lambda generator, key: {
            "prompt": sentences(generator, 1)[0],
            "story": sentences(generator, 1)[0],
            "id": key,
        },
        *("--source-threshold", "1", "--target-threshold", "1"),
    )


def make_videos(folder):
    data = prepare(
        "videos",
        folder,
        lambda generator, key: {
            "video": key,
            "transcript": f"{sentences(generator, 1)[0]} rare{key}",
            "summary": sentences(generator, 1)[0],
        },
        *("--threshold", "2", "--indexed-oov", "2"),
    )
    import_features(folder, data / "features.h5", image_keys(), rows=3)
    return data


def make_joined(folder):
    parts = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        made = make_captions(folder / name)
        # the ids of both get their folder's name
        parts.append(made.rename(made.parent / name))
    output = folder / "joined"
    options = ("--threshold", "1", "--output", str(output))
    assert main(["prepare", "join", *map(str, parts), *options]) == 0
    return output


MAKERS = {
    "captions": make_captions,
    "text alone": make_text_alone,
    "visual stories": make_stories,
    "prompts": make_prompts,
    "videos": make_videos,
    "joined": make_joined,
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return {
        kind: make(tmp_path_factory.mktemp(kind.replace(" ", "_"))) for kind, make in MAKERS.items()
    }


@pytest.fixture
def copy(originals, tmp_path):
    """Copies a prepared folder; joined ones need their neighbours."""

    def make(kind):
        original = originals[kind]
        place = Path(shutil.copytree(original.parent, tmp_path / kind.replace(" ", "_")))
        return place / original.name

    return make


@pytest.fixture
def examine(capsys, monkeypatch):
    """Lines of the doctor that are no ``ok``, and its exit status."""
    monkeypatch.setattr(doctor, "_check_environment", list)

    def run(folder, *options):
        capsys.readouterr()
        status = main(["doctor", "--data", str(folder), *options])
        lines = capsys.readouterr().out.splitlines()
        return status, [line for line in lines if not line.startswith("ok")][:-1]

    return run


def recorded(folder):
    parts = read_json(folder / "prepare.json")["digests"].values()
    return [name for part in parts for name in part]


# mutations of the lines of a text file
LINE_MUTATIONS = {
    "empty": lambda lines: [],
    "cut": lambda lines: lines[:-1],
    "repeat the last line": lambda lines: [*lines, lines[-1]],
    "rotate": lambda lines: [*lines[1:], lines[0]],
    "exchange two lines": lambda lines: [lines[1], lines[0], *lines[2:]],
    "shift by one": lambda lines: [lines[0], *lines[:-1]],
    "reverse": lambda lines: lines[::-1],
    "CRLF": lambda lines: [line.replace(b"\n", b"\r\n") for line in lines],
    "space at the end of a line": lambda lines: [lines[0].replace(b"\n", b" \n"), *lines[1:]],
    "no line break at the end": lambda lines: [*lines[:-1], lines[-1][:-1]],
}
# mutations of the bytes of any file
BYTE_MUTATIONS = {
    "flip a bit": lambda content: bytes([*content[:-2], content[-2] ^ 1, content[-1]]),
    "repeat the last byte": lambda content: content + content[-1:],
}
BINARY_MUTATIONS = {
    **BYTE_MUTATIONS,
    "empty": lambda content: b"",
    "cut": lambda content: content[:-2],
    "rotate": lambda content: content[-2:] + content[:-2],
    "exchange two bytes": lambda content: content[1::-1] + content[2:],
}


def mutations_of(path):
    """Name of each mutation of a file, and the content that it gives; None removes the file."""
    content = path.read_bytes()
    if path.suffix in (".bin", ".idx"):
        changed = {name: mutate(content) for name, mutate in BINARY_MUTATIONS.items()}
    else:
        lines = content.splitlines(keepends=True)
        changed = {name: mutate(content) for name, mutate in BYTE_MUTATIONS.items()}
        several = LINE_MUTATIONS.items() if len(lines) > 1 else ()
        changed.update({name: b"".join(mutate(lines)) for name, mutate in several})
    changed["remove"] = None
    return {name: new for name, new in changed.items() if new != content}


def choose_mutations(folder, names, step):
    """List file, mutation and content: each ``step``-th mutation of a file, and one or more."""
    chosen = []
    for number, name in enumerate(names):
        mutations = [(name, *item) for item in mutations_of(folder / name).items()]
        chosen += mutations[number % min(step, len(mutations)) :: step]
    return chosen


def replace(path, content):
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


SHARES = pytest.mark.parametrize(
    "step", [pytest.param(5, id="a fifth"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


@SHARES
@pytest.mark.parametrize("kind", MAKERS)
def test_no_change_of_a_file_is_silent(copy, examine, kind, step):
    folder = copy(kind)
    notes = examine(folder)[1]
    assert not any(line.startswith("PROBLEM") for line in notes)
    assert not any("digests" in line or "checksum" in line for line in notes)
    mutations = choose_mutations(folder, recorded(folder), step)
    assert len(mutations) >= 60 // step
    for name, mutation, changed in mutations:
        path = folder / name
        content = path.read_bytes()
        replace(path, changed)
        status, lines = examine(folder)
        assert status == 2, f"{name}: {mutation}"
        assert any(f"{path}: " in x and f"{folder}/prepare.json" in x for x in lines), mutation
        path.write_bytes(content)
    assert examine(folder) == (0, notes)


def exchange(folder, first, second):
    one, other = folder / first, folder / second
    content = one.read_bytes()
    assert content != other.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize("kind", MAKERS)
def test_no_exchange_of_two_files_is_silent(copy, examine, kind):
    folder = copy(kind)
    pairs = [(x, x.replace("train.", "valid.")) for x in recorded(folder) if "train." in x]
    sides = {"prompts": ("wp_source", "wp_target"), "videos": ("tran", "desc")}.get(kind)
    for name in recorded(folder) if sides else ():
        before, dot, after = name.rpartition(f".{sides[0]}")
        other = f"{before}.{sides[1]}{after}"
        if (
            dot
            and other in recorded(folder)
            and (folder / other).read_bytes() != (folder / name).read_bytes()
        ):
            pairs.append((name, other))
    for first, second in pairs:
        exchange(folder, first, second)
        status, lines = examine(folder)
        assert status == 2, (first, second)
        found = [line for line in lines if f"{folder / first}: has the content" in line]
        assert found, (first, lines)
        content = (folder / first).read_bytes()
        twins = [x for x in recorded(folder) if (folder / x).read_bytes() == content and x != first]
        assert any(f"prepare.json records of {x}" in found[0] for x in (second, *twins))
        exchange(folder, first, second)
    assert len(pairs) >= 3


@pytest.mark.parametrize("kind", MAKERS)
def test_binarised_lines_in_another_order_are_found(copy, examine, kind):
    """Index and words agree, and so do all counts."""
    folder = copy(kind)
    earlier = forget_digests(
        Path(shutil.copytree(folder.parent, f"{folder.parent}0")) / folder.name
    )
    bases = {name[:-4] for name in recorded(folder) if name.endswith(".idx")}
    for base in sorted(bases):
        for place in (folder, earlier):
            kept = {end: (place / f"{base}.{end}").read_bytes() for end in ("bin", "idx")}
            lines = indexed_dataset.MMapIndexedDataset(str(place / base))
            builder = indexed_dataset.make_builder(str(place / f"{base}.new"), "mmap", vocab_size=9)
            for number in [*range(1, len(lines)), 0]:
                builder.add_item(lines[number])
            builder.finalize(str(place / f"{base}.idx"))
            (place / f"{base}.new").replace(place / f"{base}.bin")
            status, found = examine(place)
            assert status == 2, base
            if place == folder:
                assert f"{folder / base}.bin: has another content" in "".join(found)
            else:  # by the text beside it
                assert "must have the words of" in "".join(found) or "differs" in "".join(found)
            for end, content in kept.items():
                (place / f"{base}.{end}").write_bytes(content)


def test_ids_that_are_renamed_in_two_of_three_files_are_found(copy, examine):
    folder = copy("captions")
    for ending in ("visual_ids", "references.jsonl"):
        path = folder / f"valid.{ending}"
        path.write_text(
            path.read_text().replace("v1", "v9").replace("v2", "v1").replace("v9", "v2")
        )
    status, lines = examine(folder)
    assert status == 2
    assert len(lines) == 2


@pytest.mark.parametrize("kind", MAKERS)
def test_files_of_an_earlier_preparation_are_found(copy, examine, kind):
    folder = copy(kind)
    for name in recorded(folder):
        if "valid." in name:
            stale = folder / name.replace("valid.", "test.")
            shutil.copy(folder / name, stale)
            status, lines = examine(folder)
            if stale.suffix == ".tags":
                continue  # tags alone are no split
            assert status == 2
            assert any(f"{stale}: is not among the files" in line for line in lines), name
            stale.unlink()


def change_report(folder, change):
    path = folder / "prepare.json"
    report = json.loads(path.read_text())
    change(report)
    path.write_text(json.dumps(report))


def replace_digest(report):
    part = report["digests"]["train"]
    part["train.bin"], part["train.idx"] = part["train.idx"], part["train.bin"]


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.pop("digests"),
        lambda report: report.pop("sha256"),
        lambda report: report.pop("store"),
        lambda report: report["digests"].pop("valid"),
        lambda report: report["digests"]["train"].pop("train.visual_ids"),
        lambda report: report["options"].update(tokenizer="ptb"),
        lambda report: report["counts"]["train"].update(captions=3),
        lambda report: report.update(kind="visual stories"),
        replace_digest,
    ],
)
def test_a_changed_report_is_found(copy, examine, change):
    folder = copy("captions")
    change_report(folder, lambda report: None)  # another form of the same content
    assert examine(folder) == (0, [])
    change_report(folder, change)
    status, lines = examine(folder)
    assert status == 2
    assert "does not match its own digest" in lines[0]


@pytest.mark.parametrize(
    "digests",
    [
        [],
        {"train": {"train.bin": {"bytes": 3}}},
        {"train": {"train.bin": 3}},
        {"folder": {"/dev/zero": {"bytes": 0, "sha256": "0"}}},
        {"folder": {"../x": {"bytes": 0, "sha256": "0"}}},
    ],
)
def test_digests_of_another_form_are_one_line(copy, examine, digests):
    folder = copy("captions")
    report = prepared_files.sealed({"kind": "captions", "digests": digests})
    (folder / "prepare.json").write_text(json.dumps(report))
    status, lines = examine(folder)
    assert status == 2
    assert "`digests` must hold the bytes and sha256 of each file" in lines[0]


def test_a_report_of_another_folder_or_none_is_found(copy, examine):
    folder, other = copy("captions"), copy("joined")
    shutil.copy(other / "prepare.json", folder / "prepare.json")
    assert examine(folder)[0] == 2
    (folder / "prepare.json").write_text("{")
    assert "not JSON" in examine(folder)[1][0]
    (folder / "prepare.json").unlink()
    status, (line,) = examine(folder)
    assert status == 0
    assert line.startswith(f"note     digests: {folder} has none, so that files which no longer")


@pytest.mark.parametrize("content", ["[]", "null", "1", '"digests"', "true"])
def test_a_report_that_is_no_object_is_a_problem_that_can_be_accepted(copy, examine, content):
    folder = copy("captions")
    path = folder / "prepare.json"
    path.write_text(content)
    for options in ((), ("--repair",)):
        status, (line, *_) = examine(folder, *options)
        assert status == 2
        assert line.startswith(f"PROBLEM  digests: {path}: must be a JSON object, but is ")
        assert path.read_text() == content
    with pytest.raises(UserError, match="must be a JSON object"):
        prepared_files.check_prepared_file(folder / "dict.txt")
    assert examine(folder, "--repair", "--accept-changes")[0] == 0
    assert examine(folder)[0] == 0


def test_an_entry_that_a_report_has_twice_is_found(copy, examine):
    folder = copy("captions")
    path = folder / "prepare.json"
    path.write_text(path.read_text().replace("{", '{"kind": "prompts", ', 1))
    status, (line, *_) = examine(folder)
    assert status == 2
    assert f"{path}: 'kind' stands in one object twice." in line


@pytest.mark.parametrize("has_digests", [True, False])
@pytest.mark.parametrize(
    "name", ["dict.txt", "prepare.json", "valid.visual_ids", "text/valid.txt", "features.h5"]
)
def test_pipes_and_devices_are_found_and_not_read(copy, examine, monkeypatch, name, has_digests):
    folder = copy("captions")
    if not has_digests:
        forget_digests(folder)
    read = []
    monkeypatch.setattr(doctor, "FolderDigests", lambda *args, **options: read.append(args))
    path = folder / name
    path.unlink()
    expected = f"PROBLEM  {path}: must be a file, but is a pipe or a device; nothing else is"
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(path)
        status, (line,) = examine(folder)
        assert status == 2
        assert line.startswith(expected)
        path.unlink()
    assert not read


def test_a_pipe_beside_a_language_models_folder_is_found(copy, examine):
    folder = copy("prompts")
    os.mkfifo(folder / "test.ids")
    os.mkfifo(folder / "stories" / "test.bin")
    for place in (folder, folder / "stories"):
        status, lines = examine(place)
        assert status == 2
        paths = [line.split(": ")[0].split()[1] for line in lines]
        assert sorted(paths) == [f"{folder}/stories/test.bin", f"{folder}/test.ids"]


@pytest.mark.parametrize("kind", ["captions", "visual stories", "videos", "joined"])
@pytest.mark.parametrize("split", SPLITS)
def test_references_of_other_items_get_no_digests(copy, examine, kind, split):
    folder = forget_digests(copy(kind))
    assert examine(folder)[0] == 0
    path = folder / f"{split}.references.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    references = [entry["references"] for entry in entries]
    for entry, others in zip(entries, references[1:] + references[:1]):
        entry["references"] = others
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    before = (folder / "prepare.json").read_text()
    status, lines = examine(folder, "--repair")
    assert status == 2
    text = rf"{path}: line \d+ of {folder}/text/{split}\.\w+ must be among the references of '"
    assert re.search(text, "".join(lines))
    assert (folder / "prepare.json").read_text() == before


def roll_ids(file):
    file["ids"][:] = np.roll(file["ids"][:], 1)


def roll_rows(file):
    file["features"][:] = np.roll(file["features"][:], 1, axis=0)


def exchange_ids(file):
    ids = file["ids"][:]
    ids[[0, 1]] = ids[[1, 0]]
    file["ids"][:] = ids


def change_value(file):
    file["features"][2, 1] += 1


def repeat_id(file):
    file["ids"][1] = file["ids"][0]


@pytest.mark.parametrize("kind", ["captions", "visual stories", "videos"])
@pytest.mark.parametrize("change", [roll_ids, roll_rows, exchange_ids, change_value, repeat_id])
def test_a_changed_feature_store_is_found(copy, examine, capsys, kind, change):
    folder = copy(kind)
    path = folder / "features.h5"
    with h5py.File(path, "r+") as file:
        change(file)
    found = "stands in it twice" if change is repeat_id else "do not match the checksum that they"
    status, lines = examine(folder)
    assert status == 2
    assert found in "".join(lines)
    capsys.readouterr()
    assert main(["store", "verify", str(path)]) == 2
    assert found in capsys.readouterr().err
    with pytest.raises(UserError, match=found):  # training opens it
        set_up(KINDS[kind].task, str(folder), None).open_features()


def test_changed_bytes_of_rows_are_found(copy, examine):
    path = copy("captions") / "features.h5"
    with h5py.File(path) as file:
        start = file["features"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)
    assert "do not match the checksum that they were written with" in examine(path.parent)[1][0]


def test_a_store_that_another_program_has_changed_is_noted(copy, examine):
    folder = copy("captions")
    with h5py.File(folder / "features.h5", "r+") as file:
        file.attrs["extractor"] = "another"
    status, lines = examine(folder)
    assert status == 0
    expected = f"note     checksum: another program has changed {folder}/features.h5, and cut off"
    assert lines[0].startswith(expected)


def rewrite_store(path, keys):
    """Another store with the rows of ``path``, under other ids."""
    store = FeatureStore(path)
    rows = [store.read(key) for key in store.ids]
    path.unlink()
    attributes = {name: x for name, x in store.attributes.items() if name != "created"}
    options = {"dim": store.dim, "dtype": store.dtype, "attributes": attributes}
    with FeatureStoreWriter(path, **options) as writer:
        for key, own in zip(keys(store.ids), rows):
            writer.append(key, own)
        writer.finish()


@pytest.mark.parametrize("kind", ["captions", "visual stories", "videos"])
def test_another_store_in_its_place_is_found_and_can_be_accepted(
    copy, examine, capsys, caplog, kind
):
    folder = copy(kind)
    path = folder / "features.h5"
    rewrite_store(path, lambda ids: [*ids[1:], ids[0]])
    status, lines = examine(folder)
    assert status == 2
    items = len(FeatureStore(path))
    expected = f"{path}: is not the feature store of {items} items that {folder}/prepare.json"
    assert any(expected in line for line in lines)
    assert main(["store", "verify", str(path)]) == 2
    assert "is not the feature store that" in capsys.readouterr().err
    logging.disable(logging.NOTSET)  # which the doctor has called for its own lines
    set_up(KINDS[kind].task, str(folder), None).open_features()
    assert f"{path}: is not the feature store that {folder}/prepare.json records" in caplog.text
    assert examine(folder, "--repair")[0] == 2
    assert examine(folder, "--repair", "--accept-changes")[0] == 0
    assert examine(folder)[0] == 0


def test_changed_stores_of_a_joined_folder_are_found(copy, examine, caplog):
    folder = copy("joined")
    one, two = (folder.parent / x / x / "features.h5" for x in ("one", "two"))
    for path in (one, two):  # whose own records would show it, too
        forget_digests(path.parent)
    rewrite_store(two, lambda ids: ids[::-1])
    status, lines = examine(folder)
    assert status == 2
    found = f"{two}: is not the feature store of {2 * LINES} items that {folder}/prepare.json"
    assert [line for line in lines if "PROBLEM" in line and found in line]
    assert len([line for line in lines if "PROBLEM" in line]) == 1
    logging.disable(logging.NOTSET)
    open_folder_features(str(folder))
    assert f"{two}: is not the feature store that {folder}/prepare.json records" in caplog.text
    assert str(one) not in caplog.text
    assert examine(folder, "--repair", "--accept-changes")[0] == 0
    assert examine(folder)[0] == 0
    caplog.clear()
    open_folder_features(str(folder))
    assert not caplog.text


def test_a_store_in_place_of_the_recorded_list_is_found(copy, examine, caplog):
    folder = copy("joined")
    path = folder / "features.h5"
    keys = [f"{part}/{key}" for part in ("one", "two") for key in image_keys()]
    with FeatureStoreWriter(path, dim=DIM, dtype="float32", attributes=EXTRACTOR) as writer:
        for key in keys:
            writer.append(key, np.ones((1, DIM), dtype=np.float32))
        writer.finish()
    found = f"{path}: is read in place of features.json, which {folder}/prepare.json records"
    status, lines = examine(folder)
    assert status == 2
    assert found in "".join(lines)
    logging.disable(logging.NOTSET)
    open_folder_features(str(folder))
    assert found in caplog.text
    assert examine(folder, "--repair")[0] == 2
    assert examine(folder)[0] == 2
    assert examine(folder, "--repair", "--accept-changes")[0] == 0
    assert examine(folder)[0] == 0


@pytest.mark.parametrize("kind", ["captions", "videos"])
def test_a_list_in_place_of_the_recorded_store_is_found(copy, examine, caplog, kind):
    folder = copy(kind)
    path, other = folder / "features.h5", folder.parent / "other.h5"
    path.rename(other)
    found = f"{path}: is missing, but {folder}/prepare.json records it"
    assert found in "".join(examine(folder)[1])  # with features or without
    (folder / "features.json").write_text(json.dumps([{"store": str(other), "prefix": ""}]))
    status, lines = examine(folder)
    assert status == 2
    assert found in "".join(lines)
    logging.disable(logging.NOTSET)
    open_folder_features(str(folder))
    assert found in caplog.text
    assert examine(folder, "--repair")[0] == 2
    assert examine(folder, "--repair", "--accept-changes")[0] == 0
    assert examine(folder)[0] == 0
    report = read_json(folder / "prepare.json")
    assert "store" not in report
    assert [x["items"] for x in report["stores"].values()] == [2 * LINES]
    rewrite_store(other, lambda ids: [*ids[1:], ids[0]])
    assert f"{other}: is not the feature store" in "".join(examine(folder)[1])


def earlier_store(path):
    """Cut the checksum of ids and rows off a store, and the one of its metadata."""
    with h5py.File(path, "r+") as file:
        del file.attrs["content_checksum"]


def test_training_compares_a_store_without_a_checksum(copy, examine, caplog, monkeypatch):
    folder = copy("captions")
    path = folder / "features.h5"
    earlier_store(path)
    logging.disable(logging.NOTSET)
    open_folder_features(str(folder))
    assert not caplog.text  # it is the recorded one
    with monkeypatch.context() as patch:
        patch.setattr(prepared_files, "MAX_HASHED_BYTES", 0)
        open_folder_features(str(folder))
        assert f"{path}: has no checksum of its ids and rows, so that only" in caplog.text
    caplog.clear()
    rewrite_store(path, lambda ids: [*ids[1:], ids[0]])
    earlier_store(path)
    open_folder_features(str(folder))
    assert f"{path}: is not the feature store that {folder}/prepare.json records" in caplog.text
    assert examine(folder)[0] == 2


def test_features_of_another_network_are_recorded_by_the_command_that_writes_them(copy, examine):
    folder = copy("captions")
    other = folder.parent / "other"
    other.mkdir()
    np.save(other / "rows.npy", np.ones((2 * LINES, 7)))
    (other / "ids.txt").write_text("".join(f"{key}\n" for key in image_keys()))
    command = f"store import {other}/rows.npy --output {folder}/features.h5 --overwrite"
    assert main([*command.split(), "--ids", str(other / "ids.txt")]) in (None, 0)
    assert FeatureStore(folder / "features.h5").dim == 7
    status, lines = examine(folder)
    assert status == 0
    assert not any("prepare.json" in line for line in lines)


READ_BY_TRAINING = {
    "captions": "dict.txt valid.bin valid.idx valid.visual_ids valid.references.jsonl",
    "joined": "dict.txt features.json valid.bin valid.idx valid.visual_ids valid.references.jsonl",
    "visual stories": "dict.txt missing_images.txt valid.bin valid.idx valid.visual_ids "
    "valid.references.jsonl",
    "prompts": "dict.wp_source.txt dict.wp_target.txt valid.wp_source-wp_target.wp_source.bin "
    "valid.wp_source-wp_target.wp_target.idx",
    "videos": "dict.tran.txt dict.desc.txt subwords.json valid.tran-desc.tran.bin "
    "valid.tran-desc.desc.idx valid.visual_ids valid.references.jsonl valid.unknowns.jsonl",
}


@SHARES
@pytest.mark.parametrize("kind", READ_BY_TRAINING)
def test_training_refuses_changed_files(copy, kind, step):
    folder = copy(kind)
    task_name = KINDS.get(kind, KINDS["captions"]).task

    def load():
        task = set_up(task_name, str(folder), None)
        if hasattr(task.cfg, "eval_gen"):
            task.cfg.eval_gen = True
        task.load_dataset("valid", combine=False, epoch=1)

    load()
    names = READ_BY_TRAINING[kind].split()
    for name, mutation, changed in choose_mutations(folder, names, step):
        path = folder / name
        content = path.read_bytes()
        replace(path, changed)
        with pytest.raises(UserError) as caught:
            load()
        line = str(caught.value)
        # other removed files are missed as in every folder
        may_lack = ("missing_images.txt", "subwords.json", "valid.references.jsonl")
        if changed is not None or name in may_lack:
            assert f"{path}: " in line, mutation
            assert f"{folder}/prepare.json" in line, mutation
        assert "\n" not in line
        path.write_bytes(content)
    load()


def test_large_files_are_compared_by_size_alone_where_training_starts(copy, monkeypatch):
    folder = copy("captions")
    path = folder / "valid.bin"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    monkeypatch.setattr(prepared_files, "MAX_HASHED_BYTES", len(content) - 1)
    prepared_files.check_prepared_file(path)
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"valid\.bin: has \d+ bytes, but .*prepare\.json records"):
        prepared_files.check_prepared_file(path)


def test_text_and_tags_are_compared_where_they_are_read(copy):
    folder = copy("captions")
    for name in ("text/valid.txt", "valid.tags"):
        path = folder / name
        path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))
        with pytest.raises(UserError, match=f"{path}: has another content than the one whose"):
            prepared_files.check_prepared_file(path)
    with pytest.raises(UserError, match=r"text/valid\.txt: has another content"):
        read_story_words(folder, "valid")


def test_tags_of_another_tagger_need_no_digest_but_one_tag_for_each_word(copy, examine):
    folder = copy("captions")
    forget_digests(folder)
    path = folder / "train.tags"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line.lower()}\n" for line in lines))
    assert [line[:4] for line in examine(folder)[1]] == ["note"]
    path.write_text("".join(f"{line}\n" for line in [lines[0] + " x", *lines[1:]]))
    status, found = examine(folder)
    assert status == 2
    assert re.search(r"train\.tags:1: has (\d) tags, but line 1 of \S+ has \d tokens", found[-1])


@pytest.mark.parametrize("kind", MAKERS)
def test_a_folder_without_digests_gets_them(copy, examine, kind):
    folder = forget_digests(copy(kind))
    status, lines = examine(folder)
    assert status == 0
    assert lines[0].startswith(f"note     digests: {folder} has none")
    assert lines[0].endswith(f"-> fairseq-mm doctor --data {folder} --repair")
    assert examine(folder, "--repair")[0] == 0
    assert examine(folder) == (0, lines[1:])
    path = next(folder.glob("text/valid.*"))
    path.write_text(path.read_text() + "\n")
    assert examine(folder)[0] == 2


def test_folders_of_fairseq_preprocess_alone_get_digests_too(copy, examine):
    folder = copy("captions")
    shutil.rmtree(folder / "text")
    (folder / "prepare.json").unlink()
    assert examine(folder, "--repair")[0] == 0
    report = read_json(folder / "prepare.json")
    assert report["kind"] == "captions"
    assert "train.visual_ids" in report["digests"]["train"]
    assert report["store"]["items"] == 2 * LINES
    assert examine(folder) == (0, [])


def test_only_accepted_changes_are_recorded(copy, examine):
    folder = copy("captions")
    path = folder / "valid.references.jsonl"
    path.write_text(path.read_text().replace("dog", "cat"))
    for options in ((), ("--repair",)):
        status, (line, *more) = examine(folder, *options)
        assert status == 2
        assert len(more) == len(options)
        assert line.startswith(f"PROBLEM  {path}: has another content")
        assert line.endswith(f"fairseq-mm doctor --data {folder} --repair --accept-changes")
        for note in more:
            text = "nothing added; not replaced, because the files still differ: valid.references"
            assert note.startswith(f"note     digests: {text}.jsonl -> ")
    before = (folder / "prepare.json").read_text()
    assert examine(folder, "--repair", "--accept-changes") == (0, [])
    assert examine(folder) == (0, [])
    after = json.loads((folder / "prepare.json").read_text())
    assert {**json.loads(before), "digests": 0, "sha256": 0} == {**after, "digests": 0, "sha256": 0}


def test_a_folder_with_problems_gets_no_digests(copy, examine):
    folder = copy("captions")
    (folder / "valid.visual_ids").write_text("v0\n")
    before = (folder / "prepare.json").read_text()
    status, lines = examine(folder, "--repair", "--accept-changes")
    assert status == 2
    assert any("must agree line by line" in line for line in lines)
    assert f"none was added, because {folder} has the problems above" in lines[-1]
    assert (folder / "prepare.json").read_text() == before
    for options in ("--repair", "--data x --accept-changes"):
        assert main(["doctor", *options.split()]) == 2


def test_what_fairseq_preprocess_adds_later_is_no_problem(tmp_path, examine):
    data = prepare(
        "captions",
        tmp_path,
        lambda generator, key: {"captions": sentences(generator, 1)},
        *("--threshold", "1", "--without-images", "--no-binarize"),
    )
    command = read_json(data / "prepare.json")["command"].split()[1:]
    from fairseq_mm.prepare.data_folder import run_preprocess

    run_preprocess(command)
    status, (note,) = examine(data)
    assert status == 0
    assert "has no images" in note
    path = data / "text" / "valid.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::-1]))
    changed, _, different = examine(data)[1]
    assert f"{path}: has another content" in changed
    assert f"valid.bin: line 1 must have the words of line 1 of {path}, but has others" in different
