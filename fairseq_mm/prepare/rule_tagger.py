"""Tags parts of speech in English captions by rules, if no other tagger is installed.

The tags are universal tags (Petrov, Das, McDonald. A Universal Part-of-Speech Tagset. LREC 2012,
https://arxiv.org/abs/1104.2086). Words of the closed classes (determiners, prepositions and so on)
are listed; nouns and verbs are distinguished by their endings, by the preceding word, and by the
-ing forms of verbs that occur in the texts. A trained tagger is better. The rules suit captions, in
which most words are nouns, verbs with -ing, and words of the closed classes.
"""

import re
from collections.abc import Iterable

# words of the closed classes and frequent words of the open ones, by their universal tag
_CLOSED = {
    "DET": (
        "a an the this that these those some any each every another both all no its his her "
        "their our my your either neither what which whose"
    ),
    "PRON": (
        "he she it they we you i him them us me himself herself itself themselves each-other "
        "who someone something somebody everyone nothing one-another others there one"
    ),
    "ADP": (
        "in on at by with of from into onto over under above below behind beside besides "
        "between among through across along around near off toward towards against during "
        "after before for about outside inside underneath beneath atop amongst within without "
        "upon past like down up out as next alongside whilst via until since despite while "
        "because if although though so than"
    ),
    "CONJ": "and or but nor yet &",
    "PRT": "to not n't 's '",
    "ADV": (
        "very together away also just almost too still only again apart forward backwards "
        "backward upside here now then when where how back ahead alone high low close "
        "sideways outdoors indoors outstretched airborne overhead nearby half well even "
        "perhaps"
    ),
    "VERB": (
        "is are was were be been being am has have had having do does did can could will "
        "would may might must should seems appears looks get gets got goes go went take takes "
        "took make makes made stand stands stood sit sits sat lie lies lay hold holds held "
        "wear wears wore run runs ran ride rides rode throw throws threw catch catches caught "
        "swim swims swam fly flies flew eat eats ate leap leaps leapt swings swung dressed "
        "covered worn seen shown filled surrounded attached leashed tied"
    ),
    "ADJ": (
        "red blue green yellow black white brown gray grey orange pink purple tan blond "
        "blonde golden dark light bright pale colorful colored striped plaid spotted little "
        "small big large huge tall short long young old older younger elderly wet dry dirty "
        "muddy sandy snowy grassy rocky wooden empty busy crowded open many several few other "
        "same different male female asian african american black-and-white bare shirtless "
        "barefoot naked happy fluffy furry hairy shallow deep steep narrow lone ready outdoor "
        "indoor plastic metal wide tiny giant heavy new beautiful steel stone concrete hot "
        "cold sunny more most first second last similar various front own public professional "
        "chinese toy"
    ),
    "NUM": "one two three four five six seven eight nine ten eleven twelve dozen hundred",
}
_TAGS = {word: tag for tag, words in _CLOSED.items() for word in words.split()}
_AUXILIARIES = (
    "is are was were be been being am has have had having do does did can could will would may "
    "might must should"
)
# words that say little about an image: articles, pronouns, prepositions, conjunctions, auxiliaries
FUNCTION_WORDS = frozenset(
    word
    for words in (*(_CLOSED[tag] for tag in ("DET", "PRON", "ADP", "CONJ", "PRT")), _AUXILIARIES)
    for word in words.split()
)
_PLURALS = {"people", "men", "women", "children", "they", "we", "you", "who"}
# frequent nouns of captions that the rules would tag as verbs, by their ending
_NOUNS_IN_ING = {
    "building", "clothing", "railing", "ring", "spring", "string", "thing", "king", "wing",
    "ceiling", "evening", "morning", "painting", "wedding", "swing", "sling",
}  # fmt: skip
_ADJECTIVE_ENDINGS = ("ful", "ous", "ish", "less", "able", "ible")


class RuleTagger:
    """Tagger that uses word lists, endings and neighbouring words.

    Args:
        lines: Texts of lower-case tokens separated by spaces, from which the tagger learns verbs: a
            word without a verb's ending is tagged as a verb only if its -ing form is in the texts.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        words = {word for line in lines for word in line.split()}
        self.gerunds = {word for word in words if word.endswith("ing")}

    def tag(self, tokens: list[str]) -> list[str]:
        tags: list[str] = []
        has_verb = False
        for place, token in enumerate(tokens):
            before = tags[-1] if tags else "."
            word_before = tokens[place - 1].lower() if place else ""
            tag = self._choose_tag(token.lower(), before, word_before, has_verb)
            # a running dog: a word between an article and its noun is no verb
            follows_ing = before == "VERB" and word_before.endswith("ing")
            if tag == "NOUN" and follows_ing and tags[-2:-1] in (["DET"], ["ADJ"], ["NUM"]):
                tags[-1] = "ADJ"
            # a clause has one verb: after it, a word that ends in -s is a noun again
            has_verb = tag == "VERB" or (has_verb and tag not in ("CONJ", "."))
            tags.append(tag)
        return tags

    def _choose_tag(self, token: str, before: str, word_before: str, has_verb: bool) -> str:
        if not any(letter.isalnum() for letter in token):
            return _TAGS.get(token, ".")
        if any(letter.isdigit() for letter in token):
            return "NUM"
        if token in _TAGS:
            return _TAGS[token]
        if token.endswith("ing") and token not in _NOUNS_IN_ING:
            return "VERB"
        # shorter words with these endings are others: fly, ugly, red, bed, sled
        if token.endswith("ly") and len(token) > 4:
            return "ADV"
        if token.endswith("ed") and len(token) > 4:
            return "ADJ" if before in ("DET", "NUM", "ADJ") else "VERB"
        if token.endswith(_ADJECTIVE_ENDINGS):
            return "ADJ"
        if word_before in ("to", "not") and self._has_gerund(token):
            return "VERB"
        is_plural = word_before in _PLURALS or re.search("[^s]s$", word_before) is not None
        # verb and noun agree in number: a dog jumps, dogs jump
        agrees = token.endswith("s") != is_plural
        if before in ("NOUN", "PRON") and not has_verb and agrees:
            return "VERB" if self._has_gerund(_stem(token)) else "NOUN"
        return "NOUN"

    def _has_gerund(self, word: str) -> bool:
        # jumping for jump, running for run, diving for dive
        dropped = [f"{word[:-1]}ing"] if word.endswith("e") else []
        forms = [f"{word}ing", f"{word}{word[-1:]}ing", *dropped]
        return len(word) > 1 and not self.gerunds.isdisjoint(forms)


def _stem(word: str) -> str:
    """Remove a verb's ending: return jump for jumps, catch for catches, carry for carries."""
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word
