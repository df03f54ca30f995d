from __future__ import annotations

import random

from shoal.adapters.hvd.ask import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, JOIN, SUM, Ask
from shoal.adapters.hvd.table import Table


def ask(name: str, kind: str = ALLREDUCE, shape: tuple[int, ...] = (3,), **facts: object) -> Ask:
    return Ask(kind, name, ("float32",), (shape,), **facts)  # type: ignore[arg-type]


def done(table: Table, *news: list[Ask]) -> list[str]:
    return [ready.name for ready in table.add(news)]


def test_what_all_have_asked_for_is_ready() -> None:
    assert done(Table([0, 1]), [ask("a")], [ask("a")]) == ["a"]


def test_what_one_has_not_asked_for_waits_for_it() -> None:
    table = Table([0, 1])
    assert done(table, [ask("a")], []) == []
    assert table.missing("a") == ["worker-1"]
    assert done(table, [], [ask("a")]) == ["a"]


def test_the_order_is_the_same_whatever_order_each_asks_in() -> None:
    table = Table([0, 1])
    assert done(table, [ask("a"), ask("b"), ask("c")], [ask("c"), ask("b"), ask("a")]) == ["a", "b", "c"]


def test_all_tables_decide_alike_for_any_orders_and_rounds() -> None:
    dice = random.Random(3)
    for _ in range(50):
        size, names = dice.randint(2, 4), [f"n{number}" for number in range(6)]
        left = [dice.sample(names, len(names)) for _ in range(size)]
        tables, orders = [Table(range(size)) for _ in range(size)], [[] for _ in range(size)]  # type: ignore[var-annotated]
        while any(left):
            news = []
            for one in left:
                count = dice.randint(0, len(one))
                news.append([ask(name) for name in one[:count]])
                del one[:count]
            for table, order in zip(tables, orders, strict=True):
                order += done(table, *news)
        assert sorted(orders[0]) == sorted(names)
        assert all(order == orders[0] for order in orders)


def test_a_joined_worker_is_not_waited_for() -> None:
    table = Table([0, 1])
    assert done(table, [ask(JOIN, JOIN)], []) == []
    (ready,) = table.add([[], [ask("a")]])
    assert ready.name == "a" and list(ready.asks) == [1] and ready.wrong is None


def test_when_all_have_joined_the_last_is_known_and_it_begins_anew() -> None:
    table = Table([4, 7])
    table.add([[], [ask(JOIN, JOIN)]])
    (ready,) = table.add([[ask(JOIN, JOIN)], []])
    assert (ready.name, ready.last) == (JOIN, 0)
    assert done(table, [ask("a")], []) == []


def test_only_reductions_are_possible_without_the_joined() -> None:
    table = Table([0, 1])
    table.add([[ask(JOIN, JOIN)], []])
    (ready,) = table.add([[], [ask("a", ALLGATHER)]])
    assert ready.wrong is not None and "worker-0 joined" in ready.wrong


def test_different_shapes_are_named_with_who_has_them() -> None:
    (ready,) = Table([0, 1]).add([[ask("a")], [ask("a", shape=(4,))]])
    assert ready.wrong is not None
    assert "worker-0 asks for allreduce 'a' with shapes [(3,)]" in ready.wrong and "worker-1" in ready.wrong


def test_rows_of_a_gather_may_differ_but_not_what_follows() -> None:
    (same,) = Table([0, 1]).add([[ask("a", ALLGATHER, (1, 2))], [ask("a", ALLGATHER, (5, 2))]])
    (other,) = Table([0, 1]).add([[ask("a", ALLGATHER, (1, 2))], [ask("a", ALLGATHER, (1, 3))]])
    assert same.wrong is None and other.wrong is not None


def test_a_different_operation_or_root_is_refused() -> None:
    (op,) = Table([0, 1]).add([[ask("a", op=SUM)], [ask("a", op="max")]])
    (root,) = Table([0, 1]).add([[ask("a", BROADCAST, root=0)], [ask("a", BROADCAST, root=1)]])
    (nobody,) = Table([0, 1]).add([[ask("a", BROADCAST, root=2)], [ask("a", BROADCAST, root=2)]])
    assert op.wrong and root.wrong and nobody.wrong and "none of [0, 1]" in nobody.wrong


def test_splits_must_cover_all_rows() -> None:
    (ready,) = Table([0, 1]).add([[ask("a", ALLTOALL, splits=(1, 1))], [ask("a", ALLTOALL, splits=(1, 2))]])
    assert ready.wrong is not None and "worker-0 splits 3 rows" in ready.wrong


def test_an_ask_survives_the_journey() -> None:
    one = ask("a", ALLTOALL, (3, 2), splits=(1, 2), root=1)
    assert Ask.of(one.plain()) == one
