"""Pickling of generators, embedders and captioners."""

from typing import Any

from fairseq_mm.inference import set_up  # noqa: F401  (registers before fairseq's classes load)


def new_object(kind: type) -> Any:
    """Return an object of a class without its attributes, which ``pickle`` sets."""
    return kind.__new__(kind)


class Picklable:
    """Base of objects that can be pickled and copied.

    Attributes:
        not_pickled: Names of attributes that the new object computes again.
    """

    not_pickled: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # the pickle names `new_object` before any other class, so that a fresh process imports this
        # module first, and with it the set-up
        state = {name: x for name, x in vars(self).items() if name not in self.not_pickled}
        return new_object, (type(self),), state
