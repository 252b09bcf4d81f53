"""The claims of the rules' pages, carried out: the bad form and the good form, with torch. Values and
exceptions on the CPU, where values are real; bytes on a virtual GPU, in one process for all of them. A claim
that a new torch makes false fails here.
"""

from __future__ import annotations

import copy
import gc
import inspect
import json
import subprocess
import sys
import weakref

import pytest
import torch
from proofs import PROOFS, data, gradient, net, proof, says, size, why
from runs import ROOT, invoke, memfit
from torch import nn
from torch.nn import functional


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """All figures of rule_bytes.py, from one run on a virtual GPU."""
    out = tmp_path_factory.mktemp("rules") / "bytes.json"
    script = ROOT / "tests/python/rule_bytes.py"
    command = [sys.executable, str(script), str(out)]
    run = invoke(
        ["run", "--gpu", "a100-80gb", "--steps", "0", "--no-prove", "--format", "json", "--", *command]
    )
    assert out.exists(), run.stdout[-2000:] + run.stderr[-2000:]
    return json.loads(out.read_text())


def trained(model):
    """Return the number of parameters with a gradient, and of all."""
    parameters = list(model.parameters())
    return f"{sum(parameter.grad is not None for parameter in parameters)} of {len(parameters)}"


@proof("graph-in-container")
def test_losses_keep_their_activations(measured):
    figures = measured["graph-in-container"]
    assert 4.5 * figures["one"] < figures["five"] <= 5.5 * figures["one"]
    assert figures["retained"] > 4.5 * figures["one"]
    assert figures["freed"] < figures["one"] / 100
    assert figures["numbers"] < figures["one"] / 100
    says(
        "graph-in-container", f"one iteration holds {size(figures['one'])}, five hold {size(figures['five'])}"
    )
    says("graph-in-container", f"({size(figures['freed'])} stay)")


@proof("device-tensor-in-container")
def test_detached_outputs_stay_on_the_card(measured):
    figures = measured["device-tensor-in-container"]
    assert figures["detached"] >= 5 * figures["output"]
    assert figures["on_host"] == 0
    says(
        "device-tensor-in-container",
        f"five outputs of {size(figures['output'])} hold {size(figures['detached'])}",
    )
    x = torch.zeros(4, requires_grad=True)
    assert x.detach().data_ptr() == x.data_ptr()


@proof("view-keeps-storage")
def test_a_slice_keeps_the_whole(measured):
    figures = measured["view-keeps-storage"]
    assert figures["slices"] >= 3 * figures["whole"]
    assert figures["copies"] < figures["whole"] / 10
    says("view-keeps-storage", f"outputs of {size(figures['whole'])} holds {size(figures['slices'])}")
    says("view-keeps-storage", f"copied, {size(figures['copies'])}")
    part = torch.zeros(512, 10)[:, :1].detach()
    assert (part.untyped_storage().nbytes(), part.clone().untyped_storage().nbytes()) == (20_480, 2_048)


@proof("loss-summed-before-backward")
def test_a_sum_of_losses_holds_all_graphs(measured):
    figures = measured["loss-summed-before-backward"]
    # Four graphs more, of one forward pass each.
    assert figures["summed"] - figures["each"] > 3.9 * measured["graph-in-container"]["one"]
    says(
        "loss-summed-before-backward",
        f"a peak of {size(figures['summed'])} instead of {size(figures['each'])}",
    )
    one, other = net(), net()
    sum(functional.cross_entropy(one(x), y) for x, y in data()).backward()
    for x, y in data():
        functional.cross_entropy(other(x), y).backward()
    assert torch.allclose(gradient(one), gradient(other), atol=1e-6)


@proof("tensor-running-loss")
def test_a_running_loss_is_no_leak(measured):
    assert 0 < measured["tensor-running-loss"]["held"] <= 512
    model, total = net(), 0
    depths = []
    for x, y in data():
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        total = total + loss
        node, depth = total.grad_fn, 0
        while node is not None and type(node).__name__ == "AddBackward0":
            depth, node = depth + 1, node.next_functions[0][0]
        depths.append(depth)
    assert depths == [1, 2, 3, 4]


@proof("retain-graph-in-loop")
def test_a_retained_graph_coexists_with_the_next_one(measured):
    figures = measured["retain-graph-in-loop"]
    one = measured["graph-in-container"]["one"]
    assert figures["freed"] < 2 * one < figures["retained"]
    says("retain-graph-in-loop", f"a peak of {size(figures['retained'])} instead of {size(figures['freed'])}")


