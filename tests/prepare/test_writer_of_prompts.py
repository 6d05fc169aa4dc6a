"""Pairs by split -> data folder: what stands in it, and that a failure leaves nothing."""

import json
from pathlib import Path

import pytest
from written_folder import binarised, records

from fairseq_mm.data.record_split import PROMPTS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example, Streamed
from fairseq_mm.prepare.prompts import PromptWriter
from fairseq_mm.prepare.writer import Vocabulary

EXAMPLE = {
    "train": [
        ("[ WP ] a cat", "the cat sat . <newline> the end"),
        ("[ WP ] a cat", "a cat the cat saw"),
        ("a dog", "the dog ran"),
    ],
    "valid": [("a dog", "the bird ran off ."), ("a bird", "it flew")],
    "test": [("one cat", "the end .")],
}


def corpus(splits, *, ids=False, **fields):
    def stream(split, pairs):
        def read():
            for number, (prompt, story) in enumerate(pairs, 1):
                yield Example(
                    {"prompt": [prompt], "story": [story]},
                    f"{split}.wp_source:{number}",
                    f"{split}-{number}" if ids else None,
                    places={"story": f"{split}.wp_target:{number}"},
                )

        return Streamed(read, len(pairs))

    read = {split: stream(split, pairs) for split, pairs in splits.items()}
    return Corpus(PROMPTS, "own", "as given", read, ["data.jsonl"], **fields)


def write(splits, output, *, fields=None, strict=False, overwrite=False, **options):
    vocabularies = {}
    for side in ("source", "target"):
        given = {
            name: options.pop(f"{side}_{name}")
            for name in ("threshold", "dictionary")
            if f"{side}_{name}" in options
        }
        vocabularies[f"dict.wp_{side}.txt"] = Vocabulary(
            {"source": "prompts", "target": "stories"}[side], 1, prefix=f"{side}-", **given
        )
    made = PromptWriter(str.split, vocabularies, settings={"tokenizer": "whitespace"}, **options)
    data = splits if isinstance(splits, Corpus) else corpus(splits, **(fields or {}))
    return made.write(data, output, strict=strict, overwrite=overwrite)


