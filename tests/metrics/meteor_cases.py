# ruff: noqa: RUF001 (dashes and quotation marks are hard cases)
"""Sentences with the scores and alignments of METEOR's jar.

The numbers are the output of METEOR 1.5's jar in pycocoevalcap 1.2 (Java 17), which
``test_jar_gives_the_frozen_numbers`` runs again where Java is installed.
"""

_WORDS = (
    *("the", "cat", "and", "a", "dog", "of", "big", "large", "red", "runs", "ran", "because"),
    *("of", "due", "to", "in", "kids", "children"),
)


def _repeat_words(length: int, step: int) -> str:
    """Text with so many repeated words that the beam overflows at most of them."""
    return " ".join(_WORDS[i * step % len(_WORDS)] for i in range(length))


# hypothesis, references
ITEMS = [
    # stems and repeated words
    ("a man rides a brown horse on the beach",
     ["a man is riding a horse along the beach", "someone on horseback near the sea"]),
    # synonyms, irregular forms
    ("the children were happily buying two large cars",
     ["a child happily purchased a big automobile", "kids buy cars"]),
    # paraphrases of several words
    ("he stayed at home because of the rain in order to sleep",
     ["due to the rain , he remained home so as to sleep"]),
    # punctuation, apostrophes, an ellipsis
    ('"Well," said Mrs. O\'Neil -- it\'s 3.5 kg (approx.) ... isn\'t it?',
     ["Mrs. O'Neil said it is about 3.5 kg, isn't it?", "well , mrs. o'neil ..."]),
    # hyphens, abbreviations, numbers
    ("A well-known 20-year-old U.S. firm sold 1,000 units on Jan. 5.",
     ["a famous u.s. company has sold 1,000 units",
      "The 20 year old firm sold 1000 units, on No. 5"]),
    # letters, quotation marks, dashes and an emoji outside of ASCII
    ("café naïve — “Straße” 東京 \U0001f600 İstanbul ‘x’ – y",
     ["Café naive STRASSE 東京 \U0001f600s İSTANBUL 'x' - y", "\U0001f600 東京"]),
    # no words, no content
    ("", ["nothing was generated here"]),
    (", . ! ?", ["words without any punctuation", ". , ."]),
    # more alternatives than the beam holds
    ("the cat and the dog and the bird and the fish saw the man and the boy and the girl near "
     "the house",
     ["the girl and the boy and the man saw the fish and the bird and the dog and the cat in the "
      "house of the man"]),
    (_repeat_words(90, 5), [_repeat_words(80, 7)]),
    # equal texts
    ("we saw the dog and the dog saw us", ["we saw the dog and the dog saw us"]),
    # the words Aa, BB and C# have the same hash in Java
    ("Aa BB a b", ["BB Aa b a", "C# Aa"]),
    ("A b. C", ["a B. c", "c"]),
    # exceptions of the stemmer
    ("skis skies dying early generously communities 'twas flies ties",
     ["ski sky die earlier general community twas fly tie"]),
]  # fmt: skip

