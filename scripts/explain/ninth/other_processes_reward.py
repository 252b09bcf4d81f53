"""A reward model in a server process shares the card with the policy that is trained.

cause: other-processes
remedy: end-other-process
"""

import torch
import torch.multiprocessing as mp
from torch import nn


def reward_server(requests, answers):
    with torch.inference_mode():
        model = nn.Sequential(*[nn.Linear(5120, 5120, bias=False, device="cuda") for _ in range(14)])
        answers.put("ready")
        while (samples := requests.get()) is not None:
            answers.put(model(samples.cuda()).mean(-1).cpu())


class Policy(nn.Module):
    def __init__(self, vocab=8000, dim=512, layers=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.trunk = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.trunk(self.embed(ids)))


def main():
    context = mp.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    server = context.Process(target=reward_server, args=(requests, answers), daemon=True)
    server.start()
    answers.get()

    policy = Policy().cuda()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    for step in range(10):
        ids = torch.randint(8000, (16, 257), device="cuda")
        log_probs = policy(ids[:, :-1]).log_softmax(-1)
        requests.put(torch.randn(16, 5120))
        reward = answers.get().cuda()
        chosen = log_probs.gather(-1, ids[:, 1:, None])[..., 0].sum(-1)
        loss = -(reward * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
    requests.put(None)


if __name__ == "__main__":
    main()
