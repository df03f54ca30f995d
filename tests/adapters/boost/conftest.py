"""A server for all real trainings of a module, and the digits as a file that no worker can learn all of alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interpreters import boosting
from tests.support.live import Live, live_server

__all__ = ["boosting"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tmp_path_factory.mktemp("boost") / "home", "--cpus", "4") as server:
        yield server


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of digits, sorted: of two workers the first has no row above 4, the second none below."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = labels.argsort(kind="stable")
    file = tmp_path_factory.mktemp("digits") / "digits.csv"
    names = [*(f"p{number}" for number in range(images.shape[1])), "digit"]
    rows = (",".join([*(f"{pixel:g}" for pixel in images[at]), str(labels[at])]) for at in order)
    file.write_text("\n".join([",".join(names), *rows]) + "\n")
    return file
