"""The lines that generating subcommands write: text, or records.

A record has ``id``, ``hypothesis`` and ``score``, then what is particular to its task, then what
made it: ``options``, ``checkpoint`` (SHA-256), ``extractor``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from fairseq_mm.generation.config import GenerationConfig
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.hypothesis import Hypothesis


class Record:
    """Formats the hypotheses of an input.

    Args:
        facts: what made them, for records; None for text.
        nbest: hypotheses of an input.
    """

    def __init__(self, facts: Optional[Mapping[str, Any]], nbest: int) -> None:
        self.facts = facts
        self.nbest = nbest

    def line(
        self,
        name: str,
        hypotheses: "Sequence[Hypothesis]",
        others: Mapping[str, Any],
        shown: Sequence[str] = (),
    ) -> str:
        """
        Args:
            name: of the input.
            hypotheses: the best first.
            others: fields of the task, for records.
            shown: columns of the task, for text.

        Returns:
            a line; of text and several hypotheses a line each.
        """
        if self.facts is None:
            return "\n".join("\t".join([name, best.text, *shown]) for best in hypotheses)
        entry: dict[str, Any] = {"id": name, **scored(hypotheses[0])}
        if self.nbest > 1:
            entry["hypotheses"] = [scored(best) for best in hypotheses]
        return json.dumps({**entry, **others, **self.facts}, ensure_ascii=False)


def scored(hypothesis: "Hypothesis") -> dict[str, Any]:
    """Text and score of a hypothesis, as records have them."""
    return {"hypothesis": hypothesis.text, "score": round(hypothesis.score, 4)}


def model_facts(model: "Generator", config: "GenerationConfig") -> dict[str, Any]:
    """Checkpoint and options of generation, the same in each record."""
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    return {"checkpoint": hashes_of(model.files), "options": options}


def hashes_of(files: Sequence[str]) -> Any:
    """SHA-256 of a checkpoint, or of each of an ensemble's."""
    from fairseq_mm.extract.weights import sha256_of

    hashes = [sha256_of(file) for file in files]
    return hashes[0] if len(hashes) == 1 else hashes
