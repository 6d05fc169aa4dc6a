"""Each repair of fairseq works, and only where its defect is present."""

import math
import os
import subprocess
from argparse import Namespace

import hydra
import pytest
import torch
from fairseq.models.bart import BARTModel
from fairseq.models.bart.model import bart_base_architecture
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from toy_data import (
    PACKAGE,
    make_captions_folder,
    make_dictionary,
)


@pytest.fixture
def data(tmp_path):
    return make_captions_folder(tmp_path / "data")


def called_with(monkeypatch, **settings):
    """Settings that fairseq's main gets."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.distributed import utils

    cfg = OmegaConf.structured(FairseqConfig())
    cfg.task = {"_name": "multimodal_captioning"}
    for group, values in settings.items():
        for key, value in values.items():
            cfg[group][key] = value
    seen = []
    utils.call_main(cfg, seen.append)
    return seen[0]


def test_bf16_asks_for_no_tpu(monkeypatch):
    cfg = called_with(monkeypatch, common={"bf16": True, "tpu": True, "cpu": True})
    assert not cfg.common.tpu
    assert not cfg.distributed_training.tpu
    assert cfg.common.bf16


def test_fp16_on_the_cpu_keeps_gradients_apart(monkeypatch):
    assert called_with(monkeypatch, common={"fp16": True, "cpu": True}).common.fp16_no_flatten_grads
    cfg = called_with(monkeypatch, common={"fp16": False, "cpu": True})
    assert not cfg.common.fp16_no_flatten_grads


class OnGpu(torch.Tensor):
    """Tensor on the CPU that is treated as one on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("kind", [torch.Tensor, OnGpu])
def test_blocking_of_repeats_equals_loops(kind):
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    generator = torch.Generator().manual_seed(5)
    cases = [(1, 0), (1, 5), (2, 1), (2, 7), (3, 1), (3, 2), (3, 9), (4, 3), (4, 11)]
    num_blocked, num_kept = 0, 0
    for n, step in cases:
        # padding (1) is also among the words if texts of other lengths join a batch
        tokens = torch.randint(4, 7, (9, 14), generator=generator)
        tokens[:, 0], tokens[0, :3] = 2, 1
        lprobs = torch.randn(9, 9, generator=generator)
        lprobs[:, 1] = -float("inf")
        # as for prefixes: one possible word in each row, and two in another row
        for row in (1, 2, 3):
            word = int(torch.randint(4, 7, (), generator=generator))
            lprobs[row, torch.arange(9) != word] = -float("inf")
        lprobs[4, [0, 1, 2, 3, 4, 7, 8]] = -float("inf")
        expected = lprobs.clone()
        for row, words in zip(expected, tokens[:, 1 : step + 1].tolist()):
            possible = [word for word in range(9) if math.isfinite(row[word])]
            for word in possible:
                grams = [[*words, word][i : i + n] for i in range(step + 2 - n)]
                if grams and grams[-1] in grams[:-1]:
                    num_blocked += len(possible) > 1
                    num_kept += len(possible) == 1
                    if len(possible) > 1:
                        row[word] = -float("inf")
        lprobs = lprobs.as_subclass(kind)
        found = NGramRepeatBlock(n, use_extension=False)(tokens, lprobs, 3, 3, step)
        assert found is lprobs
        assert torch.equal(found.as_subclass(torch.Tensor), expected)
    assert num_blocked > 20
    assert num_kept > 2


def test_building_a_generator_leaves_training_of_bart_as_it_was():
    dictionary = make_dictionary()
    sizes = {"layers": 1, "embed_dim": 4, "ffn_embed_dim": 6, "attention_heads": 2}
    args = Namespace(
        **{f"{side}_{name}": x for side in ("encoder", "decoder") for name, x in sizes.items()}
    )
    bart_base_architecture(args)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    torch.manual_seed(2)
    model = BARTModel.build_model(args, task).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    texts = torch.tensor([[4, 5, 6, 2], [7, 8, 9, 2], [10, 11, 12, 2]])
    before = model(texts, None, texts)[0]
    sample = {"net_input": {"src_tokens": texts, "src_lengths": None}}

    def scores_of_a_beam_of_one():
        generator = SequenceGenerator([model], dictionary, beam_size=1, max_len_b=5)
        return [x[0]["score"].item() for x in generator.generate([model], sample)]

    alone = scores_of_a_beam_of_one()
    SequenceGenerator([model], dictionary, beam_size=3)
    assert torch.equal(model(texts, None, texts)[0], before)
    assert scores_of_a_beam_of_one() == alone


def test_a_program_keeps_its_log_and_sees_no_warnings_of_fairseq(started_python):
    code = """
import logging, sys, warnings
import torch
filters = warnings.filters[:]
{before}
root = logging.getLogger()
state = root.handlers[:], root.level
import fairseq_mm, h5py
fairseq_mm.register()
assert "fairseq" in sys.modules
assert (root.handlers, root.level) == state, (root.handlers, root.level)
assert warnings.filters[: len(filters)] == filters
logging.getLogger("mine").debug("detail")
logging.getLogger("mine").warning("heard")
warnings.warn("mine too", FutureWarning)
"""

    def stderr(before=""):
        lines = subprocess.run(
            [started_python, "-c", code.format(before=before)],
            capture_output=True,
            text=True,
            check=True,
            cwd=PACKAGE.parent,
        ).stderr.splitlines()
        # Python 3.13 and newer print the line of a warning also of a program given by -c
        return [line for line in lines if line != '  warnings.warn("mine too", FutureWarning)']

    *noise, heard, warning = stderr()
    assert (noise, heard) == ([], "heard")
    assert warning.endswith("FutureWarning: mine too")
    own = "logging.basicConfig(level=logging.WARNING, format='own %(message)s')"
    *noise, heard, warning = stderr(own)
    assert (noise, heard) == ([], "own heard")


@pytest.mark.parametrize(
    ("recipe", "overrides", "line"),
    [
        (
            "video_summarization/config/vg_bart_base.yaml",
            ["model.dropout=0.1", "++model.attention_dropout=0.1", "task.data=DATA"],
            "vg_bart_base.yaml: model.activation_dropout, checkpoint.save_dir, "
            "checkpoint.finetune_from_model must be given on the command line, such as "
            "model.activation_dropout=...",
        ),
    ],
)
def test_a_recipe_that_is_not_complete_ends_hydra_in_one_line(
    started_python, recipe, overrides, line, tmp_path, data
):
    if hydra.__version__.startswith("1.0") and any(x.startswith("++") for x in overrides):
        pytest.skip("hydra 1.0 knows no ++")
    path = PACKAGE.parent / "examples" / recipe
    command = [started_python, "-m", "fairseq_cli.hydra_train", "--config-dir", str(path.parent)]
    command += ["--config-name", path.stem, f"common.user_dir={PACKAGE}", "common.cpu=True"]
    command += [x.replace("DATA", str(data)) for x in overrides]
    environment = {key: x for key, x in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert line in last
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
