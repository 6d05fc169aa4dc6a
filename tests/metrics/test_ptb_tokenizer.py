# ruff: noqa: RUF001 (quotation marks and dashes are what this file is about)
"""PTB tokens: a frozen table of cases, and Stanford's own program where Java and it are found."""

import json
import random
import shutil
import subprocess
import time
import unicodedata
from pathlib import Path

import pytest

from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

# What Stanford's program answers (CoreNLP 3.4.1, punctuation dropped); "_" is a no-break space.
CASES = {
    "The dog's ball can't be seen, won't it?": "the dog 's ball ca n't be seen wo n't it",
    "I'm you're they've he'd she'll who'd've": "i 'm you 're they 've he 'd she 'll who 'd 've",
    "a cannot gonna wanna gotta gimme 'tis": "a can not gon na wan na got ta gim me 't is",
    "Mr. Smith near Main St.": "mr. smith near main st.",
    "the U.S. at 10 a.m., D.C.": "the u.s. at 10 a.m. d.c.",
    "see a bat., or a fox.": "see a bat. or a fox",
    "class A. The man; class A. the man": "class a the man class a. the man",
    "t-shirt-wearing man -- dashes - one – en": "t-shirt-wearing man dashes one en",
    "he said \"hi\" and 'hello' “there”": "he said hi and hello there",
    "a (parenthesis) and [bracket]": "a -lrb- parenthesis -rrb- and -lsb- bracket -rsb-",
    "$5.00 £3 50% #3 & &amp; *": "$ 5.00 # 3 50 % # 3 & & *",
    "1,000.5 3:30pm 12/31/2010 555-1234 1/2": "1,000.5 3:30 pm 12/31/2010 555-1234 1/2",
    "3 1/2 cups, 2½ cups": "3_1/2 cups 2 1/2 cups",
    "(415) 555-1234": "-lrb-415-rrb-_555-1234",
    "and/or a/b/c/d": "and/or a/b/c / d",
    "AT&T at&t rock'n'roll o'clock ma'am y'all": "at&t at & t rock 'n' roll o'clock ma'am y' all",
    "the boys' ball, the '80s, 6'2\"": "the boys ball the '80s 6 2",
    "wow!! really?! no ... yes…": "wow !! really ?! no yes",
    "x@y.com http://a.b/c www.foo.com, foo.com": "x@y.com http://a.b/c www.foo.com foo.com",
    "end.Start <unk> :) @user #tag": "end.start <unk> :-rrb- @user #tag",
    "café ☺ 日本 😍": "café ☺ 日本",
    "don’t it’s": "do n't it 's",
    "कुत्ता घास पर दौड़ रहा है।": "कुत्ता घास पर दौड़ रहा है ।",
    "สุนัข กำลัง วิ่ง, เด็ก เล่น น้ำ": "สุนัข กำลัง วิ่ง เด็ก เล่น น้ำ",
    "كَلْبٌ يَجْرِي؟ الوَلَدُ": "كَلْبٌ يَجْرِي ؟ الوَلَدُ",
    "כֶּלֶב רָץ, ኡ። собака-пёс": "כֶּלֶב רָץ ኡ собака-пёс",
    "un e\u0301te\u0301, l'e\u0301te\u0301": "un e\u0301te\u0301 l' e\u0301te\u0301",
    "किक-कक किक.कक né/ça": "किक कक किक.कक né / ça",
    "$5 12/25/2010": "$ 5_12/25 / 2010",
    "①② 2½ m²": "① ② 2 1/2 m ²",
    "\ufeffa dog": "a dog",
    "l’été don’t he’s ж. é.": "l’été do n't he 's ж é",
    "": "",
    " . ": "",
}


@pytest.mark.parametrize("text", CASES)
def test_answers_as_stanfords_program_did(text):
    assert [token.replace("\u00a0", "_") for token in ptb_tokenize(text)] == CASES[text].split()


@pytest.mark.parametrize(("text", "token"), [("[", "-lsb-"), ("[.", "-lsb-"), ("<!--", None)])
def test_what_is_no_language_takes_its_length_in_time(text, token):
    began = time.process_time()
    tokens = ptb_tokenize(text * 60_000)
    assert time.process_time() - began < 10
    assert token is None or tokens == [token] * 60_000