@proof("hook-stores-activation")
def test_a_hook_keeps_the_forward_pass(measured):
    figures = measured["hook-stores-activation"]
    assert figures["graph"] > 3 * figures["output"]
    assert figures["detached"] <= figures["output"]
    says("hook-stores-activation", f"{size(figures['graph'])} for an output of {size(figures['output'])}")


@proof("eval-without-no-grad")
def test_evaluation_with_gradients_takes_twice_the_activations(measured):
    figures = measured["eval-without-no-grad"]
    assert 1.7 * figures["one"] < figures["two"] == figures["five"] < 2.3 * figures["one"]
    assert figures["off"] < figures["one"]
    batches = [f"of one batch is {size(figures['one'])}"]
    batches += [f"of {count} {size(figures[count])}" for count in ("two", "five")]
    says("eval-without-no-grad", ", ".join(batches), f"it is {size(figures['off'])}")
    says("eval-without-no-grad", f"activations of {size(figures['two'] - figures['one'])}")


@proof("late-zero-grad")
def test_gradients_are_alive_during_the_forward_pass(measured):
    figures = measured["late-zero-grad"]
    assert 0.4 * figures["parameters"] < figures["late"] - figures["after"] < 1.1 * figures["parameters"]


@proof("zero-grad-to-zero")
def test_zeros_stay_allocated(measured):
    figures = measured["zero-grad-to-zero"]
    assert figures["zeros"] == figures["none"] == figures["parameters"] > 0
    says("zero-grad-to-zero", f"{size(figures['parameters'])} of parameters: {size(figures['zeros'])} stay")
    assert inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default is True


@proof("cudnn-benchmark-with-varying-shapes")
def test_every_new_shape_is_tried_out(measured):
    figures = measured["cudnn-benchmark-with-varying-shapes"]
    # Three shapes more, and a trial for each.
    assert figures["varying"] - figures["again"] >= 3
    assert torch.backends.cudnn.benchmark is False


@proof("deepcopy-model-on-device")
def test_a_copy_of_the_model_is_on_the_card(measured):
    figures = measured["deepcopy-model-on-device"]
    assert figures["copied"] >= figures["parameters"]
    assert figures["on_host"] == 0
    says(
        "deepcopy-model-on-device",
        f"a model of {size(figures['parameters'])} takes {size(figures['copied'])} more; its weights on the host take none",
    )
    model = net()
    model(torch.ones(1, 4)).sum().backward()
    assert copy.deepcopy(model).weight.grad is None


@proof("empty-cache-in-loop")
def test_an_emptied_cache_is_allocated_again(measured):
    figures = measured["empty-cache-in-loop"]
    assert (figures["emptied"], figures["cached"]) == (4, 1)
    says("empty-cache-in-loop", "four iterations ask the driver 4 times, and 1 time without it")


@proof("full-image-on-device")
def test_a_whole_image_is_large(measured):
    figures = measured["full-image-on-device"]
    assert figures["whole"] >= 137 * 1024**2 > 100 * figures["small"]
    says(
        "full-image-on-device",
        f"a peak of {size(figures['whole'])};",
        f"before the copy, {size(figures['small'])}",
    )


@proof("pad-to-max-length")
def test_activations_grow_with_the_padded_length(measured):
    figures = measured["pad-to-max-length"]
    assert figures["512"] > 3.5 * figures["128"]
    # The scores of attention, where they are written down.
    assert figures["scores-512"] == 16 * figures["scores-128"]


@proof("float-before-transfer")
def test_a_cast_before_the_copy_moves_four_times_as_much(measured):
    figures = measured["float-before-transfer"]
    assert figures["widened"] == 4 * figures["bytes"]


@proof("optimizer-in-loop")
def test_a_new_adam_takes_the_sign(measured):
    figures = measured["optimizer-in-loop"]
    assert figures["state"] >= 2 * figures["parameters"]
    said = f"Adam on {size(figures['parameters'])} of parameters: {size(figures['state'])}"
    says("optimizer-in-loop", said, "a gradient of 5.0 moves its parameter as far as one of 0.1")
    p = torch.tensor([1.0, -3.0, 0.01], requires_grad=True)
    for _ in range(3):
        before = p.detach().clone()
        p.grad = torch.tensor([5.0, -0.1, 1.0])
        torch.optim.Adam([p], lr=0.1).step()
        assert torch.allclose(p.detach() - before, -0.1 * p.grad.sign(), atol=1e-4)