def files_in(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_folder_holds_records_binarised_pairs_and_two_language_models(tmp_path):
    out = tmp_path / "out"
    write(EXAMPLE, out)
    splits = ("train", "valid", "test")
    layout = "{}.wp_source-wp_target.{}.{}"
    assert sorted(files_in(out)) == sorted(
        ["dict.wp_source.txt", "dict.wp_target.txt", "prepare.json"]
        + ["prompts/dict.txt", "stories/dict.txt", *(f"{split}.jsonl" for split in splits)]
        + [
            name
            for split in splits
            for end in ("bin", "idx")
            for name in (
                layout.format(split, "wp_source", end),
                layout.format(split, "wp_target", end),
                f"prompts/{split}.{end}",
                f"stories/{split}.{end}",
            )
        ]
    )
    assert records(out, "valid") == [
        {"prompt": "a dog", "story": "the bird ran off ."},
        {"prompt": "a bird", "story": "it flew"},
    ]


def test_stories_are_cut_to_their_first_words(tmp_path):
    report = write(EXAMPLE, tmp_path / "out", story_words=4)
    cut = ["the cat sat .", "a cat the cat", "the dog ran"]
    assert binarised(tmp_path / "out", "train", "wp_target") == cut
    assert records(tmp_path / "out", "train")[0]["story"] == EXAMPLE["train"][0][1]
    counts = report["counts"]["train"]
    assert (counts["stories_cut"], counts["words_cut"], counts["story_words"]) == (2, 3 + 1, 11)
    whole = write(EXAMPLE, tmp_path / "whole", story_words=0)["counts"]["train"]
    assert (whole["stories_cut"], whole["story_words"]) == (0, 15)


def test_pairs_that_stand_twice_and_prompts_of_train_are_counted(tmp_path):
    pairs = [("a", "x y"), ("a", "x z"), ("b", "x y"), ("a", "x  y")]
    report = write(
        {"train": pairs, "valid": [("b", "q"), ("b", "x y"), ("c", "q")]}, tmp_path / "o"
    )
    train, valid = report["counts"]["train"], report["counts"]["valid"]
    assert (train["pairs"], train["prompts"], train["duplicate_pairs"]) == (4, 2, 1)
    assert (valid["prompts"], valid["prompts_in_train"], valid["duplicate_pairs"]) == (2, 1, 0)


def test_dictionaries_can_be_given_for_one_side_or_for_data_without_train(tmp_path):
    (tmp_path / "source.txt").write_text("dog 7\na 3\n")
    (tmp_path / "target.txt").write_text("flew 2\n")
    one = write(EXAMPLE, tmp_path / "one", source_dictionary=tmp_path / "source.txt")
    assert one["dictionary_words"]["dict.wp_source.txt"] == 2
    assert (tmp_path / "one" / "prompts" / "dict.txt").read_text() == "dog 7\na 3\n"
    assert one["options"]["source_threshold"] is None
    valid = {"valid": EXAMPLE["valid"]}
    with pytest.raises(UserError, match=r"data.jsonl: no training pairs; without them --source-di"):
        write(valid, tmp_path / "two", source_dictionary=tmp_path / "source.txt")
    two = write(
        valid,
        tmp_path / "two",
        source_dictionary=tmp_path / "source.txt",
        target_dictionary=tmp_path / "target.txt",
    )
    assert two["counts"]["valid"]["unknown_story_words"] == 6
    assert "prompts_in_train" not in two["counts"]["valid"]


def test_records_have_their_ids(tmp_path):
    write(EXAMPLE, tmp_path / "out", fields={"ids": True})
    ids = [record["id"] for record in records(tmp_path / "out", "train")]
    assert ids == ["train-1", "train-2", "train-3"]


@pytest.mark.parametrize(
    ("pair", "where", "half"),
    [
        ((" ", "a b"), "train.wp_source:2", "prompt"),
        (("a", ""), "train.wp_target:2", "story"),
        (("a", "<newline> <newline>"), "train.wp_target:2", "story"),
    ],
)
def test_a_half_without_words_is_refused_by_line_or_left_out_and_counted(
    tmp_path, pair, where, half
):
    splits = {"train": [("a", "b"), pair, ("c", "d e")]}
    with pytest.raises(UserError, match=rf"^{where}: the {half} has no word: '"):
        write(splits, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    counts = write(splits, tmp_path / "out", skip_empty=True)["counts"]["train"]
    assert (counts["pairs"], counts["empty_pairs_skipped"]) == (2, 1)
    assert binarised(tmp_path / "out", "train", "wp_source") == ["a", "c"]
    assert binarised(tmp_path / "out", "train", "wp_target") == ["b", "d e"]


def test_an_unknown_word_in_the_text_is_no_mistake(tmp_path):
    report = write({"train": [("a <unk>", "b <unk>")]}, tmp_path / "out")
    assert report["counts"]["train"]["unknown_story_words"] == 1


def test_vocabularies_of_other_sizes_are_reported_and_refused_when_strict(tmp_path):
    # [ ] WP a cat dog; the cat sat . <newline> end a saw dog ran; four control symbols
    types = {"dict.wp_source.txt": 6 + 4, "dict.wp_target.txt": 10 + 4 + 1}
    fields = {"published_types": types, "published": {"train": 5, "valid": 2}}
    report = write(EXAMPLE, tmp_path / "out", fields=fields)
    size = "dict.wp_target.txt: 14 types, 15 published (see fairseq-mm prepare own --help)"
    assert report["deviations"] == [
        "train: 3 pairs found, 5 expected (own, split as given)", size,
    ]  # fmt: skip
    del fields["published"]
    with pytest.raises(UserError, match=r"--strict: dict.wp_target.txt: 14 types"):
        write(EXAMPLE, tmp_path / "strict", fields=fields, strict=True)
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["_binarise", "finish_folder"])
def test_an_interrupted_run_leaves_nothing_and_keeps_what_was(tmp_path, monkeypatch, error, step):
    def fail(*arguments):
        raise error

    out = tmp_path / "out"
    write(EXAMPLE, out)
    before = files_in(out)
    monkeypatch.setattr(PromptWriter, step, fail)
    with pytest.raises(error):
        write({"train": [("a", "b")]}, out, overwrite=True)
    with pytest.raises(error):
        write(EXAMPLE, tmp_path / "new")
    assert files_in(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_real_stories_are_binarised_as_by_fairseq_preprocess_alone(tmp_path, shared_data):
    """The release's files, cut by the original's recipe, one line of Python."""
    from fairseq import options
    from fairseq_cli import preprocess

    from fairseq_mm.prepare.releases.writingprompts import read_writingprompts

    release = shared_data("writingprompts")
    plain, out = tmp_path / "plain", tmp_path / "out"
    plain.mkdir()
    for path in release.glob("*.wp_*"):
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        if path.suffix == ".wp_target":
            lines = [" ".join(line.split()[0:1000]) for line in lines]
        (plain / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = "--source-lang wp_source --target-lang wp_target --thresholdsrc 2 --thresholdtgt 5"
    prefixes = ["--trainpref", str(plain / "train"), "--validpref", str(plain / "valid")]
    arguments = [*command.split(), *prefixes, "--destdir", str(plain), "--padding-factor", "1"]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    report = write(read_writingprompts(release), out, source_threshold=2, target_threshold=5)
    found = files_in(out)
    for name, content in files_in(plain).items():
        if name.startswith("dict") or "-" in name:
            assert found[name] == content
    assert report["counts"]["train"]["stories_cut"] == 72
    assert report["dictionary_words"] == {"dict.wp_source.txt": 1046, "dict.wp_target.txt": 4677}
    assert json.loads((out / "prepare.json").read_text())["counts"] == report["counts"]
    assert Path(out, "stories", "train.bin").stat().st_size == 494_386
