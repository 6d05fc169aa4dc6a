"""Dictionaries of fairseq in checkpoints come back whole; other objects are refused by name."""

import pickle
from collections import OrderedDict

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.data.legacy.masked_lm_dictionary import BertDictionary
from fairseq.meters import AverageMeter, StopwatchMeter, TimeMeter
from fairseq.tasks.audio_finetuning import AudioFinetuningConfig, AudioFinetuningTask
from fairseq.tasks.translation import TranslationConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
from fairseq_mm.errors import UserError


def load_as_fairseq(path):
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))


READERS = [load_as_fairseq, read_foreign_checkpoint]


def checkpoint(**content):
    history = [{"criterion_name": "A", "best_loss": None}]
    return {"args": None, "optimizer_history": history, "extra_state": {}, "model": {}, **content}


def saved_and_read(read, tmp_path, content, zipped=True):
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    return read(tmp_path / "a.pt")


def make_dictionary(**options):
    dictionary = Dictionary(**options)
    for symbol, count in (("|", 7), ("a", 3), ("ß", 2)):
        dictionary.add_symbol(symbol, count)
    return dictionary


def make_dictionary_with_a_symbol_twice():
    dictionary = make_dictionary()
    dictionary.add_symbol("a", 5, overwrite=True)
    return dictionary


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "dictionary",
    [
        make_dictionary(),
        make_dictionary(add_special_symbols=False),
        make_dictionary(bos="<ctc>", extra_special_symbols=["<mask>", "<sep>"]),
        make_dictionary_with_a_symbol_twice(),
        Dictionary(),
    ],
    ids=["plain", "without special symbols", "other special symbols", "a symbol twice", "new"],
)
def test_a_dictionary_comes_back_whole(read, zipped, dictionary, tmp_path):
    state = checkpoint(task_state={"target_dictionary": dictionary, "dictionaries": [dictionary]})
    state = saved_and_read(read, tmp_path, state, zipped)
    found = state["task_state"]["target_dictionary"]
    assert type(found) is Dictionary
    assert vars(found) == vars(dictionary)
    assert state["task_state"]["dictionaries"][0] is found


def test_audio_finetuning_finds_its_dictionary_in_a_checkpoint(tmp_path):
    """The folder that a model was trained on is not needed to generate with it."""
    (tmp_path / "dict.ltr.txt").write_text("| 9\nE 5\nT 4\n")
    cfg = OmegaConf.structured(AudioFinetuningConfig(data=str(tmp_path), labels="ltr"))
    task = AudioFinetuningTask.setup_task(cfg)
    expected = task.target_dictionary.symbols
    state = saved_and_read(load_as_fairseq, tmp_path, checkpoint(task_state=task.state_dict()))
    (tmp_path / "dict.ltr.txt").unlink()
    restored = AudioFinetuningTask.setup_task(cfg)
    restored.load_state_dict(state["task_state"])
    assert restored.target_dictionary.symbols == expected
    assert restored.target_dictionary.string(torch.tensor([5, 6, 4])) == "E T |"


@pytest.mark.parametrize("read", READERS)
def test_meters_are_emptied_and_types_of_configurations_forgotten(read, tmp_path):
    cfg = DictConfig({"data": "x"})
    cfg._metadata.object_type = TranslationConfig
    meters = OrderedDict(loss=AverageMeter(), wall=TimeMeter(), train=StopwatchMeter())
    meters["loss"].update(2.5)
    state = checkpoint(extra_state={"train_meters": meters}, task_state={"cfg": cfg})
    state = saved_and_read(read, tmp_path, state)
    assert dict(state["extra_state"]["train_meters"]) == {"loss": {}, "wall": {}, "train": {}}
    assert state["task_state"]["cfg"] == {"data": "x"}
    assert state["task_state"]["cfg"]._metadata.object_type is dict


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (BertDictionary(), "fairseq.data.legacy.masked_lm_dictionary.BertDictionary"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (Dictionary.load, "builtins.getattr"),
        (checkpoint_utils.prune_state_dict, "fairseq.checkpoint_utils.prune_state_dict"),
    ],
)
def test_other_objects_are_refused_by_name(read, thing, name, tmp_path):
    with pytest.raises(UserError) as caught:
        saved_and_read(read, tmp_path, checkpoint(task_state={"thing": thing}))
    assert f"{tmp_path}/a.pt: " in str(caught.value)
    assert name in str(caught.value)
    assert "If you trust it, load it once with torch.load" in str(caught.value)


class Pickled:
    """An object whose pickle is a Dictionary with these attributes."""

    def __init__(self, attributes):
        self.attributes = attributes

    def __reduce__(self):
        return Dictionary, (), self.attributes


def attributes(**changed):
    return {**vars(make_dictionary()), **changed}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "crafted",
    [
        attributes(symbols="abcdefg"),
        attributes(symbols=[*"abcdef", 7]),
        attributes(symbols=[*"abc"]),
        attributes(count=[1] * 6 + ["1"]),
        attributes(count=[True] * 7),
        attributes(indices={}),
        attributes(indices={**make_dictionary().indices, "a": 99}),
        attributes(indices={**make_dictionary().indices, "a": 4}),
        attributes(indices={**make_dictionary().indices, "b": -1}),
        attributes(indices={**make_dictionary().indices, "a": 5.0}),
        attributes(indices=OrderedDict(make_dictionary().indices)),
        attributes(unk_index=99),
        attributes(unk_index="3"),
        attributes(eos_word=["</s>"]),
        attributes(string=3),
        attributes(index=["a"]),
        attributes(__class__="x"),
        {"symbols": [], "count": []},
        ({}, {"symbols": []}),
    ],
    ids=str,
)
def test_crafted_dictionaries_are_refused(read, crafted, tmp_path):
    with pytest.raises(UserError, match=r"a\.pt: .*"):
        saved_and_read(read, tmp_path, checkpoint(task_state={"d": Pickled(crafted)}))


def test_a_dictionary_does_not_change_after_its_check(tmp_path):
    """The pickle's list is another one than that of the dictionary which is made of it."""
    symbols = make_dictionary().symbols
    content = checkpoint(task_state=[Pickled(attributes(symbols=symbols)), symbols])
    state = saved_and_read(load_as_fairseq, tmp_path, content)
    dictionary, other = state["task_state"]
    other.append(3)
    assert dictionary.symbols == symbols


def test_many_dictionaries_of_one_list_take_no_more_memory_than_the_limit(tmp_path):
    symbols = [str(i) for i in range(60_000)]
    same = {"symbols": symbols, "count": [1] * 60_000}
    same["indices"] = {symbol: i for i, symbol in enumerate(symbols)}
    content = checkpoint(task_state=[Pickled(same) for _ in range(400)])
    with pytest.raises(UserError, match="copies its content again and again"):
        saved_and_read(load_as_fairseq, tmp_path, content)


def test_pytorchs_own_loader_reads_a_dictionary_with_weights_only(tmp_path):
    torch.save({"target_dictionary": make_dictionary()}, tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt")["target_dictionary"]
    assert vars(found) == vars(make_dictionary())
    assert pickle.dumps(found) == pickle.dumps(make_dictionary())