@proof("create-graph-backward")
def test_parameters_and_gradients_refer_to_each_other(measured):
    figures = measured["create-graph-backward"]
    assert figures["plain"] == 0 < figures["parameters"] < figures["kept"]
    said = f"a model of {size(figures['parameters'])}: after model and loss are deleted, {size(figures['kept'])} stay"
    says("create-graph-backward", said, "after a plain `backward()`, none")
    gc.disable()
    try:
        model = net()
        x, y = data()[0]
        with pytest.warns(UserWarning, match="create_graph=True"):
            functional.cross_entropy(model(x), y).backward(create_graph=True)
        watched = weakref.ref(model.weight)
        del model
        assert watched() is not None
    finally:
        gc.enable()
    gc.collect()
    model = net()
    functional.cross_entropy(model(x), y)
    assert torch.autograd.grad(functional.cross_entropy(model(x), y), model.weight, create_graph=True)


@proof("recurrent-state-not-detached")
def test_recurrent_state_that_is_not_detached_raises_in_the_second_batch(measured):
    figures = measured["recurrent-state-not-detached"]
    assert 3.5 * figures["one"] < figures["four"]
    assert figures["detached"] < figures["one"] / 100
    said = f"it holds {size(figures['one'])} after one iteration and {size(figures['four'])} after four"
    says("recurrent-state-not-detached", said, f"detached, {size(figures['detached'])} after four")
    rnn, h = nn.RNN(4, 4), None
    out, h = rnn(torch.randn(3, 4), h)
    out.sum().backward()
    out, h = rnn(torch.randn(3, 4), h)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    h = h.detach()
    out, h = rnn(torch.randn(3, 4), h)
    out.sum().backward()


@proof("no-grad-not-called")
def test_no_grad_without_parentheses_raises():
    # Python 3.10 raises `AttributeError: __enter__`.
    with pytest.raises((TypeError, AttributeError)), torch.no_grad:
        pass
    with pytest.raises((TypeError, AttributeError)), torch.inference_mode:
        pass
    says("no-grad-not-called", "2 of 2 such contexts, `no_grad` and `inference_mode`, raise")

    @torch.no_grad
    def decorated():
        return torch.is_grad_enabled()

    assert decorated() is False


@proof("backward-on-no-grad-loss")
def test_a_loss_without_a_graph_raises():
    model = net()
    x, y = data()[0]
    with torch.no_grad():
        loss = functional.cross_entropy(model(x), y)
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()
    says("backward-on-no-grad-loss", f"after the error, {trained(model)} parameters have a gradient")
    loss = functional.cross_entropy(model(x), y)
    with torch.no_grad():
        loss.backward()
    says("backward-on-no-grad-loss", f"inside it: {trained(model)}.")


@proof("eval-mode-not-restored")
def test_a_model_stays_in_evaluation_mode():
    model, x = nn.Dropout(0.5), torch.ones(64, 4)
    model.eval()
    off = (model(x) == 0).sum().item()
    model.train()
    torch.manual_seed(0)
    on = (model(x) == 0).sum().item()
    says("eval-mode-not-restored", f"of {x.numel()} values {off} are dropped, and {on} in training mode")


@proof("retry-inside-except")
def test_the_failed_attempt_is_alive_in_the_handler(measured):
    figures = measured["retry-inside-except"]
    assert figures["after"] == 0 < figures["inside"]
    says("retry-inside-except", f"{size(figures['inside'])} are held inside the handler, and none after it")

    def attempt():
        big = torch.zeros(1000)
        watched.append(weakref.ref(big))
        raise torch.OutOfMemoryError("no")

    watched = []
    try:
        attempt()
    except torch.OutOfMemoryError:
        assert watched[0]() is not None
    assert watched[0]() is None


@proof("whole-set-in-one-batch")
def test_a_batch_of_the_whole_set_is_held_at_once(measured):
    figures = measured["whole-set-in-one-batch"]
    assert figures["whole"] > 10 * figures["parts"]
    said = f"a peak of {size(figures['whole'])} instead of {size(figures['parts'])}"
    says("whole-set-in-one-batch", said)


