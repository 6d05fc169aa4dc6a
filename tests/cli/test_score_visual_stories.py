"""`fairseq-mm score --preset vist`: METEOR's protocol, references, repetition, card, submission."""

import json

import pytest

from fairseq_mm.cli.main import main

SEQUENCES = ["\t".join(f"{album}{i}" for i in range(5)) for album in "abc"]
ALBUMS = ["1", "1", "2"]
REFERENCES = [
    ["the dog ran . we saw it . it was fun .", "a dog runs quickly . [male] laughed ."],
    ["the cat slept . nobody came .", "everyone was asleep . the end ."],
    ["the family went home . it was late ."],
]
STORIES = [
    "the dog ran . <sent> we had fun . <sent> we had fun . <sent> it was a day . <sent> the end .",
    "the cat slept . <sent> the cat slept . <sent> a b c . <sent> d e f g . <sent> h .",
    "the family went home . <sent> it was late . <sent> x y . <sent> z . <sent> the end .",
]
WITHOUT_METEOR = "bleu,rouge_l,cider,diversity,sentences"


@pytest.fixture
def data(tmp_path):
    """Three sequences of two albums; every sequence has two lines; an image lacks features."""
    folder = tmp_path / "vist"
    folder.mkdir()
    images = [image for key in SEQUENCES for image in key.split("\t")]
    records = [
        {
            "id": f"s{i}",
            "album": ALBUMS[i // 2],
            "images": SEQUENCES[i // 2].split("\t"),
            "sentences": ["a b c", "a b c d", "e", "", ""],
            "missing": [images[-1]] if i == 5 else [],
            "references": REFERENCES[i // 2],
            "album_references": [text for j in same_album(i // 2) for text in REFERENCES[j]],
        }
        for i in range(6)
    ]
    (folder / "valid.jsonl").write_text("".join(json.dumps(x) + "\n" for x in records))
    (folder / "prepare.json").write_text('{"options": {"tokenizer": "words"}}')
    return folder


def same_album(i):
    return [j for j in range(3) if ALBUMS[j] == ALBUMS[i]]


@pytest.fixture
def score(data, tmp_path, capsys):
    """Runs the command on stories; returns exit status, figures by name, result, stdout, stderr."""

    def run(*arguments, stories=STORIES, name="generate-valid.txt"):
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        path = tmp_path / name
        lines = [f"D-{2 * i}\t-0.5\t{story}\n" for i, story in enumerate(stories)]
        path.write_text("".join(lines))
        arguments = ["--preset", "vist", "--data", data, "--json", out, *arguments]
        if "--metrics" not in arguments:
            arguments += ["--metrics", WITHOUT_METEOR]
        status = main(["score", str(path), *map(str, arguments)])
        result = json.loads(out.read_text()) if out.exists() else {}
        found = {entry["metric"]: entry for entry in result.get("scores", ())}
        printed = capsys.readouterr()
        return status, found, result, printed.out, printed.err

    return run


def plain(story):
    return " ".join(word for word in story.split() if word != "<sent>")


@pytest.fixture
def shared_words(monkeypatch):
    """In place of METEOR: how many words two texts share."""
    calls = []

    def meteor_of_tasks(hypotheses, references, tasks, *, normalize):
        calls.append((list(hypotheses), tasks, normalize))
        scores = [
            max(len({*text.split()} & {*story.split()}) for text in texts)
            for story, texts in zip(hypotheses, references)
        ]
        divisors = {"hter": 10, "rank": 20}
        return {task: (-1.0, [score / divisors[task] for score in scores]) for task in tasks}

    monkeypatch.setattr("fairseq_mm.metrics.meteor.meteor_of_tasks", meteor_of_tasks)
    return calls


def test_meteor_gets_whole_stories_as_they_are_and_sequences_count_alike(
    score, shared_words, tmp_path
):
    status, found, _, out, _ = score(
        "--metrics", "meteor_vist", "--signatures", "--per-item", tmp_path / "items.jsonl"
    )
    assert status == 0
    stories = [plain(story) for story in STORIES]
    assert shared_words == [(stories, ["hter", "rank"], False)]
    # the dog ran . we fun it was; the cat slept .; the family went home . it was late
    assert found["meteor_vist"]["value"] == pytest.approx((8 + 4 + 8) / 3 / 10)
    assert found["meteor_vist_rank"]["value"] == pytest.approx((8 + 4 + 8) / 3 / 20)
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert [item["meteor_vist"] for item in items] == [0.8, 0.4, 0.8]
    for task in ("protocol:EvalVIST|task:hter", "task:rank"):
        assert (
            f"meteor-1.5|refs:1-2|tok:none|case:mixed|punct:yes|{task}|norm:no|segment:story|"
            "best:of-refs|mean:sequences|by:python|"
        ) in out


def test_separators_are_no_words_of_a_story(score):
    _, found, _, _, _ = score()
    _, same, _, out, _ = score(stories=[plain(story) for story in STORIES])
    for name in ("bleu4", "rouge_l", "cider", "distinct2", "length"):
        assert found[name]["value"] == same[name]["value"]
    assert same["repeated_trigrams"]["value"] is None
    assert same["repeated_trigrams"]["note"] == "needs separators between sentences"
    assert "words_per_sentence" in out


def test_repetition_between_sentences_by_hand(score):
    _, found, *_ = score()
    # of sentences 2 to 5: we had fun again; the cat slept again; nothing
    assert found["repeated_sentences"]["value"] == pytest.approx((1 / 4 + 1 / 4 + 0) / 3)
    # trigrams; of the first story only those of "we had fun" twice and "it was a", "was a day",
    # of the second "the cat slept", "a b c", "d e f", "e f g", of the last "it was late"
    assert found["repeated_trigrams"]["value"] == pytest.approx((1 / 3 + 1 / 3 + 0) / 3)
    words = (
        (0 + 1 + 0 + 1 / 2) / 4,  # the end: "the" stood in the first sentence
        (1 + 0 + 0 + 0) / 4,
        (0 + 0 + 0 + 1 / 2) / 4,
    )
    assert found["repeated_words"]["value"] == pytest.approx(sum(words) / 3)
    # 15 trigrams: tdr whf whf iwa wad | tcs tcs abc def efg | tfw fwh iwl
    assert found["shared_trigrams"]["value"] == pytest.approx(2 / 13)
    assert found["words_per_sentence"]["value"] == pytest.approx((15 + 14 + 12) / 15)
    # people's: a b c | a b c d | e
    assert found["words_per_sentence"]["note"] == "5 to 5 sentences a story, people: 1.60"
    assert found["repeated_words"]["note"] == f"people: {3 / 8:.5f}"
    assert "of:earlier-sentences-of-its-story" in found["repeated_words"]["signature"]


def test_card_says_what_was_scored_and_which_images_have_features(score):
    _, found, result, out, err = score(stories=STORIES[:2])
    card = result["card"]
    about = card["visual_stories"]
    summary = about.pop("summary")
    assert card["signatures"]["bleu1"] == found["bleu1"]["signature"]
    assert about == {
        "sequences": 2,
        "sequences_expected": 3,
        "images": 15,
        "images_with_features": 14,
        "images_missing": 1,
        "sequences_with_missing_images": 1,
    }
    assert summary == "sequences: 2 of 3; images: 15, 14 with features"
    assert summary in out
    assert result["visual_stories"]["sequences"] == 2
    assert "1 references without a text" in err
    assert found["bleu1"]["expected"] == 3


def test_submission_has_a_story_of_each_sequence(score, tmp_path):
    path = tmp_path / "submission.json"
    status, _, _, _, _ = score("--submission", path, "--metrics", "diversity")
    assert status == 0
    content = json.loads(path.read_text())
    assert set(content) == {"team_name", "evaluation_info", "output_stories"}
    assert content["output_stories"] == [
        {
            "album_id": album,
            "photo_sequence": key.split("\t"),
            "story_text_normalized": plain(story),
        }
        for album, key, story in zip(ALBUMS[:1] + ALBUMS[:1] + ALBUMS[2:], SEQUENCES, STORIES)
    ]
