"""What one slow worker of four costs a gossip."""

from __future__ import annotations

from shoal.bench.figure import Figure, Target
from shoal.bench.peer import run_script

TARGET = Target("≥", 0.75, "×")


def straggler_gossip() -> list[Figure]:
    """One worker five times slower: samples a second against nobody slow, both by turns in one run."""
    said = run_script("shoal.bench.train.straggler", "gossip")
    spread = f"{min(said['pairs']):.2f} to {max(said['pairs']):.2f}; 0.80 is the limit"
    peer = f"nobody slow {said['even']:.0f} samples/s"
    return [Figure("straggler.gossip", said["ratio"], TARGET, peer, f"{said['slow']:.0f} samples/s, {spread}")]
