"""Training with CUDA graphs: the whole step in one graph, or a module's two passes: python graphed.py --what step"""

import argparse

import torch
from torch import nn


def train_in_one_graph(model, inputs, labels, replays):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    loss_fn = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(replays):
        inputs.copy_(torch.randn_like(inputs))
        graph.replay()
    print("replays", replays)


def train_with_graphed_passes(model, inputs, labels, steps):
    model = torch.cuda.make_graphed_callables(model, (inputs,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("steps", steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["step", "passes"], default="step")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    layers = [nn.Linear(args.width, args.width), nn.ReLU(), nn.Linear(args.width, args.width)]
    model = nn.Sequential(*layers, nn.Linear(args.width, 10)).cuda()
    inputs = torch.randn(64, args.width, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")
    train = train_in_one_graph if args.what == "step" else train_with_graphed_passes
    train(model, inputs, labels, args.steps)


if __name__ == "__main__":
    main()
