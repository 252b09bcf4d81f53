"""Runs a script with PyTorch's own budget for activations: `python budget.py SHARE SCRIPT ARGS...`.

The share is that of what a compiled graph would keep for its backward. It acts where something compiles the
model.
"""

import runpy
import sys

import torch._functorch.config

torch._functorch.config.activation_memory_budget = float(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
