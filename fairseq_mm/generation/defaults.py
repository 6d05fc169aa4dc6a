"""Lists the default options of generation, one table per task.

They apply to options that the user does not set, in ``fairseq-generate``, validation by generated
text, the Python interface and the commands of ``fairseq-mm``. The options have the names of
fairseq's ``GenerationConfig``.
"""

from typing import Any

# the defaults of fairseq's GenerationConfig
FAIRSEQ_DEFAULTS: dict[str, Any] = {
    "beam": 5,
    "max_len_a": 0,
    "max_len_b": 200,
    "min_len": 1,
    "lenpen": 1.0,
    "no_repeat_ngram_size": 0,
    "temperature": 1.0,
}
CAPTIONS: dict[str, Any] = {**FAIRSEQ_DEFAULTS, "beam": 3, "max_len_b": 30}
# the length of visual stories is set sentence by sentence
VISUAL_STORIES: dict[str, Any] = FAIRSEQ_DEFAULTS
# Fan et al. 2018, section 5.4: stories of 150 words
PROMPT_STORIES: dict[str, Any] = {**FAIRSEQ_DEFAULTS, "min_len": 150, "max_len_b": 150}
# Yu et al. 2021: 64 tokens, with the beginning and the end; the released code blocks trigrams
SUMMARIES: dict[str, Any] = {**FAIRSEQ_DEFAULTS, "max_len_b": 62, "no_repeat_ngram_size": 3}

# presets: name -> options that replace defaults
VISUAL_STORY_PRESETS: dict[str, dict[str, Any]] = {
    "beam": {"beam": 5},
    "greedy": {"beam": 1},
    # Li et al. 2020; the released code takes the most frequent of 100 draws for each token
    "paper": {"beam": 1, "repetition_penalty": 5.0, "end_after_punctuation": True},
    "sampling": {"sampling": True},
}
PROMPT_STORY_PRESETS: dict[str, dict[str, Any]] = {
    # Fan et al. 2018, section 5.4, with the temperature of the released recipe
    "paper": {"sampling": True, "sampling_topk": 10, "temperature": 0.8},
    "greedy": {"beam": 1},
    "beam": {"beam": 5},
    "sampling": {"sampling": True},
}

# constraints that a task's texts may have, with their defaults
VISUAL_STORY_CONSTRAINTS: dict[str, Any] = {
    "min_words_per_sentence": 1,
    "max_words_per_sentence": 50,
    "repetition_penalty": 0.0,
    "end_after_punctuation": False,
}

# names of options in Hugging Face's transformers -> names here, for messages
NAMES_ELSEWHERE = {
    "num_beams": "beam",
    "beam_size": "beam",
    "num_return_sequences": "nbest",
    "do_sample": "sampling",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "length_penalty": "lenpen",
    "min_length": "min_len",
    "min_new_tokens": "min_len",
    "max_length": "max_len_b",
    "max_new_tokens": "max_len_b",
}

# utilities of minimum Bayes risk decoding
UTILITIES = ("bleu", "rouge_l", "meteor", "cider")
# default seed of sampling; fairseq's own --seed
SEED = 1
# types of the weights of linear layers that generation can use on a CPU
WEIGHTS_DTYPES = ("float32", "bfloat16", "int8")
# default numbers of sampled texts per input: to return, and for minimum Bayes risk to choose from
SAMPLING_BEAM = 1
MBR_BEAM = 16

ALLOW_UNK_HELP = (
    "Allow <unk> in generated text (default: the most probable other token takes its place)."
)
