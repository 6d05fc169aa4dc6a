"""Language models that generate the prompts of story models."""

from typing import Optional

from fairseq_mm.errors import UserError
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.loading import LoadedModels, Paths, load_models
from fairseq_mm.models._provenance import fingerprint, symbols_of


def load_prompt_generator(path: Paths, *, device: Optional[str] = None) -> Generator:
    """The generator of a language model of prompts.

    Raises:
        UserError: if a checkpoint cannot be loaded, or reads a text.
    """
    loaded = load_models(path, device=device)
    if not loaded.are_language_models:
        raise UserError(
            f"{loaded.files[0]}: --arch {loaded.architectures[0]} reads an input, but a prompt "
            "model must be a language model (such as --arch gcnn_lm_self_att)."
        )
    return Generator(loaded)


def check_prompt_models(prompt_models: LoadedModels, models: LoadedModels) -> None:
    """
    Raises:
        UserError: if what the prompt models generate cannot be read by the story models.
    """
    file = models.files[0]
    if models.source_dictionary is None:
        raise UserError(f"{file}: is a language model, which needs no prompt model.")
    generated, read = symbols_of(prompt_models.dictionary), symbols_of(models.source_dictionary)
    if generated != read:
        raise UserError(
            f"{prompt_models.files[0]}: has a vocabulary of {len(generated)} words (fingerprint "
            f"{fingerprint(generated)}), but {file} reads prompts with one of {len(read)} "
            f"(fingerprint {fingerprint(read)}): train the prompt model on prompts that were "
            "binarised with the story model's source dictionary (fairseq-preprocess --srcdict)."
        )
