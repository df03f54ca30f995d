from shoal.adapters.hvd.topology import Topology


def test_a_world_of_one_is_the_first_everywhere() -> None:
    assert Topology.of(0, ["here"]) == Topology(0, 1, 0, 1, 0, 1, True)


def test_workers_count_on_their_machine_and_across_machines() -> None:
    told = [Topology.of(rank, ["a", "a", "b", "b"]) for rank in range(4)]
    assert [(one.local_rank, one.local_size) for one in told] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [(one.cross_rank, one.cross_size) for one in told] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert all(one.is_homogeneous for one in told)


def test_cross_leaves_out_machines_with_fewer_workers() -> None:
    told = [Topology.of(rank, ["a", "b", "b"]) for rank in range(3)]
    assert [(one.cross_rank, one.cross_size) for one in told] == [(0, 2), (1, 2), (0, 1)]
    assert not told[0].is_homogeneous
