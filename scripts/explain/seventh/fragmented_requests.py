"""A small server of embeddings holds a buffer for each open request; half of the requests end, then a long
one comes.

cause: fragmented
line:
remedy: expandable-segments|max-split-size|garbage-collection
"""

import torch


class Session:
    def __init__(self, tokens):
        self.keys = torch.empty(24, 1, 8, tokens, 64, device="cuda", dtype=torch.float16)
        self.values = torch.empty_like(self.keys)


sessions = {}
for user in range(200):
    sessions[user] = Session(256)
for user in range(0, 200, 2):
    del sessions[user]
long = Session(20_000)
print(long.keys.shape)
