"""Imports torch and says so: what a user waits for before the first line of a training script."""

import torch

print("ready", torch.__version__, flush=True)
