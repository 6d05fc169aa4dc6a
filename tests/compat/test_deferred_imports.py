"""What ``fairseq-mm`` does not import when it starts is there when it is called."""

import dataclasses
import subprocess
import sys

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import ValidationError

from fairseq_mm.compat.fairseq import defer_configs, deferred

PROGRAM = """
import sys
from fairseq_mm.cli import run_set_up
from fairseq_mm.compat.fairseq import OF_FAIRSEQ, OF_TORCHVISION
run_set_up.is_program = True
run_set_up.register_quietly()
import gc
print(gc.get_freeze_count() > 100_000, gc.get_threshold()[0])
import fairseq_mm.extract.backbones
print([name for name in (*OF_FAIRSEQ, *OF_TORCHVISION) if name in sys.modules])
import torch, torchvision
boxes = torch.tensor([[0.0, 0, 0, 2, 2]])
print(tuple(torchvision.ops.roi_align(torch.ones(1, 1, 4, 4), boxes, 2).shape))
from fairseq.criterions import sentence_prediction
score = getattr(sentence_prediction, "f1_score", lambda *_: 1)
print(float(score([1, 0], [1, 0])))
from sacrebleu import utils
print(utils.tabulate([[1]], tablefmt="orgtbl"))
"""


def test_the_command_imports_them_when_they_are_called():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    lines = ["True 100000", "[]", "(1, 1, 2, 2)", "1.0", "| 1 |"]
    assert done.stdout.splitlines() == lines


def test_a_library_gets_the_modules_themselves(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with deferred(("colorsys",)):
        from colorsys import rgb_to_hsv
    assert rgb_to_hsv.__module__ == "colorsys"
    assert sys.modules["colorsys"].__file__


@dataclasses.dataclass
class Config:
    size: int = 3


def test_configs_are_converted_when_hydra_reads_one():
    class Store(ConfigStore):
        pass

    defer_configs(Store)
    store = Store()
    store.store(name="first", node=Config(), group="model", provider="test")
    store.store("second", {"size": 4})
    assert store.__dict__["repo"] == {}
    assert store.load("model/first.yaml").node == {"size": 3}
    assert store.load("second.yaml").node.size == 4
    store.store(name="third", node=Config(5))
    assert store.list("") == ["model", "second.yaml", "third.yaml"]
    store.store(name="wrong", node=object)
    store.store(name="fourth", node=Config(6))
    with pytest.raises(ValidationError):
        store.load("fourth.yaml")
    assert store.load("fourth.yaml").node == {"size": 6}
    # hydra's own class stays as it is
    assert isinstance(ConfigStore.instance().repo, dict)
    assert not isinstance(vars(ConfigStore).get("repo"), property)
