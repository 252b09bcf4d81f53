"""A detector captures a CUDA graph for each input size, and each graph has a memory pool of its own.

cause: private-pools
line: with torch.cuda.graph(|output = self.model(|runner(
remedy: share-pool
"""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 64, 3, 1, 1),
            nn.SiLU(),
            nn.Conv2d(64, 64, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.SiLU(),
        )
        self.boxes = nn.Conv2d(128, 4, 1)

    def forward(self, image):
        return self.boxes(self.net(image))


class GraphRunner:
    def __init__(self, model):
        self.model = model
        self.graphs = {}

    def capture(self, shape):
        static = torch.zeros(shape, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.model(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.model(static)
        self.graphs[shape] = graph, static, output

    def __call__(self, image):
        shape = tuple(image.shape)
        if shape not in self.graphs:
            self.capture(shape)
        graph, static, output = self.graphs[shape]
        static.copy_(image)
        graph.replay()
        return output.clone()


with torch.inference_mode():
    runner = GraphRunner(Detector().cuda().eval())
    for size in (640, 704, 768, 832, 896, 960, 1024):
        print(runner(torch.rand(2, 3, size, size, device="cuda")).shape)
