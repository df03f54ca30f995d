import pytest

from shoal.engine import machine
from shoal.engine.nodes import present
from shoal.errors import BadSpec


def test_one_node_is_the_whole_machine() -> None:
    (node,) = present(gpus=0)
    assert (node.name, node.address) == ("local", "127.0.0.1")
    assert (node.cpus, node.memory) == (machine.cpus(), machine.memory())
    assert node.shares == max(8, int(8 * node.cpus))


def test_several_nodes_share_the_machine_and_have_addresses_of_their_own() -> None:
    nodes = present(4, gpus=0)
    assert [node.name for node in nodes] == ["local-0", "local-1", "local-2", "local-3"]
    assert sum(node.cpus for node in nodes) == machine.cpus()
    assert sum(node.memory for node in nodes) <= machine.memory()
    assert len({node.address for node in nodes}) in (1, 4)
    assert all(node.address.startswith("127.0.0.") for node in nodes)


def test_what_is_given_is_what_each_node_has() -> None:
    nodes = present(2, cpus=2, memory=1 << 30, gpus=4, shares=5)
    assert {(node.cpus, node.memory, node.shares) for node in nodes} == {(2.0, 1 << 30, 5)}
    assert [[(gpu.index, gpu.type) for gpu in node.gpus] for node in nodes] == [[(i, "pretend") for i in range(4)]] * 2


@pytest.mark.parametrize("wrong", [{"count": 0}, {"cpus": 0}, {"memory": 0}, {"gpus": -1}])
def test_a_machine_with_less_than_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadSpec, match="give at least that"):
        present(**wrong)  # type: ignore[arg-type]


def test_nodes_carry_the_labels_they_are_given_and_their_own_name() -> None:
    nodes = present(2, labels={"rack": "r1"})
    assert [node.labels for node in nodes] == [{"rack": "r1", "node": "local-0"}, {"rack": "r1", "node": "local-1"}]
