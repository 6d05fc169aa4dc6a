"""Generates and scores texts for all tasks, in Python and for the commands of ``fairseq-mm``.

    import fairseq_mm

    model = fairseq_mm.from_pretrained("checkpoints/glac", weights="resnet152.pt")
    model.generate(["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"], beam=5)[0].sentences

The checkpoint's task defines the processor that reads inputs, the defaults of generation, and the
constraints of its texts. :meth:`Generator.generate` processes the inputs, batches them, calls the
task's fairseq generator, and returns hypotheses in the order of the inputs.
"""

import contextlib
import dataclasses
import importlib
import inspect
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from fairseq import utils

from fairseq_mm.compat import allocator
from fairseq_mm.errors import UserError, first_line
from fairseq_mm.generation.config import GenerationConfig, typed_option
from fairseq_mm.generation.running_batch import RunningBatch, can_join
from fairseq_mm.generation.task import tokens_never_generated
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.checkpoint_files import compute_digests
from fairseq_mm.inference.hypothesis import Hypothesis
from fairseq_mm.inference.processor import Decoded, Example, Processor
from fairseq_mm.inference.set_up import Picklable
from fairseq_mm.metrics.rewards import expected_utilities

logger = logging.getLogger(__name__)
# two streams of random numbers: a prompt and its story must not be sampled with equal numbers
STREAMS = ("text", "prompt")
# sampling of generated prompts, Fan et al. 2018, section 5.4
PROMPT_OPTIONS: dict[str, Any] = {"topk": 10, "temperature": 1.0}
# Joining a batch costs about as much as this number of steps: the inputs are encoded and make their
# first step apart, and the state of all rows is copied. Inputs therefore wait until empty places
# have cost as much.
JOINING_STEPS = 1.0


class _Numbered(NamedTuple):
    """Input with its index for random numbers and its position in the list of inputs."""

    example: Example
    index: int  # type: ignore[assignment]
    position: int


class Progress:
    """Incomplete texts of a batch, which change at every step of the search.

    Args:
        processor: Processor that decodes tokens.
        inputs: Inputs of the batch.
        watch: Function that is called with this object before each step.
    """

    def __init__(
        self,
        processor: Processor,
        inputs: Sequence[_Numbered],
        watch: "Callable[[Progress], None]",
    ) -> None:
        self._processor = processor
        self._inputs = list(inputs)
        self._watch = watch

    @property
    def positions(self) -> list[int]:
        """Positions, among all inputs of :meth:`Generator.stream`, of the inputs whose text is
        still being generated."""
        return [source.position for source in self._inputs]

    def decode(self, position: int) -> Decoded:
        """Return the text so far of the input at ``position``.

        In a beam search, the text is the best beam so far; after the next step, another beam may be
        the best.
        """
        place = self.positions.index(position)
        tokens = self._tokens[place].cpu()
        # processors expect no start token, but the end of the text
        ended = torch.cat([tokens[1:], tokens.new_tensor([self._processor.dictionary.eos()])])
        return self._processor.decode(ended, self._inputs[place].example)

    @contextlib.contextmanager
    def watching(self, search: Any) -> Iterator[None]:
        """Call the function before each step of a search, in a ``with`` block."""
        step, prune_sentences = search.step, search.prune_sentences

        def watched_step(
            number: int, lprobs: torch.Tensor, scores: Any, prev: torch.Tensor, *others: Any
        ) -> Any:
            # [rows * beam, t]: fairseq keeps the beams of a row in the order of their scores
            self._tokens = prev.view(len(self._inputs), -1, prev.size(1))[:, 0]
            self._watch(self)
            return step(number, lprobs, scores, prev, *others)

        def watched_prune(batch_idxs: torch.Tensor) -> None:
            # rows with complete texts leave the batch
            self._inputs = [self._inputs[i] for i in batch_idxs.tolist()]
            prune_sentences(batch_idxs)

        # not a search around the search: tasks look for the classes of their own searches
        search.step, search.prune_sentences = watched_step, watched_prune
        try:
            yield
        finally:
            del search.step, search.prune_sentences