@proof("optimizer-state-before-device")
def test_a_state_stays_where_its_model_was(measured):
    figures = measured["optimizer-state-before-device"]
    assert figures["first-on-host"] == figures["first-raises"] == 0
    assert figures["late-raises"]
    says("optimizer-state-before-device", f"{size(figures['late-on-host'])} of moments stay on the host")


@proof("reentrant-checkpoint-without-gradients")
def test_a_reentrant_checkpoint_of_a_batch_trains_nothing():
    def gradients(reentrant):
        stem, head = nn.Linear(4, 4), net()
        given = torch.utils.checkpoint.checkpoint(stem, torch.ones(2, 4), use_reentrant=reentrant)
        head(given).sum().backward()
        return trained(stem)

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        says("reentrant-checkpoint-without-gradients", f"{gradients(True)} parameters of such a layer have")
    assert gradients(False) == "2 of 2"


@proof("oom-swallowed")
def test_a_runtime_error_is_more_than_memory():
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    model = net()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []

    def attempt():
        try:
            functional.cross_entropy(model(torch.ones(8, 5)), torch.zeros(8, dtype=torch.long)).backward()
            optimizer.step()
        except RuntimeError as error:
            said.append(str(error))

    for _ in range(3):
        attempt()
    assert len(said) == 3
    assert not any("out of memory" in one for one in said)
    changed = sum(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    says(
        "oom-swallowed",
        f"three iterations end without an error, and {changed} of {len(before)} parameters have changed",
    )


@proof("oom-string-match")
def test_the_error_has_a_class():
    assert torch.OutOfMemoryError is torch.cuda.OutOfMemoryError


@proof("state-dict-alias")
def test_a_state_dict_is_the_weights(measured):
    figures = measured["state-dict-alias"]
    assert figures["alias"] == 0
    says("state-dict-alias", f"GPU: {size(figures['copied'])} for a model of {size(figures['parameters'])}")
    model = net()
    kept, copied = model.state_dict(), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    follow = sum(torch.equal(kept[name], now) for name, now in model.named_parameters())
    says("state-dict-alias", f"{follow} of {len(kept)} tensors that were kept change with the model")
    assert not any(torch.equal(copied[name], now) for name, now in model.named_parameters())


@proof("softmax-before-cross-entropy")
def test_probabilities_bound_the_loss():
    logits, y = torch.tensor([[100.0, 0.0, 0.0]]), torch.tensor([0])
    assert functional.cross_entropy(logits, y) < 1e-3
    least = functional.cross_entropy(logits.softmax(1), y)
    says("softmax-before-cross-entropy", f"cannot fall below {least:.2f} for three classes")


@proof("sigmoid-before-bce-with-logits")
def test_probabilities_bound_the_binary_loss():
    logit, y = torch.tensor([100.0]), torch.tensor([1.0])
    assert functional.binary_cross_entropy_with_logits(logit, y) < 1e-3
    least = functional.binary_cross_entropy_with_logits(logit.sigmoid(), y)
    says("sigmoid-before-bce-with-logits", f"cannot fall below {least:.2f}")


# Effects and defaults of arguments


@proof("unbounded-memory-history")
def test_the_history_has_no_limit(measured):
    figures = measured["unbounded-memory-history"]
    said = f"leave {figures['events']:,} events, and {figures['kept']} with `max_entries=100`"
    says("unbounded-memory-history", said)
    parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    text = str(parameters) + inspect.getsource(torch.cuda.memory._record_memory_history)
    assert "sys.maxsize" in text or "9223372036854775807" in text


def test_every_rule_has_a_proof():
    import test_rules_around  # noqa: F401
    import test_rules_precision  # noqa: F401
    import test_rules_training  # noqa: F401
    import test_rules_windows  # noqa: F401

    listed = subprocess.run(
        [memfit(), "rule", "--format", "json"], capture_output=True, text=True, check=True
    )
    rules = json.loads(listed.stdout)["rules"]
    assert {rule["name"] for rule in rules} == set(PROOFS)
    # The cost of an error or a warning was measured, and its proof compares the page with the figure.
    for rule in rules:
        if rule["severity"] != "note":
            name = rule["name"]
            assert "Measured" in why(name), name
            proofs = (" ".join(inspect.getsource(proven).split()) for proven in PROOFS[name])
            assert any(f'says("{name}"' in proven.replace('says( "', 'says("') for proven in proofs), name