def test_tokenizing_tokens_changes_nothing():
    for text in ("a man 's dog ca n't swim", "a red t-shirt", "-lrb- a -rrb-"):
        assert " ".join(ptb_tokenize(text)) == text


def stanford(lines, folder: Path):
    """The lines' tokens as coco-caption makes them, from the jar in pycocoevalcap."""
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH: Stanford's tokenizer cannot be asked")
    tokenizer = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    jar = Path(tokenizer.__file__).parent / tokenizer.STANFORD_CORENLP_3_4_1_JAR
    source = folder / "lines.txt"
    source.write_text("\n".join(lines), encoding="utf-8")
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar)]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    answer = subprocess.run(
        [*command, str(source)], capture_output=True, check=True, timeout=300
    ).stdout.decode("utf-8")
    answers = answer.removesuffix("\n").split("\n")
    assert len(answers) == len(lines)
    return [
        [word for word in line.split(" ") if word and word not in tokenizer.PUNCTUATIONS]
        for line in answers
    ]


def test_equals_stanfords_program_on_every_case(tmp_path):
    cases = [text for text in CASES if text]
    for text, tokens in zip(cases, stanford(cases, tmp_path)):
        assert ptb_tokenize(text) == tokens


# in writing without and with combining marks
SCRIPTS = """
    कुत्ता घास दौड़ हँसता क़लम|কুকুর ঘাসের দৌড়াচ্ছে লাল|ਇੱਕ ਕੁੱਤਾ ਦੌੜ|કૂતરો દોડી રહ્યો|நாய் புல்லில் பந்து
    కుక్క గడ్డి బంతి|ನಾಯಿ ಹುಲ್ಲಿನ ಕೆಂಪು|നായ പുല്ലിൽ കുട്ടികൾ|බල්ලෙක් තණකොළ|สุนัข วิ่ง น้ำ ที่|ໝາ ກຳລັງ ແລ່ນ ນ້ອຍ|ខ្មែរ ឆ្កែ
    كَلْبٌ الوَلَدُ ٢٠١٠|می‌دود سگی ۱۲۳|بچّے کتا|כֶּלֶב הַיֶּלֶד בכדור|σκύλος παιδιά ὁ|ребёнок За́мок йогурт
    Շունը ինչո՞ւ|ძაღლი|ውሻ ይሮጣል|개가 풀밭|犬が ガラス パン|一只狗 红色|l’herbe été garçon
    chó đang cỏ trẻ|größer Straße|kůň žluťoučký
    a man's can't 5 12/25/2010 U.S. 3.5
"""
BETWEEN = [*" " * 9, ", ", ". ", "! ", "? ", "... ", " “", "” ", " (", ") ", "; ", " - ", "-", "/"]
BETWEEN += [*"।؟、。،•…", "\u200b", " ½ ", " ① ", " $5 ", "'s ", "’s "]


def test_equals_stanfords_program_on_texts_of_thirty_scripts(tmp_path):
    generator, lines = random.Random(0), []
    for number in range(1000):
        words = generator.choice(SCRIPTS.strip().replace("\n", "|").split("|")).split()
        text = "".join(
            generator.choice(words) + generator.choice(BETWEEN)
            for _ in range(generator.randint(3, 9))
        )
        text = unicodedata.normalize("NFD", text) if number % 2 else text
        lines.append(("\ufeff" if number % 20 == 0 else "") + text.strip())
    answers = stanford(lines, tmp_path)
    assert [ptb_tokenize(line) for line in lines] == answers


def test_no_line_of_real_captions_differs_from_stanfords_program(tmp_path, shared_data):
    lines = []
    with open(shared_data("flickr8k/Flickr8k.token.txt"), encoding="utf-8") as file:
        lines += [line.rstrip("\n").split("\t")[1] for line in file]
    folder = shared_data("coco_caption")
    annotations = json.loads((folder / "captions_val2014_fakecap1000.json").read_text())
    results = json.loads((folder / "captions_val2014_fakecap_results.json").read_text())
    lines += [entry["caption"].replace("\n", " ") for entry in annotations["annotations"]]
    lines += [entry["caption"].replace("\n", " ") for entry in results]
    assert len(lines) > 30_000
    differing = [
        (line, tokens)
        for line, tokens in zip(lines, stanford(lines, tmp_path))
        if ptb_tokenize(line) != tokens
    ]
    assert differing == []