class Generator(Picklable):
    """Generator of texts with one model, or with an ensemble whose probabilities are averaged.

    Args:
        loaded: Models. The generator prepares them for generation, so that they cannot be trained
            afterwards.
        prompt_generator: Generator of prompts, for models that generate stories from prompts.
        **options: Options of the task's processor, such as ``weights``.

    Attributes:
        processor: Processor of the task, see :class:`.Processor`.
        max_len: Maximum number of tokens of a text, without ``</s>``, for which all models have
            positions.
    """

    # a copy builds its own generator, which holds the copy's models
    not_pickled = ("_built",)
    # config, random stream and fairseq generator of the last texts
    _built: Optional[tuple[GenerationConfig, str, Any]] = None

    def __init__(
        self,
        loaded: LoadedModels,
        *,
        prompt_generator: Optional["Generator"] = None,
        **options: Any,
    ) -> None:
        self.loaded = loaded
        self.task = loaded.task
        self.models = loaded.models
        self.files = loaded.files
        self.architectures = loaded.architectures
        self.device = loaded.device
        self.dictionary = loaded.task.target_dictionary
        self.prompt_generator = prompt_generator
        self.processor = build_processor(loaded, options)
        loaded.prepare_for_generation()
        # texts can be no longer than the model of an ensemble with the fewest positions allows,
        # and </s> takes one of the positions
        self.max_len = min(model.max_decoder_positions() for model in self.models) - 1

    def __repr__(self) -> str:
        files, outputs = os.pathsep.join(self.files), self.task.text_names[1]
        return f"Generator({files!r}: {outputs} by {self.architectures[0]}, {self.device})"

    def config(self, preset: Optional[str] = None, **options: Any) -> GenerationConfig:
        """Build a config for generating with the models, and check that its options fit them.

        The options are fields of :class:`.GenerationConfig`, and constraints of the task; they
        replace values of the ``preset``.
        """
        config = GenerationConfig.of_task(self.task, preset, **options)
        positions = f"for which {self.files[0]} has positions"
        limits: dict[str, tuple[int, str]] = {
            # the first step of a search has one candidate for each token but padding
            "beam": (len(self.dictionary) - 1, "the size of the vocabulary"),
            "sampling_topk": (len(self.dictionary) - 1, "the size of the vocabulary"),
            **{x: (self.max_len, positions) for x in ("max_len_b", "min_len") if x in options},
        }
        if config.no_repeat_ngram_size == 1:
            # each token occurs once at most
            never = tokens_never_generated(self.dictionary, allow_unk=config.allow_unk)
            count = len(self.dictionary) - len(
                {*never, self.dictionary.pad(), self.dictionary.eos()}
            )
            limits["min_len"] = (count, "the tokens that may occur once")
        for name, (limit, reason) in limits.items():
            if getattr(config, name) > limit:
                expected = f"at most {limit}, {reason}"
                typed_option(name, getattr(config, name), int, most=limit, expected=expected)
        self._encode_prefix(config)
        # built here, so that an option that the task refuses is reported before inputs are read
        self._fairseq_generator(config, "text")
        return config

    def _fairseq_generator(self, config: GenerationConfig, stream: str) -> Any:
        """Return fairseq's generator for a config, with random numbers of one of ``STREAMS``."""
        # `config` builds it to check the options, and `stream` asks for the same generator again
        if self._built is None or self._built[:2] != (config, stream):
            # a number for the stream: the seed of a sample is a list of integers
            generator = self.task.generator_for(self.models, config, stream=STREAMS.index(stream))
            self._built = (config, stream, generator)
        return self._built[2]

    def generate(
        self,
        inputs: Any = None,
        *,
        n: Optional[int] = None,
        preset: Optional[str] = None,
        indices: Optional[Sequence[int]] = None,
        batch_size: Optional[int] = None,
        reading: Optional[dict[str, Any]] = None,
        **options: Any,
    ) -> Any:
        """Generate the best hypotheses of each input.

        Args:
            inputs: One input or a list of inputs, as the task's processor accepts them: images,
                image sequences, prompts, or videos with transcripts. None for language models, and
                if a prompt model generates the prompts.
            n: Number of texts to generate if ``inputs`` is None.
            preset: Name of a preset of the task, whose values replace the defaults.
            indices: Index of each input; with the option ``sampling``, the random numbers of an
                input depend on its index. By default the positions of the inputs.
            batch_size: Number of inputs per batch; it changes only the speed.
            reading: Options for reading the inputs, see ``examples`` of the task's processor.

        Returns:
            For one input, a list of its ``nbest`` hypotheses; for a list of inputs, a list of such
            lists.
        """
        config = self.config(preset, **options)
        if indices is not None:
            limits: Any = {"most": 2**63 - 1, "expected": "integers from 0 to 2**63 - 1"}
            listed = indices.tolist() if isinstance(indices, torch.Tensor) else indices
            indices = [typed_option("indices", x, int, least=0, **limits) for x in listed]
        inputs = _without_iterator(inputs)
        single = inputs is not None and self.processor.is_single(inputs)
        if inputs is None:
            inputs = self.missing_inputs(1 if n is None else n, config, batch_size=batch_size)
        elif n is not None:
            raise UserError("`n` is the number of texts without inputs, but there are inputs.")
        examples = self.read([inputs] if single else list(inputs), reading)
        generated = list(self.stream(examples, config, indices=indices, batch_size=batch_size))
        return generated[0] if single else generated

    def read(self, inputs: Sequence[Any], reading: Optional[dict[str, Any]]) -> list[Example]:
        """Convert inputs to examples; raise UserError that names the first unreadable input."""
        examples = []
        for position, example in enumerate(self.processor.examples(inputs, **(reading or {}))):
            if isinstance(example, UserError):
                name = self.processor.describe_input(inputs[position], position)
                raise UserError(f"{name}: {example}")
            examples.append(example)
        return examples

    def _size_of_batches(self, batch_size: Optional[int]) -> int:
        if batch_size is None:
            return self.processor.batch_sizes[self.device.type != "cpu"]
        return typed_option("batch_size", batch_size, int, least=1)

    def sample(self, inputs: Any = None, **options: Any) -> Any:
        """Call :meth:`generate` with ``sampling=True``, like ``sample`` of fairseq's hub models."""
        return self.generate(inputs, **{"sampling": True, **options})

    def missing_inputs(
        self, n: int, config: GenerationConfig, *, batch_size: Optional[int] = None
    ) -> list[Any]:
        """Return ``n`` inputs for a user who gives none: None for a language model, otherwise
        generated prompts."""
        n = typed_option("n", n, int, least=1)
        if self.loaded.are_language_models:
            return [None] * n
        if self.prompt_generator is None:
            raise UserError(
                f"{self.files[0]}: generates {self.task.text_names[1]} from "
                f"{self.task.input_names[1]}: give some."
            )
        return generate_prompts(
            self.prompt_generator,
            range(n),
            seed=config.seed,
            batch_size=batch_size,
            max_words=getattr(self.processor, "max_source_words", None),
        )

    def describe_run(self, config: GenerationConfig, reading: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of JSON records that say how a text was generated.

        ``reading`` has the options for reading the inputs.
        """
        options = {name: value for name, value in config.to_dict().items() if value is not None}
        options.update(self.processor.describe_reading(reading))
        facts = {"checkpoint": compute_digests(self.files), "options": options}
        if self.processor.extractor_identity is not None:
            facts["extractor"] = self.processor.extractor_identity
        if self.prompt_generator is not None:
            facts["prompt_options"] = {**PROMPT_OPTIONS, "seed": config.seed}
            facts["prompt_checkpoint"] = compute_digests(self.prompt_generator.files)
        return facts

    def stream(
        self,
        examples: Sequence[Example],
        config: GenerationConfig,
        *,
        indices: Optional[Sequence[int]] = None,
        batch_size: Optional[int] = None,
        stream: str = "text",
        watch: Optional[Callable[[Progress], None]] = None,
    ) -> Iterator[list[Hypothesis]]:
        """Generate hypotheses for inputs that have been read.

        With models that support continuous batching, and without ``watch``, a waiting input takes
        the place of an input whose texts have ended. Otherwise each batch is generated on its own.
        The hypotheses are the same.

        Args:
            examples: Inputs as read by ``self.processor.examples``.
            config: Config from :meth:`config`.
            indices: Index of each input for random numbers, see :meth:`generate`.
            batch_size: Number of inputs per batch; it changes only the speed.
            stream: Name of the stream of random numbers for sampling, one of ``STREAMS``.
            watch: Function that is called before each step with the incomplete texts of a batch. If
                it raises an exception, the generation ends with it.

        Yields:
            The ``nbest`` hypotheses of each input, in the order of the inputs, as soon as its
            texts and the texts of all earlier inputs are complete.
        """
        size = self._size_of_batches(batch_size)
        # strict: one index for each input
        indices = range(len(examples)) if indices is None else indices
        pairs = enumerate(zip(examples, indices, strict=True))
        inputs = [_Numbered(example, index, position) for position, (example, index) in pairs]
        generator = self._fairseq_generator(config, stream)
        waiting: dict[int, list[Hypothesis]] = {}
        following = 0
        is_continuous = watch is None and len(inputs) > size and can_join(generator, self.models)
        # a continuous batch takes its inputs from a group of any size
        groups = self.processor.batches(examples, max(size, len(inputs)) if is_continuous else size)
        full = size
        for positions in groups:
            left = {position: inputs[position] for position in positions}
            while left:
                batch = list(left.values())
                short = ""
                try:
                    generated: Iterable[tuple[int, list[Hypothesis]]]
                    if is_continuous and len(batch) > size:
                        generated = self._generate_continuously(generator, config, batch, size)
                    else:
                        generated = self._generate(generator, config, batch[:size], watch)
                    for position, hypotheses in generated:
                        del left[position]
                        # a text can be complete before the texts of earlier inputs
                        waiting[position] = hypotheses
                        while following in waiting:
                            yield waiting.pop(following)
                            following += 1
                except (RuntimeError, MemoryError) as error:
                    if not allocator.is_out_of_memory(error):
                        raise
                    short = first_line(error)
                if not short:
                    continue
                # Only now, because the frames of the error held the batch that did not fit.
                generated = ()
                allocator.release_freed_memory()
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                tried, noun = min(len(batch), size), self.task.input_names[1]
                if tried == 1:
                    raise UserError(f"memory is short even for one of the {noun}: {short}")
                if size == full:
                    logger.warning(
                        f"memory is short for batches of {tried} {noun}: they have at most "
                        f"{tried // 2} now; --batch-size {tried // 2} saves the attempt"
                    )
                size = tried // 2

    def _generate_continuously(
        self, generator: Any, config: GenerationConfig, inputs: Sequence[_Numbered], size: int
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Generate hypotheses in one batch of at most ``size`` inputs, in which waiting inputs
        replace finished ones; yield (position, hypotheses) in the order in which inputs finish."""
        by_position = {x.position: x for x in inputs}
        batch: Optional[RunningBatch] = None
        following = 0
        wasted = 0.0  # steps of an empty batch that the empty places since the last join amount to
        while batch or following < len(inputs):
            free = size - len(batch or ())
            is_waiting = following < len(inputs)
            if not batch or (is_waiting and wasted >= JOINING_STEPS):
                joining = inputs[following : following + free]
                following += len(joining)
                batch, finished = self._begin(generator, config, joining, batch)
                wasted = 0.0
            else:
                most = math.inf
                if is_waiting and free:
                    most = math.ceil((JOINING_STEPS - wasted) * size / free)
                num_steps, finished = self._continue(batch, most)
                wasted += num_steps * free / size
            for position, hypotheses in finished:
                yield position, self._rank(config, hypotheses, by_position[position])

    def _begin(
        self,
        generator: Any,
        config: GenerationConfig,
        inputs: Sequence[_Numbered],
        batch: Optional[RunningBatch],
    ) -> tuple[RunningBatch, list[tuple[int, Any]]]:
        """Make the first decoding step of inputs, and add unfinished inputs to ``batch`` (None: a
        new batch). Return it, and (position, fairseq's hypotheses) of each finished input."""
        with torch.no_grad(), self.task.searching(generator, self.models):
            sample, prefix = self._collate(config, inputs)
            # `collate` sorts the inputs; `item` has their original places
            keys = [inputs[place].position for place in sample["item"].tolist()]
            self.task.use_weights(generator, self.models)
            prefix = self.task.get_prefix(sample) if prefix is None else prefix
            start = self.task.start_index
            joining = RunningBatch(generator, sample, keys, prefix=prefix, start=start)
            finished = joining.step()
            if batch and joining:
                batch.join(joining)
            return batch or joining, finished

    def _continue(self, batch: RunningBatch, most: float) -> tuple[int, list[tuple[int, Any]]]:
        """Make at most ``most`` decoding steps, until an input is finished. Return the number of
        steps, and (position, fairseq's hypotheses) of each finished input."""
        generator = batch.generator
        finished: list[tuple[int, Any]] = []
        num_steps = 0
        with torch.no_grad(), self.task.searching(generator, self.models):
            # another generator may have used other weights since the last step
            self.task.use_weights(generator, self.models)
            while num_steps < most and not finished:
                finished = batch.step()
                num_steps += 1
        return num_steps, finished

    def _generate(
        self,
        generator: Any,
        config: GenerationConfig,
        inputs: Sequence[_Numbered],
        watch: Optional[Callable[[Progress], None]],
    ) -> list[tuple[int, list[Hypothesis]]]:
        """Generate one batch; return (position, hypotheses) of its inputs; call ``watch`` before
        each step."""
        sample, prefix = self._collate(config, inputs)
        # `collate` sorts the batch by the length of its sources; `item` has the original places
        inputs = [inputs[place] for place in sample["item"].tolist()]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if watch is not None:
                progress = Progress(self.processor, inputs, watch)
                stack.enter_context(progress.watching(generator.search))
            finalized = self.task.inference_step(
                generator, self.models, sample, prefix_tokens=prefix
            )
        return [
            (x.position, self._rank(config, hypotheses, x))
            for x, hypotheses in zip(inputs, finalized)
        ]

    def _collate(
        self, config: GenerationConfig, inputs: Sequence[_Numbered]
    ) -> tuple[dict[str, Any], Optional[torch.Tensor]]:
        """Return the batch of the inputs on the models' device, and the prefix of its texts."""
        sample = self.processor.sample([x.example for x in inputs], [x.index for x in inputs])
        sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
        prefix = self._encode_prefix(config)
        if prefix is not None:
            prefix = prefix.to(self.device).expand(len(inputs), -1)
        return sample, prefix

    def _rank(
        self, config: GenerationConfig, hypotheses: Sequence[Any], source: _Numbered
    ) -> list[Hypothesis]:
        """Build the ``nbest`` hypotheses of an input from fairseq's hypotheses, best first."""
        # minimum Bayes risk compares all samples
        number = config.nbest if config.mbr is None else config.beam
        built = [
            self._build_hypothesis(best, source.example, source.index)
            for best in hypotheses[:number]
        ]
        if config.mbr is not None:
            values = expected_utilities([sample.text for sample in built], config.mbr)
            rated = [
                dataclasses.replace(sample, utility=float(value))
                for sample, value in zip(built, values)
            ]
            # rounded: equal sums may differ in their last bits
            rated.sort(key=lambda x: (-round(x.utility or 0.0, 9), -x.score))
            built = rated[: config.nbest]
        return built

    def _build_hypothesis(
        self, finished: dict[str, Any], example: Example, index: int
    ) -> Hypothesis:
        tokens = finished["tokens"].int().cpu()
        decoded = self.processor.decode(tokens, example)
        return Hypothesis(
            text=decoded.text,
            score=float(finished["score"]),
            tokens=tokens.tolist(),
            positional_scores=finished["positional_scores"].tolist(),
            line=decoded.line,
            sentences=list(decoded.sentences),
            index=index,
            source=example.origin,
        )

    def _encode_prefix(self, config: GenerationConfig) -> Optional[torch.Tensor]:
        """Return the tokens [p] of the option ``prefix``, without ``</s>``; None if not set."""
        words = (config.prefix or "").split()
        if not words:
            return None
        special = set(self.dictionary.symbols[: self.dictionary.nspecial]).intersection(words)
        if special or len(words) >= config.max_len_b:
            raise UserError(
                f"prefix {config.prefix!r}: must have fewer tokens than a text, which has at most "
                f"{config.max_len_b}, and no control symbols of the dictionary."
            )
        return self.processor.encode(" ".join(words))[:-1]  # without </s>

    def encode(self, text: str) -> torch.Tensor:
        """Return a text as indices [t] in the target dictionary, with ``</s>``."""
        return self.processor.encode(typed_option("text", text, str))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the detokenized text of indices in the target dictionary."""
        return self.processor.decode(torch.tensor([*tokens]), Example()).text

    def score(
        self,
        texts: Union[str, Sequence[str]],
        inputs: Any = None,
        *,
        batch_size: Optional[int] = None,
        reading: Optional[dict[str, Any]] = None,
    ) -> Any:
        """Compute log-probabilities of given texts, like ``fairseq-generate --score-reference``.

        Args:
            texts: One text, or one for each input. All words must be in the vocabulary; a visual
                story must have its separators between sentences.
            inputs: One input or a list of inputs, see :meth:`generate`; None for language models.

        Returns:
            A :class:`.Hypothesis` for one text, a list of hypotheses for a list of texts.
        """
        single = isinstance(texts, str)
        listed = [texts] if isinstance(texts, str) else list(texts)
        if inputs is None:
            values: list[Any] = [None] * len(listed)
        else:
            inputs = _without_iterator(inputs)
            values = [inputs] if self.processor.is_single(inputs) else list(inputs)
        # strict: one text for each input
        targets = [self.encode(text) for text, _ in zip(listed, values, strict=True)]
        ordered = self.score_tokens(targets, self.read(values, reading), batch_size=batch_size)
        return ordered[0] if single else ordered

    def score_tokens(
        self,
        targets: Sequence[torch.Tensor],
        examples: Sequence[Example],
        *,
        batch_size: Optional[int] = None,
    ) -> list[Hypothesis]:
        """Return a :class:`.Hypothesis` with the log-probabilities of each text.

        ``targets`` are token indices [t] with ``</s>``, ``examples`` the inputs of the texts.
        """
        size = self._size_of_batches(batch_size)
        scored: dict[int, Hypothesis] = {}
        for positions in self.processor.batches(examples, size):
            batch = [examples[position] for position in positions]
            sample = self.processor.sample(
                batch, positions, targets=[targets[position] for position in positions]
            )
            sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
            for place, hypothesis in zip(sample["item"].tolist(), self._score(sample, batch)):
                scored[positions[place]] = hypothesis
        return [scored[position] for position in range(len(targets))]

    def compare(
        self,
        hypotheses: Sequence[Hypothesis],
        examples: Sequence[Example],
        *,
        batch_size: Optional[int] = None,
    ) -> list[list[float]]:
        """Return the log-likelihood of each hypothesis under each of the inputs ``examples``."""
        targets = [torch.tensor(hypothesis.tokens) for hypothesis in hypotheses]
        number = len(examples)
        scored = self.score_tokens(
            [target for target in targets for _ in examples],
            [*examples] * len(targets),
            batch_size=batch_size,
        )
        sums = [sum(x.positional_scores) for x in scored]
        return [sums[start : start + number] for start in range(0, len(sums), number)]

    def _score(self, sample: dict[str, Any], examples: Sequence[Example]) -> list[Hypothesis]:
        from fairseq.sequence_scorer import SequenceScorer

        scorer = SequenceScorer(self.dictionary)
        with torch.no_grad():
            finalized = scorer.generate(self.models, sample)
        places, indices = sample["item"].tolist(), sample["id"].tolist()
        return [
            self._build_hypothesis(hypotheses[0], examples[place], index)
            for place, index, hypotheses in zip(places, indices, finalized)
        ]


def _without_iterator(inputs: Any) -> Any:
    """Return ``inputs``; convert an iterator to a list, since it can be read only once."""
    # an open file iterates over its lines, but is one input
    is_file = hasattr(inputs, "read")
    return list(inputs) if isinstance(inputs, Iterator) and not is_file else inputs


def build_processor(loaded: LoadedModels, options: dict[str, Any]) -> Processor:
    """Build the processor of the models' task; options that are None are left out."""
    named = loaded.task.processor
    if isinstance(named, str):
        module, _, name = named.partition(":")
        named = getattr(importlib.import_module(module), name)
    options = {name: value for name, value in options.items() if value is not None}
    parameters = inspect.signature(named).parameters
    for name in options:
        if name not in parameters or not loaded.feature_dim:
            raise UserError(
                f"`{name}` is no option of models that read {loaded.task.input_names[1]}, such as "
                f"{loaded.files[0]}."
            )
    return named(loaded, **options)


def generate_prompts(
    generator: Generator,
    indices: Sequence[int],
    *,
    seed: int,
    topk: int = PROMPT_OPTIONS["topk"],
    temperature: float = PROMPT_OPTIONS["temperature"],
    max_words: Optional[int] = None,
    batch_size: Optional[int] = None,
) -> list[Any]:
    """Sample prompts from a language model (Fan et al. 2018, section 5.4).

    Args:
        indices: Index of each prompt; the random numbers of a prompt depend on it.
        topk: Number of most probable tokens to sample from at each step; 0 samples from all.
        max_words: Maximum number of words of a prompt; by default the model's number of positions.

    Returns:
        The prompts, as :class:`.prompt_processor.Prompt`.
    """
    from fairseq_mm.inference.prompt_processor import Prompt

    # one token fewer than the vocabulary has, because padding is never generated
    config = generator.config(
        sampling=True,
        sampling_topk=min(topk, len(generator.dictionary) - 1) if topk else -1,
        temperature=temperature,
        min_len=1,
        max_len_b=min(generator.max_len, max_words or generator.max_len),
        seed=seed,
    )
    examples = [
        example
        for example in generator.processor.examples([None] * len(indices))
        if isinstance(example, Example)
    ]
    hypotheses = generator.stream(
        examples, config, indices=indices, batch_size=batch_size, stream="prompt"
    )
    return [
        Prompt(best.text, best.line.split(), best.tokens, score=best.score)
        for best, *_ in hypotheses
    ]