# task and normalization -> score of the corpus, then of each item
SCORES = {
    ("rank", True): [
        0.38402951, 0.42518778, 0.34521998, 0.38253155, 0.40797409, 0.36636163, 0.44288849,
        0.0, 0.27690995, 0.42812913, 0.39271925, 1.0, 0.4, 0.32,
        0.28268429,
    ],
    ("adq", True): [
        0.6468671, 0.76484747, 0.59553569, 0.70606068, 0.66358551, 0.64704041, 0.77069498,
        0.0, 0.46296663, 0.74971732, 0.53348165, 1.0, 0.55, 0.37560976,
        0.66825392,
    ],
    ("hter", True): [
        0.64403399, 0.68795048, 0.51647588, 0.70032918, 0.56899761, 0.51440145, 0.73509585,
        0.0, 0.46942302, 0.81090009, 0.60475432, 1.0, 0.65, 0.35714286,
        0.25930331,
    ],
    ("li", True): [
        0.49332987, 0.63986727, 0.3712419, 0.54641433, 0.5510622, 0.45854037, 0.68947516,
        0.0, 0.4521536, 0.66904688, 0.29090909, 1.0, 0.3, 0.18461538,
        0.38003367,
    ],
    ("tune", True): [
        0.52760445, 0.63194444, 0.33962264, 0.54329372, 0.5, 0.39285714, 0.64772727,
        0.0, 0.42857143, 0.69387755, 0.47058824, 1.0, 0.5, 0.28571429,
        0.36090226,
    ],
    ("rank", False): [
        0.36120056, 0.42518778, 0.34521998, 0.38253155, 0.31446629, 0.21851033, 0.25806452,
        0.0, 0.27690995, 0.42812913, 0.39271925, 1.0, 0.43424515, 0.0,
        0.30293613,
    ],
    ("adq", False): [
        0.60394314, 0.76484747, 0.59553569, 0.70606068, 0.5099528, 0.35624711, 0.28518519,
        0.0, 0.46296663, 0.74971732, 0.53348165, 1.0, 0.70380281, 0.0,
        0.78988127,
    ],
    ("hter", False): [
        0.60363179, 0.68795048, 0.51647588, 0.70032918, 0.4430511, 0.29650483, 0.19429348,
        0.0, 0.46942302, 0.81090009, 0.60475432, 1.0, 0.77266833, 0.0,
        0.2125,
    ],
    ("li", False): [
        0.45280265, 0.63986727, 0.3712419, 0.54641433, 0.34850054, 0.29130562, 0.15,
        0.0, 0.4521536, 0.66904688, 0.29090909, 1.0, 0.58779968, 0.0,
        0.39977284,
    ],
    ("tune", False): [
        0.50089486, 0.63194444, 0.33962264, 0.54329372, 0.37987013, 0.26315789, 0.16666667,
        0.0, 0.42857143, 0.69387755, 0.47058824, 1.0, 0.625, 0.0,
        0.38888889,
    ],
}  # fmt: skip

# Matches with each reference without normalization: first word in the reference, first word in the
# hypothesis; with the numbers of words after +, if one is above 1.
ALIGNMENTS = [
    "0:0 1:1 3:2 4:3 5:5 6:6 7:7 8:8",
    "1:6 2:5 4:7",
    "0+2:1+1 2:3 3:4 4+2:6+1 6:7",
    "0+1:0+2 2:7",
    "0+2:4+2 2:6 3:7 5:0 6+1:1+2 7:3 10:10 11:11",
    "0:2 1:3 2:1 3:5 6:6 8:10 9:11",
    "4:9",
    "5:5 6:6 7:7",
    "4:4 5:5 8:8",
    "3:4 8:9",
    "0:5 1:4",
    "",
    "",
    "1:0 2:1",
    "0:18 1:19 2:14 3:15 4:16 5:17 6:12 7:13 8:11 9:9 10:10 11:5 12:6 13:7 14:2 15:3 16:4 "
    "17:8 18:0 19:1 21:21 22:22",
    "0:0 1:5 2:10 3:15 4:2 5:7 6:12 7:17 8:4 9:9 10:14 11:1 12:6 13:11 14:16 15:3 16:8 17:13 "
    "18:18 19:23 20:28 21:33 22:20 23:25 24:30 25:35 26:22 27:27 28:32 29:19 30:24 31:29 "
    "32:34 33:21 34:26 35:31 36:36 37:41 38:46 39:51 40:38 41:43 42:48 43:53 44:40 45:45 "
    "46:50 47:37 48:42 49:47 50:52 51:39 52:44 53:49 54:54 55:59 56:64 57:69 58:56 59:61 "
    "60:66 61:71 62:58 63:63 64:68 65:55 66:60 67:65 68:70 69:57 70:62 71:67 72:72 73:77 "
    "74:82 75:87 76:74 77:79 78:84 79:89",
    "0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7 8:8",
    "0:0 1:1 2:3 3:2",
    "0:0 1:1",
    "",
    "",
    "0:0 1:1 2:2 3:3 5:5 6:6 7:7 8:8",
]


def parse_alignment(text: str) -> list[tuple[int, int, int, int]]:
    """Return start and length in the reference, then in the hypothesis, of each match."""
    matches = []
    for match in text.split():
        sides = [[*side.split("+"), "1"][:2] for side in match.split(":")]
        (start, length), (own_start, own_length) = [map(int, side) for side in sides]
        matches.append((start, length, own_start, own_length))
    return matches
