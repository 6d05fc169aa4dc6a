"""The mean of several checkpoints."""

import torch

from fairseq_mm.inference.checkpoint import Checkpoint


def change(checkpoint, path, edit):
    state = torch.load(checkpoint)
    edit(state)
    torch.save(state, path)
    return path


def test_the_average_has_the_mean_weights_and_generates(checkpoint, run_command, tmp_path):
    first = torch.load(checkpoint)["model"]
    name = next(key for key, value in first.items() if value.is_floating_point())

    def shift(state):
        state["model"][name] = state["model"][name] + 3
        state["optimizer_history"][-1]["num_updates"] = 7

    other = change(checkpoint, tmp_path / "b.pt", shift)
    status, out, err = run_command(
        "export", f"{checkpoint}:{checkpoint}:{other}", tmp_path / "mean.pt", "--average"
    )
    assert (status, err) == (0, "")
    assert out == f"{tmp_path / 'mean.pt'}: mean of 3 checkpoints, without optimizer\n"
    mean = Checkpoint.open(tmp_path / "mean.pt")
    assert set(mean.weights) == set(first)
    for key, value in mean.weights.items():
        expected = first[key] + 1 if key == name else first[key]
        assert torch.allclose(value, expected, atol=1e-6), key
    assert mean.words == Checkpoint.open(checkpoint).words
    models = mean.build(device="cpu").models
    assert torch.allclose(models[0].state_dict()[name], mean.weights[name])


def test_checkpoints_that_have_no_mean_are_refused(checkpoint, run_command, tmp_path):
    state = torch.load(checkpoint)["model"]
    name = next(key for key, value in state.items() if value.is_floating_point())
    shape = change(
        checkpoint, tmp_path / "shape.pt", lambda x: x["model"].update({name: torch.zeros(2)})
    )
    lacks = change(checkpoint, tmp_path / "lacks.pt", lambda x: x["model"].pop(name))
    arch = change(
        checkpoint,
        tmp_path / "arch.pt",
        lambda x: x["cfg"]["model"].update(_name="conv_story"),
    )
    new = tmp_path / "mean.pt"
    for paths, output, options, message in (
        (f"{checkpoint}:{shape}", new, (), f"but differs ({name})"),
        (f"{checkpoint}:{lacks}", new, (), f"but differs ({name})"),
        (f"{checkpoint}:{arch}", new, (), "arch.pt: must have the --arch and weights of"),
        (f"{checkpoint}:{tmp_path / 'none.pt'}", new, (), "none.pt: no such checkpoint"),
        (f"{checkpoint}:{checkpoint}", shape, (), "shape.pt: must be a new file"),
        (f"{checkpoint}:{checkpoint}", new, ("--to-checkpoint",), "leave all other options out"),
    ):
        status, out, err = run_command("export", paths, output, "--average", *options)
        assert (status, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert not new.exists()
