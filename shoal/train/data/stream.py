"""Input without end: batches as they come, and the model published every so often.

A live source cannot be rewound, so there is no position to resume at: after a restart it goes on with what comes next.
Workers that go in step stop together, when the first of them has nothing more or the run is to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from shoal.train.data import loaders, vote
from shoal.train.data.shard import timed

if TYPE_CHECKING:
    from shoal.train.data.feed import Feed

_END = object()

Publish = Callable[[int], object]  # is given the number of steps so far


def stream(
    feed: Feed, source: Iterable[Any], *, deal: bool, publish: Publish | None, every: int, stop: Callable[[], bool]
) -> Iterator[Any]:
    """See `Feed.stream`."""
    rank, size = feed.place()
    batches = timed(islice(iter(source), rank, None, size) if deal else iter(source), feed.seeing)
    if feed.in_step:
        batches = vote.together(batches, feed.group(), feed.seeing, "the stream")
    count = 0
    while not stop():
        batch = next(batches, _END)
        if batch is _END:
            break
        count += 1
        feed.tally.took(loaders.samples(batch))
        yield batch
        if publish is not None and count % every == 0:
            publish(feed.tally.step)
    if publish is not None and count % every:
        publish(feed.tally.step)
