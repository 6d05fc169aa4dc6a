"""METEOR's tables: small files compiled, read from the cache, and compiled again if the cache is
damaged, outdated, or cannot be written."""

import gzip
import os
import sys
import types
import zipfile

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.metrics import _meteor_tables
from fairseq_mm.metrics._meteor_tables import cache_path, load_tables

RESOURCES = {
    "function/english.words": "the\n,\nof\n",
    "nonbreaking/english.prefixes": "#comment\nMr\nNo #NUMERIC_ONLY# \n\n",
    "synonym/english.synsets": "car\n1 2\nautomobile\n1\ngoose\n3\nbox\n4\n",
    "synonym/english.exceptions": "goose\ngeese\n",
}
# entries: probability, phrase, paraphrase; "so as to" comes twice, apart
PARAPHRASES = """
.5\nso as to\nin order to\n.3\nso as to\nto
.2\nto\nso as to
.1\nso as to\nfor
.1\nbecause of\ndue to
""".strip()


def write_paraphrases(folder, text=PARAPHRASES):
    (folder / "meteor" / "data").mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "meteor" / "data" / "paraphrase-en.gz", "wt", encoding="utf-8") as file:
        file.write(text and f"{text}\n")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Folder of a package pycocoevalcap with small tables; an empty cache folder beside it."""
    folder = tmp_path / "package"
    write_paraphrases(folder)
    with zipfile.ZipFile(folder / "meteor" / "meteor-1.5.jar", "w") as jar:
        for name, text in RESOURCES.items():
            jar.writestr(name, text)
    module = types.ModuleType("pycocoevalcap")
    module.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, "pycocoevalcap", module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_tables.cache_clear()
    yield folder
    load_tables.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    """How often the tables were compiled."""
    calls = []
    compile_tables = _meteor_tables._compile
    monkeypatch.setattr(
        _meteor_tables, "_compile", lambda *files: calls.append(1) or compile_tables(*files)
    )
    return calls


def load_again():
    load_tables.cache_clear()
    return load_tables()


def phrases_of(tables, *texts):
    """Phrases of each text by their words, and the paraphrases among them in the table's order."""
    words = [text.split() for text in texts]
    flat = [word for text in words for word in text]
    ids = np.array([tables.phrase_word_id(word) for word in flat])
    sizes = [len(text) for text in words]
    found = tables.find_phrases(ids, np.repeat(np.cumsum(sizes), sizes))
    names = {
        state: " ".join(flat[start : start + length])
        for start, length, state in zip(*(column.tolist() for column in found))
    }
    paraphrases = tables.paraphrases(found.states)
    return found, {
        names[source]: [names[target] for target in sorted(targets, key=targets.get)]
        for source, targets in paraphrases.items()
    }


@pytest.mark.parametrize("is_cached", [False, True])
def test_tables_are_those_of_the_files(package, is_cached):
    tables = load_tables()
    if is_cached:
        tables = load_again()
    assert tables.function_words == {"the", ",", "of"}
    assert tables.abbreviations == {"Mr": False, "No": True}
    assert tables.synsets("cars") == tables.synsets("car") == {1, 2}
    assert tables.synsets("geese") == {3}
    assert tables.synsets("boxes") == {4}
    assert tables.synsets("ss") == tables.synsets("") == tables.synsets("lorry") == set()
    found, paraphrases = phrases_of(tables, "so as to go", "in order to", "for to", "due xx")
    assert paraphrases == {"so as to": ["in order to", "to", "for"], "to": ["so as to"]}
    # prefixes of phrases are found, too
    assert found.positions.tolist() == [0, 0, 0, 2, 4, 4, 4, 6, 7, 8, 9]
    assert found.lengths.tolist() == [1, 2, 3, 1, 1, 2, 3, 1, 1, 1, 1]


def test_the_cache_is_read_if_it_is_whole(package, compilations):
    load_tables()
    assert cache_path().parent.name == "fairseq_mm"
    assert os.listdir(cache_path().parent) == [cache_path().name]
    load_again()
    assert len(compilations) == 1


def test_a_cache_of_other_tables_or_of_another_format_is_compiled_again(
    package, compilations, monkeypatch
):
    load_tables()
    write_paraphrases(package, PARAPHRASES.replace("for", "in"))
    _, paraphrases = phrases_of(load_again(), "so as to", "in")
    assert (len(compilations), paraphrases["so as to"]) == (2, ["to", "in"])
    monkeypatch.setattr(_meteor_tables, "FORMAT", 0)
    load_again()
    assert len(compilations) == 3


def test_damaged_files_of_the_package_are_one_line(package):
    path = package / "meteor" / "data" / "paraphrase-en.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match=r"METEOR's tables in .*meteor cannot be read"):
        load_tables()
    (package / "meteor" / "meteor-1.5.jar").write_text("no archive")
    with pytest.raises(UserError, match=r"cannot be read \(File is not a zip file\)"):
        load_tables()
    (package / "meteor" / "meteor-1.5.jar").unlink()
    with pytest.raises(UserError, match=r"cannot be read \(.*No such file .*meteor-1.5.jar"):
        load_tables()


def test_missing_package_names_the_extra(monkeypatch):
    load_tables.cache_clear()
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    with pytest.raises(UserError, match=r"METEOR needs the package pycocoevalcap.*\[eval\]"):
        load_tables()
