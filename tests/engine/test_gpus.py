import sys
from types import SimpleNamespace

import pytest

from shoal.engine import gpus
from shoal.job.nodes import Gpu


class NvmlError(Exception):
    pass


def library(names: list[str], fails: bool = False) -> SimpleNamespace:
    """NVML as its binding presents it, on a machine with these cards."""

    def init() -> None:
        if fails:
            raise NvmlError("Driver Not Loaded")

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: names[index],
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}{index}{index}-x",
    )


def test_whatever_this_machine_has_asking_is_no_error() -> None:
    assert all(isinstance(gpu, Gpu) for gpu in gpus.find())


def test_a_driver_that_is_not_there_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library([], fails=True))
    assert gpus.find() == ()


def test_the_library_that_is_not_there_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.find() == ()


def test_cards_are_told_by_index_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(["NVIDIA H200", "NVIDIA GeForce RTX 4090"]))
    assert gpus.find() == (Gpu(0, "H200"), Gpu(1, "GeForce-RTX-4090"))


@pytest.mark.parametrize(("visible", "left"), [("1,2", [1, 2]), ("GPU-222", [2]), ("", []), (None, [0, 1, 2])])
def test_only_what_the_server_may_see_is_offered(
    visible: str | None, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(["NVIDIA A100-SXM4-80GB"] * 3))
    assert [gpu.index for gpu in gpus.find(visible)] == left


def test_pretended_nodes_share_real_cards_out_and_keep_their_indices() -> None:
    cards = tuple(Gpu(index) for index in range(5))
    assert [[gpu.index for gpu in part] for part in gpus.split(cards, 2)] == [[0, 1], [2, 3, 4]]
    assert gpus.split((), 3) == [(), (), ()]
