"""`any` and `all` along a dimension make a mask, whose true entries are counted by their bound: a mixture of
experts chooses its tokens by one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Answer, on_device, through_memfit
from tiers import rarely


def asked(code: str, folder: Path, *options: str) -> Answer:
    return on_device(code, folder, start=lambda *words: through_memfit(*words, options=options))


@pytest.mark.parametrize(
    "mask",
    [
        "(chosen == 3).any(dim=-1)",
        "(chosen != 3).all(dim=-1)",
        "torch.isin(chosen[:, 0], torch.tensor([3], device='cuda'))",
        rarely("~(chosen == 3).any(dim=-1)"),
        rarely("(chosen == 3).any(dim=1) & (chosen == 2).any(dim=1)"),
    ],
)
def test_the_tokens_of_an_expert_are_bounded_by_all(mask: str, tmp_path: Path) -> None:
    code = f"""
    chosen = torch.rand(64, 8, device="cuda").topk(2, dim=-1).indices
    mask = {mask}
    answer(found=torch.nonzero(mask).shape[0], total=int(mask.sum()), taken=chosen[mask].shape[0])
    """
    answer = asked(code, tmp_path, "--sizes", "1")
    assert answer.said == {"found": 64, "total": 64, "taken": 64}, answer.output


def test_rows_that_have_not_ended_are_waited_for(tmp_path: Path) -> None:
    code = """
    rounds = 0
    while rounds < 5 and not (torch.rand(4, 8, device="cuda") > 2).any(dim=1).all():
        rounds += 1
    broken = torch.isnan(torch.rand(4, 8, device="cuda")).any(dim=1).any()
    answer(rounds=rounds, broken=bool(broken))
    """
    answer = asked(code, tmp_path, "--sizes", "1")
    assert answer.said == {"rounds": 5, "broken": False}, answer.output


EXPERTS = """
    import torch
    gate, experts = torch.nn.Linear(256, 4).cuda(), torch.nn.ModuleList(
        torch.nn.Linear(256, 4096) for _ in range(4)
    ).cuda()
    optimizer = torch.optim.Adam([*gate.parameters(), *experts.parameters()])
    for step in range(3):
        tokens = torch.rand(512, 256, device="cuda")
        logits = gate(tokens)
        chosen = logits.topk(2, dim=-1).indices
        loss = logits.sum()
        for number, expert in enumerate(experts):
            taken = torch.nonzero((chosen == number).any(dim=-1)).squeeze(-1)
            if taken.numel() > 0:
                loss = loss + expert(tokens[taken]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_the_state_of_all_experts_is_in_the_peak(tmp_path: Path) -> None:
    report = asked(EXPERTS, tmp_path).report
    parameters = 4 * 4 * (256 * 4096 + 4096)
    assert report["at_peak"]["by_category"]["optimizer"] >= 2 * parameters, report["at_peak"]
