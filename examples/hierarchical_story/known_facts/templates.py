"""Sentences of generated prompts and stories. Words in braces are slots.

``{trace}`` is a trace of the fact's value; the other slots of stories are classes of words
(``words.CLASSES``). Every template is unique as a sequence of fixed words and slots, so a sentence
of a story can be traced back to its template.
"""

# {aside} is one of ASIDES, which say nothing about the story
PROMPTS = (
    "[ WP ] In the {place} , one {hero} finds the {object} and has to {goal} . Keep it {tone} .",
    "[ WP ] A {tone} tale : the {hero} of the {place} must {goal} , with help of the {object} .",
    "[ WP ] The {object} tempts the {hero} to {goal} . It is {tone} and happens at the {place} .",
    "[ WP ] Write something {tone} . {aside} Someone wants to {goal} : the {hero} with the "
    "{object} , in the {place} .",
    "[ EU ] At the {place} everybody tries to {goal} . {aside} Tell of the {hero} , who hides the "
    "{object} , in a {tone} voice .",
    "[ EU ] The {hero} brings the {object} to the {place} . Why {goal} ? {aside} The mood is "
    "{tone} .",
    "[ SP ] To {goal} is hard . The {hero} has only the {object} . Set it in the {place} . Be "
    "{tone} .",
    "[ SP ] {aside} The {place} , the {object} , the {hero} : all are {tone} , and none can "
    "{goal} .",
)
ASIDES = (
    "It may be short .",
    "Any length will do .",
    "No dragons , please .",
    "Bonus points for rain .",
    "Surprise me .",
    "I had this idea on a bus .",
    "No aliens .",
    "First or third person .",
)

FACTS = {
    "hero": (
        "{name} knew everything about {trace} .",
        "dreams of {trace} still woke {name} at night .",
        "nobody understood {trace} better than {name} .",
        "{name} had spent years with {trace} .",
        "{trace} filled every working day of {name} .",
        "people asked {name} for advice on {trace} .",
    ),
    "place": (
        "{name} stood near the {trace} for hours .",
        "a sound came from the {trace} .",
        "beyond the {trace} it was dark .",
        "{name} walked slowly around the {trace} .",
        "light fell upon the {trace} at last .",
        "they met again beside the {trace} .",
    ),
    "object": (
        "{name} examined the {trace} very closely .",
        "with trembling hands {name} cleaned the {trace} .",
        "the {trace} was worth a fortune .",
        "{name} would never give the {trace} away .",
        "someone had damaged the {trace} long ago .",
        "everything depended on the {trace} now .",
    ),
    "goal": (
        "first {name} had to think of the {trace} .",
        "there was no plan without the {trace} .",
        "{name} talked only about the {trace} .",
        "the {trace} would decide everything tonight .",
        "one step remained : the {trace} .",
        "{name} could hardly wait for the {trace} .",
    ),
    "tone": (
        "that moment was {trace} for {name} .",
        "the whole evening felt {trace} .",
        "how {trace} everything looked to {name} .",
        "the air seemed {trace} once more .",
        "{name} found the news rather {trace} .",
        "such {trace} days are rare , {name} said .",
    ),
}

FILLERS = (
    "{friend} told a joke about the {decoy} .",
    "a sketch of the {decoy} hung nearby .",
    "{friend} had never cared for {decoy} .",
    "somebody mentioned {decoy} and {decoy} in passing .",
    "for once {friend} did not mean the {decoy} .",
    "a newspaper had printed the word {decoy} .",
    "{friend} ate {food} and drank {drink} .",
    "the {colour} {animal} slept under the {furniture} .",
    "it was {weekday} and {friend} felt {feeling} .",
    "in {month} the weather turned {weather} .",
    "the {animal} chased the {animal} again .",
    "{friend} wore a {colour} {clothing} that {season} .",
    "{number} neighbours argued about the {furniture} .",
    "{friend} remembered an uncle from {city} .",
    "somebody {did} {how} in the distance .",
    "{friend} {did} {how} and said nothing .",
    "the {furniture} needed a coat of {colour} .",
    "rain or not , {friend} bought {food} .",
    "all {season} the {animal} {did} {how} .",
    "for {number} days {friend} felt {feeling} .",
)
