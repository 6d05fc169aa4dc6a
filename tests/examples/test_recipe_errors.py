"""What a recipe refuses in one line: inputs that its first step would only notice later."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# recipe, arguments, variables; below, what the line begins with
TABLE = """
hierarchical_story/2_train_seq2seq data saved SIZE=big
    SIZE must be full or small, but is big instead.
hierarchical_story/2_train_seq2seq data saved GPUS=16
    GPUS must divide 8, the number of batches of 1,500 tokens in an update, but is 16.
hierarchical_story/2_train_seq2seq data saved GPUS=2 SIZE=small
    GPUS must divide 1, the number of batches of 3,000 tokens in an update, but is 2.
hierarchical_story/2_train_seq2seq data saved GPUS=2 TOKENS=4000
    TOKENS must be 1500 or more and divide 6000, a GPU's part of an update, but is 4000.
hierarchical_story/2_train_seq2seq data saved TOKENS=750
    TOKENS must be 1500 or more and divide 12000, a GPU's part of an update, but is 750.
hierarchical_story/2_train_seq2seq data saved TOKENS=3k
    TOKENS must be 1500 or more and divide 12000, a GPU's part of an update, but is 3k.
hierarchical_story/2_train_seq2seq data saved GPUS=two
    GPUS must be a number of 1 or more, but is two.
hierarchical_story/2_train_seq2seq data saved WORLD_SIZE=2
    GPUS must be the number of processes that were started, 2, but is 1.
video_summarization/1_train data saved m_rnn
    m_rnn is no system of these tables: s2s,
video_summarization/1_train data saved pointer_generator_coverage
    pointer_generator_coverage goes on from a pointer_generator: PRETRAINED=
video_summarization/1_train data saved vg_bart_fg
    vg_bart_fg begins with a pretrained model: PRETRAINED=
video_summarization/1_train data saved bart GPUS=7 PRETRAINED=x
    GPUS must divide 120, the number of examples
video_summarization/1_train data saved bart GPUS=4 BATCH=7 PRETRAINED=x
    GPUS times BATCH must divide 120, but is 4 times 7.
video_summarization/1_train data saved s2s BATCH=0
    BATCH must be a number of 1 or more, but is 0.
video_summarization/1_train data saved s2s BATCH=ten
    BATCH must be a number of 1 or more, but is ten.
visual_storytelling/1_train data saved glac SIZE=big
    SIZE must be full or small, but is big instead.
visual_storytelling/1_train data saved glac GPUS=3
    GPUS must divide 64, the number of stories in an update, but is 3.
visual_storytelling/1_train data saved m_rnn SIZE=small
    SIZE=small has no sizes for m_rnn.
visual_storytelling/strong data saved SEEDS=none
    SEEDS must be a number from 1 to 9, but is none.
multimodal_captioning/train_vse data saved PAPER=yes
    PAPER must be 1 or unset, but is yes.
multimodal_captioning/train_vse data saved GPUS=3
    GPUS must divide 128, the number of pairs in an update, but is 3.
multimodal_captioning/train_sc_nlm data saved embedding PAPER=yes
    PAPER must be 1 or unset, but is yes.
multimodal_captioning/train_sc_nlm data saved embedding GPUS=2 SLURM_NTASKS=2
    train_sc_nlm.sh embeds the sentences before it trains: start it once
multimodal_captioning/train_sc_nlm data saved embedding
    train_sc_nlm.sh: data/valid.jsonl: has no tags; scripts/tag_pos.py data
multimodal_captioning/own_images own/captions.jsonl saved UPDATES=abc
    UPDATES must be a number of 1 or more, but is abc.
hierarchical_story/own_prompts no.jsonl saved UPDATES=5
    no.jsonl: no such file.
video_summarization/own_videos no.jsonl saved UPDATES=5
    no.jsonl: no such file.
visual_storytelling/own_albums no.jsonl saved UPDATES=5
    no.jsonl: no such file.
multimodal_captioning/own_images no.jsonl saved UPDATES=5
    no.jsonl: no such file.
multimodal_captioning/strong no_text photos saved
    no_text: no prepared data folder: it has no train.jsonl.
multimodal_captioning/strong data photos saved CRITICAL_UPDATES=no
    CRITICAL_UPDATES must be a number of 1 or more, but is no.
multimodal_captioning/strong data photos saved NETWORK_UPDATES=no
    NETWORK_UPDATES must be a number, but is no.
"""
LINES = TABLE.strip().split("\n")


@pytest.mark.parametrize(("call", "message"), zip(LINES[::2], LINES[1::2]))
def test_a_recipe_refuses_in_one_line(run_recipe, tmp_path, call, message):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("dict.txt", "prepare.json", "train.bin", "train.idx", "features.h5"):
        (data / name).touch()
    (data / "train.jsonl").write_text('{"captions": ["a"], "tags": ["D"]}\n')
    (data / "valid.jsonl").write_text('{"captions": ["a"]}\n')
    recipe, *words = call.split()
    example, name = recipe.split("/")
    arguments = [word for word in words if "=" not in word]
    variables = dict(word.split("=") for word in words if "=" in word)
    stderr = run_recipe(EXAMPLES / example, name, *arguments, status=2, **variables)
    assert stderr.startswith(message.strip())
    assert stderr.count("\n") == 1
    assert not (tmp_path / "saved").exists()
