"""Tests of cards are there where a card is."""

import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cards.py"]
