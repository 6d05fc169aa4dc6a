"""Pickling of generators, embedders and captioners.

Importing this module registers the package. A pickle names :func:`new_object` before any other
class, so a fresh process imports this module first and applies the repairs of fairseq before it
uses fairseq's classes.
"""

from typing import Any

import fairseq_mm
from fairseq_mm.compat import activate, float32_by_default

fairseq_mm.register()
activate()


def new_object(kind: type) -> Any:
    """Return an object of a class without its attributes, which ``pickle`` sets."""
    return kind.__new__(kind)


def refuse_training(mode: bool = True) -> None:
    """Replace ``train`` of a model that was prepared for inference.

    fairseq's own replacement is a function within a function, which cannot be pickled.

    Raises:
        RuntimeError: if the model is to be trained.
    """
    if mode:
        raise RuntimeError("cannot train a model that was prepared for inference")


@float32_by_default()
def prepare_for_inference(model: Any) -> None:
    """Prepare a model for generation, which cannot be undone."""
    model.make_generation_fast_()
    model.train = refuse_training


class Picklable:
    """Base of objects that can be pickled and copied.

    Attributes:
        not_pickled: Names of attributes that the new object computes again.
    """

    not_pickled: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: x for name, x in vars(self).items() if name not in self.not_pickled}
        return new_object, (type(self),), state
