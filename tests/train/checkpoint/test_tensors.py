"""The file of tensors: what goes in comes out, in a layout that others read too; what is damaged is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Disk
from shoal.train.checkpoint.staging import Staging
from shoal.train.errors import BadCheckpoint

KINDS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


def write(path: Path, every: dict[str, Tensor]) -> Path:
    Disk().write(path, Staging().stage("all", every).pieces())
    return path


def same(one: Tensor, other: Tensor) -> bool:
    bits = [value.contiguous().view(-1).view(torch.uint8) if value.numel() else value for value in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


def some(kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    if kind is torch.bool:
        return (torch.arange(count) % 3 == 0).view(shape)
    return torch.arange(count).to(torch.float32).to(kind).view(shape)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(KINDS), shapes), max_size=8))
def test_everything_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, every: list[tuple]) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("tensors") / "a"
    given_ = {f"t{number}": some(kind, shape) for number, (kind, shape) in enumerate(every)}
    found = tensors.read(write(path, given_))
    assert set(found) == set(given_)
    assert all(same(found[name], given_[name]) for name in given_)


def test_parts_of_larger_tensors_and_turned_ones_are_kept_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    found = tensors.read(write(tmp_path / "a", {"turned": base.t(), "part": base[1:, ::2], "one": base[0, 0]}))
    assert torch.equal(found["turned"], base.t()) and torch.equal(found["part"], base[1:, ::2])
    assert found["one"].shape == ()


def test_the_layout_is_that_of_safetensors(tmp_path: Path) -> None:
    content = write(
        tmp_path / "a", {"small": torch.tensor([1, 2], dtype=torch.uint8), "wide": torch.ones(2)}
    ).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header == {
        "wide": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "small": {"dtype": "U8", "shape": [2], "data_offsets": [8, 10]},
    }
    assert content[8 + length :] == struct.pack("<ff", 1, 1) + bytes([1, 2])


def test_what_is_read_may_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"w": torch.zeros(4)})
    tensors.read(path)["w"].fill_(7)
    assert torch.equal(tensors.read(path)["w"], torch.zeros(4))


@pytest.mark.parametrize("cut", [0, 5, 30, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "a", {"w": torch.zeros(40)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadCheckpoint, match="not a file of tensors"):
        tensors.read(path)


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    for entry in (
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 4096]},
        {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]},
        {"dtype": "Q7", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-8, 8]},
        ["F32"],
    ):
        header = json.dumps({"w": entry}).encode()
        (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
        with pytest.raises(BadCheckpoint):
            tensors.read(tmp_path / "a")


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.empty(2, device="meta")])
def test_what_has_no_bytes_is_refused_by_name(tensor: Tensor) -> None:
    with pytest.raises(BadCheckpoint, match="'odd'"):
        tensors.Layout.of({"odd": tensor})
