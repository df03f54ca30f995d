"""Scripts that the benches run as processes of their own; they may import torch and the training library."""
