"""Each fold's Gram matrix is freed, and the features that stay are put into the middle of its segment.

cause: fragmented
line: torch.cdist(x, x)|gram =
remedy: expandable-segments|by-parts|keep-on-cpu
"""

import torch

N, TEST, FREQUENCIES = 16_384, 38_400, 4096


def gram_matrix(x, gamma):
    gram = torch.cdist(x, x)
    return gram.pow_(2).mul_(-gamma).exp_()


def conjugate_gradient(gram, y, ridge=1e-2, iterations=10):
    a, r = torch.zeros_like(y), y.clone()
    p = r.clone()
    for _ in range(iterations):
        q = gram @ p + ridge * p
        step = (r * r).sum() / (p * q).sum()
        a += step * p
        new = r - step * q
        p = new + (new * new).sum() / (r * r).sum() * p
        r = new
    return a


def fit(x, y, gamma):
    return conjugate_gradient(gram_matrix(x, gamma), y)


def random_features(test, gamma):
    omega = torch.randn(test.shape[1], FREQUENCIES, device=test.device) * (2 * gamma) ** 0.5
    return torch.mm(test, omega).cos_()


with torch.inference_mode():
    results = []
    for fold in range(3):
        x, y = torch.randn(N, 32, device="cuda"), torch.randn(N, 1, device="cuda")
        alpha = fit(x, y, gamma=0.1)
        test = torch.randn(TEST, 32, device="cuda")
        results.append((alpha, random_features(test, 0.1)))
print([(a.norm().item(), f.mean().item()) for a, f in results])
