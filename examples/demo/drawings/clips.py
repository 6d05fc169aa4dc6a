"""Drawn clips: four frames in which one thing happens, what somebody says, and the summary.

    frames      the scene before the change, in one to three frames, and after it, while the camera
                moves
    transcript  HELLO. TOLD. TOLD. WATCH.
    TOLD        who speaks, and where, in any order
    summary     NAME shows in the PLACE how EVENT | in the PLACE NAME shows how EVENT
    EVENT       a sentence of a drawn story: the red circle turns green

Only the transcript tells who speaks and where, only the frames show what happens: each part of the
summary needs one of the two.
"""

import random
import re
from dataclasses import asdict, dataclass, replace
from typing import Optional

from PIL import Image

from drawings.drawn_images import draw
from drawings.drawn_stories import Moment, change, keep_one
from drawings.scenes import compose_scene
from drawings.story_sentences import sentences_describing

NUM_FRAMES = 4
EVENTS = ("colour", "size", "light")
NAMES = ("anna", "boris", "carla", "david", "emma", "frank", "greta", "hugo")
PLACES = ("kitchen", "garden", "library", "workshop", "office", "garage")

_HELLO = ("hello and welcome", "good morning everybody", "hi there")
_SPEAKER = ("i am {0}", "my name is {0}", "{0} is speaking")
_PLACE = ("we are in the {0}", "you see the {0}", "this is the {0}")
_WATCH = ("now watch", "look what happens")
_SUMMARIES = ("{name} shows in the {place} how {event}", "in the {place} {name} shows how {event}")
_READ = (
    re.compile(r"(?P<name>\w+) shows in the (?P<place>\w+) how (?P<event>.+)"),
    re.compile(r"in the (?P<place>\w+) (?P<name>\w+) shows how (?P<event>.+)"),
)
_NIGHTS = 0.4  # share of the clips that begin at night
_PAN = 0.1  # the camera moves by at most this share of an image's side


@dataclass(frozen=True)
class Clip:
    """Content of a clip.

    Attributes:
        name: Name of the person who speaks.
        place: Place where the person is.
        before: Moment before the change.
        after: Moment after the change.
        changes_at: Number of frames before the change.
    """

    name: str
    place: str
    before: Moment
    after: Moment
    changes_at: int

    @property
    def event(self) -> str:
        """Sentence that says what happens; the same for all clips in which the same happens."""
        return min(sentences_describing(self.before, self.after))

    @property
    def facts(self) -> tuple[str, str, str]:
        return self.name, self.place, self.event

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "Clip":
        moments = {name: Moment.from_json(record[name]) for name in ("before", "after")}
        return cls(**{**record, **moments})


def compose_clip(rng: random.Random) -> Clip:
    """Compose a random clip, in which each kind of event is as probable as another."""
    kind = rng.choice(EVENTS)
    before = Moment(keep_one(compose_scene(rng), rng), night=rng.random() < _NIGHTS)
    name, place = rng.choice(NAMES), rng.choice(PLACES)
    return Clip(name, place, before, change(before, kind, rng), rng.randrange(1, NUM_FRAMES))


def draw_frames(clip: Clip, seed: str) -> list[Image.Image]:
    """Draw the frames, on one ground and with one noise, while the camera moves to the side."""
    things = [thing for moment in (clip.before, clip.after) for thing in moment.scene.things]
    rng = random.Random(f"{seed} camera")
    # at the end, all things still lie inside
    x, y = (
        rng.uniform(
            max(-_PAN, *(thing.radius - place for thing, place in zip(things, places))),
            min(_PAN, *(1 - thing.radius - place for thing, place in zip(things, places))),
        )
        for places in ([thing.x for thing in things], [thing.y for thing in things])
    )
    frames = []
    for number in range(NUM_FRAMES):
        moment = clip.before if number < clip.changes_at else clip.after
        part = number / (NUM_FRAMES - 1)
        moved = [
            replace(thing, x=thing.x + part * x, y=thing.y + part * y)
            for thing in moment.scene.things
        ]
        scene = replace(moment.scene, things=tuple(moved))
        frames.append(draw(scene, random.Random(seed), night=moment.night))
    return frames


def write_transcript(clip: Clip, rng: random.Random) -> str:
    """Write what the person says."""
    told = [rng.choice(_SPEAKER).format(clip.name), rng.choice(_PLACE).format(clip.place)]
    rng.shuffle(told)
    return " . ".join([rng.choice(_HELLO), *told, rng.choice(_WATCH)]) + " ."


def write_summary(clip: Clip, rng: random.Random) -> str:
    """Write a random one of the summaries that are right."""
    event = rng.choice(sentences_describing(clip.before, clip.after))
    return rng.choice(_SUMMARIES).format(name=clip.name, place=clip.place, event=event)


def read_summary(text: str) -> Optional[tuple[str, str, str]]:
    """Return the name, the place and the event of a summary; None if it is no summary."""
    words = " ".join(text.lower().rstrip(" .").split())
    for pattern in _READ:
        match = pattern.fullmatch(words)
        if match:
            return match["name"], match["place"], match["event"]
    return None
