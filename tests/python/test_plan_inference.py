"""`memfit plan` on scripts that train nothing: forward passes and generation."""

from __future__ import annotations

from test_plan import again, planned

INFERENCE = """
import torch
from torch import nn

batch_size = 64
model = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 64)).cuda().eval()
with torch.inference_mode():
    for _ in range(8):
        print(model(torch.randn(batch_size, 2048, 64, device="cuda")).shape)
"""


def test_a_script_that_only_goes_forward_takes_its_batch_in_passes():
    folder, run = planned(INFERENCE, "--memory", "2GiB", "--allow", "exact")
    report = run.report
    assert report["verdict"] == "fits-with-plan", (report, run.stderr)
    assert [(each["name"], each["label"]) for each in report["chosen"]["levers"]] == [
        ("micro-batch", "exact")
    ]
    assert report["chosen"]["micro_batch"] * report["chosen"]["micro_batches_per_step"] == 64
    assert report["chosen"]["step_ms_estimate"] >= 0.5 * report["baseline"]["step_ms_estimate"] > 0
    assert again(folder, report["budget"]).status == 0


GENERATING = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=200, hidden_size=512, intermediate_size=512, num_hidden_layers=4,
                     num_attention_heads=8, pad_token_id=0)
model = LlamaForCausalLM(config).cuda().half().eval()
for _ in range(2):
    prompt = torch.randint(1, 200, (64, 512)).cuda()
    print(model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False).shape)
"""


def test_kv_caches_of_language_models_may_take_less():
    _, run = planned(GENERATING, "--memory", "850MiB", "--allow", "changes-training")
    report = run.report
    # 64 sequences of 518 tokens in four layers, keys and values in two bytes.
    cache = 64 * 518 * 4 * 2 * 512 * 2
    baseline = report["baseline"]
    assert baseline["peak"]["allocated"] > cache
    assert baseline["step_ms_estimate"] > 0
    told = {lever["name"] for lever in (report["chosen"] or baseline)["levers"]}
    told |= {rejected["lever"] for rejected in report["rejected"] if "iB" in rejected["why"]}
    assert {"kv-cache-8-bit", "kv-cache-window"} <= told, report
    small = [
        each["peak"]["allocated"]
        for each in report["pareto"]
        if any(lever["name"] == "kv-cache-8-bit" for lever in each["levers"])
    ]
    assert small
    assert min(small) < baseline["peak"]["allocated"] - cache // 4
